"""The event stream on its own thread: a real uvicorn, whose loop is held up; no SGLang."""

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import uvicorn
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from patches.http.worker_key import KeyCheck
from patches.streams import outlet as outlets
from patches.streams.event_hub import NOTICES_WAIT_MAX, EventHub
from patches.streams.event_stream import SharedReader
from patches.streams.notice_board import NoticeBoard
from patches.streams.outlet import Outlet
from patches.streams.pulse import Pulse
from patches.streams.takeover import EventResponse, Exchanges
from toolkit.contract import VERSION
from toolkit.contract.events import (
    Down,
    Event,
    Heartbeat,
    Hello,
    LoadReading,
    Ping,
    Routers,
    decode,
)  # fmt: skip
from toolkit.contract.headers import ROUTER
from toolkit.contract.heartbeat import Beat
from toolkit.contract.notices import BODY_MAX, NOTICE_MAX, Notice, Posted
from toolkit.contract.paths import EVENTS
from toolkit.decide.notices import BURST

HOLD_S = 3.0
KEY = {"Authorization": "Bearer k"}


class Worker:
    """What a worker's main process is to the hub: an HTTP server and what its ranks publish."""

    def __init__(self) -> None:
        self.busy = True
        self.loads = [(LoadReading(running=0), 0.0)]
        self.beats: list[tuple[int, Beat]] = []
        self.hub = EventHub(lambda: self.busy, lambda: list(self.loads), lambda: list(self.beats))
        self.port = 0

    def app(self) -> Any:
        async def events(request: Request) -> Response:
            return EventResponse(self.hub, Hello(contract=VERSION, max_running_requests=4))

        async def hold(request: Request) -> Response:
            time.sleep(HOLD_S)  # as a tokenizer does
            return PlainTextResponse("ok")

        async def passed_on(request: Request, follow: Any) -> Response:
            return await follow(request)

        routes = [Route(EVENTS, events), Route("/hold", hold)]
        # SGLang puts one around all when it has metrics or keys: it has a task and a `send` of its
        # own.
        metrics = Middleware(BaseHTTPMiddleware, dispatch=passed_on)
        return Exchanges(KeyCheck(Starlette(routes=routes, middleware=[metrics]), "k"), EVENTS)


@contextmanager
def serving(worker: Worker) -> Iterator[Worker]:
    config = uvicorn.Config(worker.app(), port=0, loop="uvloop", log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started)
    worker.port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield worker
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


@pytest.fixture
def worker() -> Iterator[Worker]:
    with serving(Worker()) as up:
        yield up


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "still not so"
        time.sleep(0.005)


class Listener:
    """A client of the stream; `heard` with the times."""

    def __init__(self, worker: Worker, router: str | None = None) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=10)
        named = {} if router is None else {ROUTER: router}
        self.connection.request("GET", EVENTS, headers=KEY | named)
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200
        assert self.answer.headers["content-type"] == "application/x-ndjson"
        self.heard: list[tuple[float, Event]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while line := self.answer.readline():
                self.heard.append((time.monotonic(), decode(line)))
        except (OSError, http.client.HTTPException, ValueError):
            pass
        self.answer.close()
        self.connection.close()

    def events(self) -> list[Event]:
        return [event for _, event in self.heard]


def hold(worker: Worker) -> threading.Thread:
    """Have the server's loop do nothing for HOLD_S."""

    def ask() -> None:
        held = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=30)
        with closing(held):
            held.request("GET", "/hold", headers=KEY)
            assert held.getresponse().read() == b"ok"

    asking = threading.Thread(target=ask)
    asking.start()
    return asking


def test_routers_are_told_of_each_other_and_nobody_else_is_one(worker: Worker) -> None:
    def names(listener: Listener) -> list[tuple[str, ...]]:
        return [event.names for event in listener.events() if isinstance(event, Routers)]

    plain, wrong = Listener(worker), Listener(worker, "no name")
    one = Listener(worker, "router-1")
    until(lambda: names(one) == [("router-1",)])
    other, again = Listener(worker, "router-2"), Listener(worker, "router-2")
    both = ("router-1", "router-2")
    until(lambda: names(one) == [("router-1",), both, both] and both in names(again))
    for gone in (other, again):  # as when its process is killed
        gone.connection.sock.shutdown(
            2
        ) if gone.connection.sock else gone.answer.fp.raw._sock.shutdown(2)  # type: ignore[attr-defined]
    until(lambda: names(one)[-1] == ("router-1",))
    assert not names(plain) and not names(wrong)


def notices(listener: Listener) -> list[str]:
    """Ids of those that it was told."""
    return [event.id for event in listener.events() if isinstance(event, Notice)]


