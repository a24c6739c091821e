"""Answers of workers that are no plain ones: 1xx, too much of anything, ends that come early."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.ports import free_port
from toolkit.contract import VERSION
from toolkit.contract.events import Hello, Ping, encode
from toolkit.policies.base import RequestView
from toolkit.router import events, relay, upstream
from toolkit.router.errors import UpstreamError
from toolkit.router.events import Watcher
from toolkit.router.known_workers import KnownWorkers
from toolkit.router.relay import Relay
from toolkit.router.request import SubRequest
from toolkit.router.upstream import Call, Upstream
from toolkit.settings.router.config import RouterConfig

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def ask(
    answer: bytes | list[bytes],
    check: Callable[[Upstream, Call], Awaitable[None]],
    close: bool = False,
    sink: Any = None,
) -> list[int]:
    """Let `check` look at a POST to a server that sends `answer`, in pieces if it is a list, to
    each request; the number of connections that it took."""
    taken: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(1)
        try:
            while await reader.readuntil(b"{}"):
                for piece in [answer] if isinstance(answer, bytes) else answer:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.001)
                if close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        pool = Upstream("w", "127.0.0.1", port)
        await check(pool, pool.post("/x", b"{}", sink))
        pool.close_idle()
        server.close()
        await asyncio.sleep(0.02)  # until the server's side is closed, too

    asyncio.run(asyncio.wait_for(run(), 20))
    return taken


async def answered(pool: Upstream, call: Call) -> None:
    await asyncio.wait_for(call.done, 2)
    assert (call.status, bytes(call.body)) == (200, b"{}")


def fails_with(text: str) -> Callable[[Upstream, Call], Awaitable[None]]:
    async def check(pool: Upstream, call: Call) -> None:
        with pytest.raises(UpstreamError, match=text):
            await asyncio.wait_for(call.done, 5)

    return check


@pytest.mark.parametrize(
    "before",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 3,
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n",
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_informational_answers_are_passed_over(before: Any, apart: bool) -> None:
    async def check(pool: Upstream, call: Call) -> None:
        await answered(pool, call)
        await answered(pool, pool.post("/x", b"{}"))

    assert len(ask([before, OK] if apart else before + OK, check)) == 1


def test_a_change_of_protocol_is_an_error() -> None:
    ask(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        fails_with("not HTTP"),
    )


def test_informational_answers_without_end_are_an_error() -> None:
    ask(b"HTTP/1.1 100 Continue\r\n\r\n" * 100, fails_with("16 answers of 1xx"))


def test_a_status_that_http_does_not_have_is_an_error() -> None:
    ask(b"HTTP/1.1 999 X\r\nContent-Length: 0\r\n\r\n", fails_with("status 999"))


def test_heads_are_bounded() -> None:
    many = b"".join(b"X-%d: y\r\n" % number for number in range(500))
    ask(b"HTTP/1.1 200 OK\r\n" + many + b"\r\n", fails_with("more than 100 headers"))
    long = b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000
    ask(long, fails_with("64 KiB"))
    ask(long + b"\r\nContent-Length: 2\r\n\r\n{}", fails_with("64 KiB"))
    endless = [b"HTTP/1.1 200 OK\r\nX: "] + [b"y" * 4096] * 40
    ask(endless, fails_with("64 KiB"))


def test_what_is_said_of_an_answer_that_is_not_http_holds_nothing_of_it() -> None:
    async def check(pool: Upstream, call: Call) -> None:
        with pytest.raises(UpstreamError) as failed:
            await asyncio.wait_for(call.done, 5)
        assert "secret" not in str(failed.value)

    ask(b"secret prompt\r\n\r\n", check)


def test_a_complete_answer_counts_whatever_follows_it() -> None:
    for more in (b"more", OK, b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"):

        async def check(pool: Upstream, call: Call) -> None:
            await answered(pool, call)
            await answered(pool, pool.post("/x", b"{}"))

        assert len(ask(OK + more, check)) == 2, "such a connection is not used again"


def test_an_answer_may_end_with_its_connection() -> None:
    ask(b"HTTP/1.0 200 OK\r\n\r\n{}", answered, close=True)
    ask(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}", answered, close=True)
    ask(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}", fails_with("lost"), close=True)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
    ask(chunked, fails_with("lost"), close=True)
    ask(chunked + b"0\r\n\r\n", answered, close=True)


def test_answers_that_do_not_stream_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "ANSWER_MAX", 2**20)
    ask(b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 2**21, fails_with("1 MiB"))


def test_a_sink_that_fails_ends_its_call_only() -> None:
    def sink(data: bytes) -> None:
        raise ValueError(data.decode())

    async def check(pool: Upstream, call: Call) -> None:
        with pytest.raises(UpstreamError) as failed:
            await asyncio.wait_for(call.done, 5)
        assert "ValueError at test_upstream.py" in str(failed.value)
        assert "{}" not in str(failed.value)

    ask(OK, check, sink=sink)


class Out:
    def __init__(self) -> None:
        self.events: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.events.append(data)

    def join(self, _: Relay) -> None:
        pass


def feeding(check: Callable[[Relay, Out, list[str]], None]) -> None:
    class Ended:
        connection = None

        def __init__(self, said: list[str]) -> None:
            self._said = said

        def close(self, what: str, kind: str = "closed") -> None:
            self._said.append(what)

    async def run() -> None:
        out, said = Out(), []  # type: ignore[var-annotated]
        sub_request = SubRequest("completions", "/v1/completions", {}, "r", 0, True, RequestView())
        one = Relay(sub_request, out)
        one.begin(Ended(said), hold=False)  # type: ignore[arg-type]
        check(one, out, said)

    asyncio.run(run())


def test_a_long_event_in_small_pieces_takes_no_quadratic_time() -> None:
    def check(one: Relay, out: Out, said: list[str]) -> None:
        event = b"data: " + b"x" * (24 * 2**20) + b"\n\n"
        begin = time.process_time()
        for start in range(0, len(event), 16 * 1024):
            one.feed(event[start : start + 16 * 1024])
        assert time.process_time() - begin < 1.0
        assert (out.events, said) == ([event], [])

    feeding(check)


def test_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "EVENT_MAX", 2**20)

    def check(one: Relay, out: Out, said: list[str]) -> None:
        for _ in range(40):
            one.feed(b"x" * 2**16)
        assert out.events == []
        assert said and "an event of more than 1 MiB" in said[0]

    feeding(check)


def test_events_are_put_together_wherever_they_are_cut() -> None:
    raw = b": 1 2\ndata: a\n\n: 3\ndata: b\n\ndata: [DONE]\n\n"

    def check(one: Relay, out: Out, said: list[str]) -> None:
        for size in range(1, len(raw)):
            out.events.clear()
            one.ids.clear()
            one.begin(one._call, hold=False)  # type: ignore[arg-type]
            for start in range(0, len(raw), size):
                one.feed(raw[start : start + size])
            assert b"".join(out.events) == b"data: a\n\ndata: b\n\ndata: [DONE]\n\n"
            assert one.ids == b" 1 2 3"

    feeding(check)


def watcher() -> Watcher:
    worker = {"name": "a", "role": "plain", "url": f"http://127.0.0.1:{free_port()}"}
    config = RouterConfig.model_validate({"workers": [worker]})
    known_workers = KnownWorkers(config)
    return Watcher(known_workers.workers[0], known_workers, config)


async def test_a_worker_that_does_not_say_its_slots_gets_no_request() -> None:
    """0 once stood for "without limit": whoever was prefilled was bound at once, and none waited in
    the pool."""
    one = watcher()
    one._feed(encode(Hello(contract=VERSION, max_running_requests=3)))
    assert one.worker.slots == 3 and one._stranger is None
    one._feed(encode(Hello(contract=VERSION)))
    assert "max_running_requests" in (one._stranger or "")
    one._feed(encode(Ping()))
    assert not one.worker.healthy and one.worker.slots == 3


async def test_lines_of_the_event_stream_are_bounded_and_may_hold_anything(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events, "LINE_MAX", 2**20)
    one = watcher()
    one._feed(b'[1]\n7\nnull\n{"type": "kv_transfer"}\n{"type":"hel')
    known = b'"contract":%d,' % VERSION
    one._feed(b'lo",' + known + b'"max_running_requests":"secret"}\n{"type":"hello",' + known)
    one._feed(b'"max_running_requests":5}\n')
    assert one.worker.slots == 5
    assert "secret" not in caplog.text
    assert caplog.text.count("malformed event") == 5
    call = one._call = one.worker.pool.get("/toolkit/events", one._feed)
    begin = time.process_time()
    for _ in range(40):
        one._feed(b"x" * 2**16)
    assert time.process_time() - begin < 1.0
    with pytest.raises(UpstreamError, match="more than 1 MiB"):
        await call.done
