"""Whatever goes wrong with a request, nothing of it stays behind: load, credits, waiters."""

from __future__ import annotations

import asyncio
import json
from typing import cast

import pytest

from tests.ports import free_port
from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import (
    bodies,
    events,
    expected,
    idle,
    post,
    run,
    text_of,
)
from toolkit.contract.events import PrefillDone
from toolkit.router.app import RouterApp
from toolkit.router.client import ClientStream
from toolkit.router.relay import Relay
from toolkit.router.request import SubRequest
from toolkit.router.request_channel import RequestChannel
from toolkit.router.splitting import parse
from toolkit.router.upstream import Upstream
from toolkit.settings.router.config import RouterConfig

pytestmark = pytest.mark.touched("router")

PATH = "/v1/completions"


class Silent:
    """A server that takes requests, keeps their bytes and never answers."""

    def __init__(self) -> None:
        self.port = free_port()
        self.heard = b""
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Silent:
        self._server = await asyncio.start_server(self._hear, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        while data := await reader.read(2**16):
            self.heard += data

    async def until(self, *words: bytes) -> None:
        while not all(word in self.heard for word in words):
            await asyncio.sleep(0.01)


class SlowClient:
    """A client that never takes the head of its answer; what was `written` for it is kept."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, events: bytes) -> None:
        self.written += events

    def join(self, relay: Relay) -> None:
        pass

    async def start(self, headers: object) -> None:
        await asyncio.sleep(3600)


def router(port: int) -> RouterApp:
    """With one prefill and one decode worker that are up, both on `port`."""
    url = {"url": f"http://127.0.0.1:{port}"}
    workers = [{"name": "p", "role": "prefill", "bootstrap_port": 1, **url}]
    workers += [{"name": "d", "role": "decode", **url}]
    made = RouterApp(RouterConfig.model_validate({"workers": workers, "max_retries": 0}))
    for worker in made.control.known_workers.workers:
        worker.mark_up()
    return made


def sub_request(headers: str = "") -> SubRequest:
    body = json.dumps({"prompt": "a", "rid": "mine"}).encode()
    return parse(PATH, body, headers=headers).sub_requests[0]


async def nothing_is_left_of(request: SubRequest, of: RouterApp) -> None:
    await asyncio.sleep(0)
    for worker in of.control.known_workers.workers:
        for rank in worker.ranks:
            assert (rank.inflight, rank.inflight_tokens) == (0, 0)
            assert rank.credit == of.config.parked_per_prefill
        assert worker.prefills == {}


def test_what_cannot_be_sent_is_not_counted() -> None:
    async def check() -> None:
        made = router(free_port())
        request = sub_request("x-request-id: \ud800\r\n")
        with pytest.raises(UnicodeEncodeError):
            await made.data.dispatcher.run(request, None, None, 0.0)
        await nothing_is_left_of(request, made)

    run(check())


def test_the_counts_go_back_even_where_a_worker_cannot_be_told() -> None:
    async def check() -> None:
        async with Silent() as server:
            made = router(server.port)
            request = sub_request()
            for worker in made.control.known_workers.workers:

                def deaf(rid: str) -> None:
                    raise RuntimeError("as asked")

                worker.abort = deaf  # type: ignore[method-assign]
            running = asyncio.ensure_future(made.data.dispatcher.run(request, None, None, 0.0))
            await server.until(b'"rid"')
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await nothing_is_left_of(request, made)

    run(check())


def test_what_a_worker_says_before_the_request_s_task_is_awake_is_not_forgotten() -> None:
    """The decode call is posted from within an event; its first bytes may be read in the same turn
    of the event loop."""

    async def check() -> None:
        async with Silent() as server:
            made, client = router(server.port), SlowClient()
            body = json.dumps({"prompt": "a", "stream": True}).encode()
            request = parse(PATH, body, headers="").sub_requests[0]
            relay = Relay(request, client)
            run_it = made.data.dispatcher.run(request, relay, cast(ClientStream, client), 0.0)
            running = asyncio.ensure_future(run_it)
            await server.until(b'"rid"')
            prefill = made.control.known_workers.named("p")
            rid = next(iter(prefill.prefills))
            prefill.prefill_done(PrefillDone(rid, prompt_tokens=1))
            relay.feed(b'data: {"choices": [{"text": "x"}]}\n\n')
            for _ in range(5):
                await asyncio.sleep(0)
            assert relay.first.done() and b'"x"' in client.written
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await nothing_is_left_of(request, made)

    run(check())


def test_who_asks_of_a_request_before_it_runs_or_when_it_is_over_is_not_refused() -> None:
    """An operator's order to move it may come at any time."""

    async def check() -> None:
        decider = router(free_port()).control.known_workers.channel
        channel = RequestChannel(decider)
        assert not decider.suspicion(channel.number).suspect
        channel.close(served=False)
        assert not decider.suspicion(channel.number).suspect

    run(check())


def test_an_abort_is_json_whatever_the_rid() -> None:
    async def check() -> None:
        async with Silent() as server:
            worker = router(server.port).control.known_workers.workers[0]
            worker.abort('a\\"b')
            await server.until(b"}")
            head, _, body = server.heard.partition(b"\r\n\r\n")
            assert head.startswith(b"POST /abort_request ")
            assert json.loads(body) == {"rid": 'a\\"b'}

    run(check())


def test_a_header_goes_on_byte_for_byte() -> None:
    async def check() -> None:
        async with Silent() as server:
            pool = Upstream("w", "127.0.0.1", server.port)
            line = b"x-request-id: \xe9 \xe2\x86\x92\r\n"
            pool.post("/x", b"{}", headers=line.decode("utf-8", "surrogateescape"))
            pool.get(b"/v1/models/\xe9".decode("utf-8", "surrogateescape"))
            await server.until(line, b"GET /v1/models/\xe9 HTTP/1.1\r\n")

    run(check())


def test_a_request_with_a_header_beyond_latin_1_is_served() -> None:
    async def check() -> None:
        async with Cluster() as cluster:
            headers = {"x-request-id": "café → 茶"}
            status, raw = await post(cluster, PATH, bodies(4)[PATH], headers=headers)
            assert (status, text_of(PATH, raw)) == (200, expected("hello", 4))
            await cluster.until(idle)

    run(check())


def test_one_id_twice_at_a_time_is_two_requests() -> None:
    async def check() -> None:
        async with Cluster(worker_args=["--prefill-ms", "100", "--record"]) as cluster:
            body = {**bodies(4)[PATH], "rid": "twin"}
            for status, raw in await asyncio.gather(*(post(cluster, PATH, body) for _ in "12")):
                assert (status, text_of(PATH, raw)) == (200, expected("hello", 4))
                assert {event["id"] for event in events(raw)} == {"twin"}
            seen = [body["rid"] for body in (await cluster.stats("prefill-0"))["bodies"]]
            assert len(set(seen)) == 2
            await cluster.until(idle)

    run(check())


@pytest.mark.parametrize("path", list(bodies(1)))
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_s_id_stays_with_the_router_and_the_client(path: str, stream: bool) -> None:
    """SGLang aborts every request whose id begins with the one that it is given."""

    async def check() -> None:
        async with Cluster(worker_args=["--record"]) as cluster:
            body = {**bodies(4, stream=stream)[path], "rid": "a\\b"}
            status, raw = await post(cluster, path, body)
            assert status == 200
            answers = events(raw) if stream else [json.loads(raw)]
            told = {a["meta_info"]["id"] if path == "/generate" else a["id"] for a in answers}
            assert told == {"a\\b"}
            for worker in cluster.workers:
                for got in (await cluster.stats(worker.name))["bodies"]:
                    assert len(got["rid"]) == 32 and "a" + chr(92) not in json.dumps(got)

    run(check())


def test_parts_of_a_batch_have_ids_of_one_length() -> None:
    async def check() -> None:
        async with Cluster(worker_args=["--record"], decodes=1) as cluster:
            body = {"text": ["hello"] * 12, "rid": "b", "sampling_params": {"max_new_tokens": 2}}
            status, raw = await post(cluster, "/generate", body)
            assert status == 200
            told = [answer["meta_info"]["id"] for answer in json.loads(raw)]
            assert told == [f"b_{n}" for n in range(12)]
            rids = [got["rid"] for got in (await cluster.stats("decode-0"))["bodies"]]
            assert len(set(rids)) == 12 and {len(rid) for rid in rids} == {32}

    run(check())