def test_a_notice_goes_to_the_routers_that_it_is_for(worker: Worker) -> None:
    board = NoticeBoard(worker.hub)

    def post(sender: str, name: str, to: str = "") -> tuple[int, Posted]:
        notice = Notice(sender, name, "kind", to, body='{"x": 1}')
        status, answer, _ = board.take(msgspec.json.encode(notice), 0.0)
        return status, msgspec.json.decode(answer, type=Posted)

    plain = Listener(worker)
    one, two, three = (Listener(worker, f"router-{n}") for n in (1, 2, 3))
    until(lambda: len(worker.hub.routers) == 3)
    assert post("router-1", "all") == (200, Posted(("router-2", "router-3")))
    assert post("router-1", "one", "router-3") == (200, Posted(("router-3",)))
    assert post("router-1", "none", "router-9") == (200, Posted())
    until(lambda: (notices(two), notices(three)) == (["all"], ["all", "one"]))
    event = next(each for each in three.events() if isinstance(each, Notice))
    assert event == Notice("router-1", "all", "kind", body='{"x": 1}')
    assert not notices(one) and not notices(plain)


def test_what_is_no_notice_and_who_is_no_router_are_refused(worker: Worker) -> None:
    board = NoticeBoard(worker.hub)
    mine = Listener(worker, "router-1")
    until(lambda: bool(worker.hub.routers))

    def status(**fields: Any) -> int:
        raw = msgspec.json.encode(
            {"type": "notice", "sender": "router-1", "id": "a", "kind": "k", **fields}
        )
        return board.take(raw, 0.0)[0]

    assert status() == 200
    assert status(sender="router-2") == 409
    wrong: list[dict[str, Any]] = [
        {"sender": "a b"}, {"id": "x\n"}, {"to": "x" * 65}, {"body": 1}, {"proof": "p" * 129},
        {"type": "load"}, {"body": "b" * (BODY_MAX + 1)},
    ]  # fmt: skip
    assert [status(**each) for each in wrong] == [400] * len(wrong)
    assert board.take(b"[" * 100_000, 0.0)[0] == board.take(b"\xff", 0.0)[0] == 400
    assert board.take(b" " * (NOTICE_MAX + 1), 0.0)[0] == 413
    assert status(body="b" * BODY_MAX) == 200
    flood = [status(id=str(n)) for n in range(2 * BURST)]
    assert (flood.count(200), flood.count(429)) == (BURST - 2, BURST + 2)
    assert board.counts["429"] == BURST + 2
    assert not notices(mine)


def test_a_router_that_does_not_read_is_told_no_notices_and_not_cut_off(worker: Worker) -> None:
    hub = worker.hub
    Listener(worker)
    with closing(asyncio.new_event_loop()) as loop:
        asleep = hub.join(Hello(contract=VERSION), Pulse(loop), "router-2")
    body, told, left = "b" * BODY_MAX, 0, 0
    for number in range(100):
        posted = hub.tell(Notice("router-1", str(number), "k", body=body))
        told, left = told + len(posted.told), left + posted.left_out
    assert told == NOTICES_WAIT_MAX // (BODY_MAX + 100) and left == 100 - told
    assert asleep.offer(b"x", NOTICES_WAIT_MAX), "it is still there"
    hub.leave(asleep)


def test_a_held_up_loop_is_told_and_holds_up_no_event(worker: Worker) -> None:
    listener = Listener(worker)
    until(lambda: len(listener.heard) >= 2)
    assert listener.events()[:2] == [Hello(contract=VERSION, max_running_requests=4), LoadReading()]
    begin = time.monotonic()
    holding = hold(worker)
    time.sleep(HOLD_S / 2)
    worker.loads = [(LoadReading(running=3), 1.0)]
    until(lambda: LoadReading(running=3) in listener.events(), 0.5)
    worker.hub.publish(Ping(held_up=77.0))  # from this thread
    until(lambda: Ping(held_up=77.0) in listener.events(), 0.5)
    assert holding.is_alive(), "the loop was not held up while this was asked"
    holding.join()
    until(lambda: listener.events()[-1] == Ping(held_up=0.0), 2.0)
    times = [at for at, _ in listener.heard if at >= begin]
    gaps = [b - a for a, b in pairwise(times)]
    assert max(gaps) < HOLD_S / 2, "silent while the loop was held up"
    told = [each.held_up for each in listener.events() if isinstance(each, Ping)]
    assert any(0 < seconds <= HOLD_S + 1 for seconds in told)


