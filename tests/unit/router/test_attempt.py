"""Whatever goes wrong with a request, nothing of it stays behind: load, credits, waiters."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.ports import free_port
from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, expected, idle, post, run, text_of
from toolkit.router.app import Router
from toolkit.router.config import RouterConfig
from toolkit.router.errors import ApiError
from toolkit.router.request import Single, parse
from toolkit.router.upstream import Pool

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


def router(port: int) -> Router:
    """With one prefill and one decode worker that are up, both on `port`."""
    url = {"url": f"http://127.0.0.1:{port}"}
    workers = [
        {"name": "p", "role": "prefill", "bootstrap_port": 1, **url},
        {"name": "d", "role": "decode", **url},
    ]
    made = Router(RouterConfig.model_validate({"workers": workers, "max_retries": 0}))
    for worker in made.fleet.workers:
        worker.mark_up()
    return made


def single(headers: str = "") -> Single:
    body = json.dumps({"prompt": "a", "rid": "mine"}).encode()
    return parse(PATH, body, headers=headers).singles[0]


async def nothing_is_left_of(request: Single, of: Router) -> None:
    await asyncio.sleep(0)
    for worker in of.fleet.workers:
        for rank in worker.ranks:
            assert (rank.inflight, rank.inflight_tokens) == (0, 0)
            assert rank.credit == of.config.parked_per_prefill
        worker.expect_prefill(request.rid)  # nobody waits there under this rid


def test_what_cannot_be_sent_is_not_counted():
    async def check() -> None:
        made = router(free_port())
        request = single("x-request-id: \ud800\r\n")
        with pytest.raises(UnicodeEncodeError):
            await made.dispatcher.run(request, None, None, 0.0)
        await nothing_is_left_of(request, made)

    run(check())


def test_the_counts_go_back_even_where_a_worker_cannot_be_told():
    async def check() -> None:
        async with Silent() as server:
            made = router(server.port)
            request = single()
            request.rid = "\ud800"  # no UTF-8, so that no abort can be written
            running = asyncio.ensure_future(made.dispatcher.run(request, None, None, 0.0))
            await server.until(b'"rid"')
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await nothing_is_left_of(request, made)

    run(check())


def test_an_abort_is_json_whatever_the_rid():
    async def check() -> None:
        async with Silent() as server:
            worker = router(server.port).fleet.workers[0]
            worker.abort('a\\"b')
            await server.until(b"}")
            head, _, body = server.heard.partition(b"\r\n\r\n")
            assert head.startswith(b"POST /abort_request ")
            assert json.loads(body) == {"rid": 'a\\"b'}

    run(check())


def test_a_header_goes_on_byte_for_byte():
    async def check() -> None:
        async with Silent() as server:
            pool = Pool("w", "127.0.0.1", server.port)
            line = b"x-request-id: \xe9 \xe2\x86\x92\r\n"
            pool.post("/x", b"{}", headers=line.decode("utf-8", "surrogateescape"))
            pool.get(b"/v1/models/\xe9".decode("utf-8", "surrogateescape"))
            await server.until(line, b"GET /v1/models/\xe9 HTTP/1.1\r\n")

    run(check())


def test_a_request_with_a_header_beyond_latin_1_is_served():
    async def check() -> None:
        async with Cluster() as cluster:
            headers = {"x-request-id": "café → 茶"}
            status, raw = await post(cluster, PATH, bodies(4)[PATH], headers=headers)
            assert (status, text_of(PATH, raw)) == (200, expected("hello", 4))
            await cluster.until(idle)

    run(check())


def test_a_rid_that_is_waited_for_is_not_taken_over():
    async def check() -> None:
        worker = router(free_port()).fleet.workers[0]
        first = worker.expect_prefill("x")
        with pytest.raises(ApiError, match="Duplicate request ID detected: x") as error:
            worker.expect_prefill("x")
        assert error.value.status == 400
        worker.prefill_done({"rid": "x", "prompt_tokens": 1})
        second = worker.expect_prefill("x")  # before the loop has told whoever waited for `first`
        assert (await first or {})["prompt_tokens"] == 1
        await asyncio.sleep(0)
        worker.prefill_done({"rid": "x", "prompt_tokens": 2})
        assert (await second or {})["prompt_tokens"] == 2

    run(check())


def test_the_same_rid_twice_stalls_nobody():
    async def check() -> None:
        async with Cluster(worker_args=["--prefill-ms", "300"]) as cluster:
            body = {**bodies(4)[PATH], "rid": "twin"}
            first = asyncio.ensure_future(post(cluster, PATH, body))
            await cluster.until(lambda s: s["workers"][0]["inflight"] == 1)
            status, raw = await post(cluster, PATH, body)
            assert status == 400 and b"Duplicate request ID detected: twin" in raw
            status, raw = await first
            assert (status, text_of(PATH, raw)) == (200, expected("hello", 4))
            assert (await cluster.stats("prefill-0"))["aborted"] == []
            await cluster.until(idle)

    run(check())