def test_what_all_ranks_say_is_one_write(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[list[Event]] = []
    put = Outlet.put

    def seen(outlet: Outlet, lines: bytes) -> bool:
        writes.append([decode(line) for line in lines.splitlines()])
        return put(outlet, lines)

    monkeypatch.setattr(Outlet, "put", seen)
    ranks = range(8)
    worker.beats = [(rank, Beat(7)) for rank in ranks]
    listener = Listener(worker)
    loads: list[Event] = [LoadReading(running=rank + 1, dp_rank=rank) for rank in ranks]
    worker.loads = [(load, 1.0) for load in loads if isinstance(load, LoadReading)]
    beats = [Heartbeat(7, dp_rank=rank) for rank in ranks]
    until(lambda: loads in writes and beats in writes)
    until(lambda: {*map(str, (*loads, *beats))} <= {*map(str, listener.events())})


def test_who_comes_later_hears_the_loads_of_now(worker: Worker) -> None:
    first = Listener(worker)
    until(lambda: len(first.heard) >= 2)
    worker.loads = [(LoadReading(running=5), 1.0)]
    until(lambda: LoadReading(running=5) in first.events())
    second = Listener(worker)
    until(lambda: len(second.heard) >= 2)
    assert second.events()[1] == LoadReading(running=5)
    worker.hub.publish(Down("gone"))
    until(lambda: second.events()[-1] == Down("gone") == first.events()[-1])
    time.sleep(1.5)  # nothing that it says after that counts, so it says nothing
    assert second.events()[-1] == Down("gone")


def test_a_client_that_goes_leaves_nothing_behind(worker: Worker) -> None:
    listeners = [Listener(worker) for _ in range(3)]
    until(lambda: all(len(each.heard) >= 2 for each in listeners))
    assert len(worker.hub._outlets) == 3
    for each in listeners:
        sock = each.connection.sock or each.answer.fp.raw._sock  # type: ignore[attr-defined]
        sock.shutdown(socket.SHUT_RDWR)
    until(lambda: not worker.hub._outlets and worker.hub._thread is None)
    again = Listener(worker)
    until(lambda: len(again.heard) >= 2)


def test_without_the_key_there_are_no_events(worker: Worker) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", worker.port, timeout=10)) as asked:
        asked.request("GET", EVENTS)
        assert asked.getresponse().status == 401
    assert not worker.hub._outlets


def test_who_does_not_read_is_cut_off(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlets, "MAX_BACKLOG", 20)
    with socket.create_connection(("127.0.0.1", worker.port)) as deaf:
        deaf.sendall(
            f"GET {EVENTS} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer k\r\n\r\n".encode()
        )
        until(lambda: len(worker.hub._outlets) == 1)
        big = Down("x" * 300_000)
        for _ in range(200):
            worker.hub.publish(big)
        until(lambda: not worker.hub._outlets)


def test_other_servers_are_told_so() -> None:
    """Over TLS, say, what is written past the server would arrive in the clear."""

    class Exchange:
        response_started = False

        class transport:
            get_extra_info = staticmethod(lambda name: object())  # it has an "sslcontext"

        async def send(self, message: Any) -> None:
            sent.append(message)

    async def receive() -> dict[str, Any]:
        raise AssertionError("there is no more")

    sent: list[Any] = []
    hub = EventHub(lambda: False, list)
    app = Exchanges(EventResponse(hub, Hello()), "/")
    scope = {"type": "http", "path": "/", "http_version": "1.1"}
    asyncio.run(app(dict(scope), receive, Exchange().send))
    assert sent[0]["status"] == 501
    assert not hub._outlets


@given(st.lists(st.integers(1, 200_000), max_size=8), st.integers(0, 8))
@example([150_000, 3, 150_000], 1)
def test_lines_arrive_whole_and_in_order(sizes: list[int], early: int) -> None:
    """However little the socket takes, and whether they came before it was open or after."""
    lines = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    near.setblocking(False)
    far.settimeout(5)
    outlet = Outlet()
    for line in lines[:early]:
        assert not outlet.put(line)
    outlet.open(near)
    wanted = b"".join(b"%x\r\n%b\r\n" % (len(line), line) for line in lines)
    got = bytearray()
    for line in lines[early:]:
        outlet.put(line)
        got += far.recv(1 << 16)
    while len(got) < len(wanted):
        outlet.flush()
        got += far.recv(1 << 16)
    assert bytes(got) == wanted
    assert outlet.waits_on() is None
    outlet.close()
    assert far.recv(1) == b""
    far.close()


def test_a_reader_is_used_by_one_thread_at_a_time() -> None:
    class Reader:
        inside = clashes = 0
        path = "/dev/shm/x"

        def read_all(self) -> list[Any]:
            self.inside += 1
            time.sleep(0.001)
            self.clashes += self.inside > 1
            self.inside -= 1
            return [1]

        def read(self, dp_rank: int) -> Any:
            return self.read_all()[0] + dp_rank

    reader = Reader()
    shared = SharedReader(reader)
    threads = [
        threading.Thread(target=lambda: [(shared.read_all(), shared.read(0)) for _ in range(20)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reader.clashes == 0
    third: Any = shared.read(2)
    assert third == 3
    assert shared.path == "/dev/shm/x"
