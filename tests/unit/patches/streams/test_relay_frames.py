"""Streams in frames, by uvicorn's own server at one end and the router's own connections at the
other: bytes stay what they are, slow ones leave, and what breaks takes along what was in it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from patches.streams import relay_frames
from patches.streams.relay_frames import (
    FramedApp,
    FramedStream,
    FramesResponse,
    RelayFrames,
    find,
)
from tests.ports import free_port
from tests.present import present
from toolkit.contract.headers import STEP_FRAMES as HEADER
from toolkit.contract.paths import STEP_FRAMES
from toolkit.contract.step_frames import ENDED, head
from toolkit.router import step_frames
from toolkit.router.errors import UpstreamError
from toolkit.router.step_frames import StepFrames
from toolkit.router.upstream import Call, Upstream

WAIT_S = 20.0


def piece(stream: int, number: int, size: int) -> bytes:
    return f"data: {stream} {number} {'x' * size}\n\n".encode()


class Worker:
    """A server whose streams end when they are told to, and the connections of a relay to it."""

    def __init__(self) -> None:
        self.relays: dict[str, RelayFrames] = {}
        self.step = asyncio.Event()
        """All streams say something."""
        self.left: list[int] = []
        """Streams whose client has gone."""
        self.port = free_port()
        self.pool = Upstream("worker", "127.0.0.1", self.port)
        self.frames = StepFrames(self.pool)

    async def said(self, stream: int, count: int, size: int) -> AsyncIterator[bytes]:
        try:
            for number in range(count):
                await self.step.wait()
                yield piece(stream, number, size)
                await asyncio.sleep(0)
        except (asyncio.CancelledError, GeneratorExit):
            self.left.append(stream)
            raise

    async def stream(self, request: Request) -> Response:
        stream, count, size = (int(request.query_params[name]) for name in ("n", "count", "size"))
        if request.query_params.get("kind") == "json":
            return JSONResponse({"n": stream})
        return StreamingResponse(self.said(stream, count, size), media_type="text/event-stream")

    async def take(self, request: Request) -> Response:
        if request.method == "GET":
            return FramesResponse(self.relays, request.query_params["relay"])
        found, number = find(self.relays, (await request.body()).decode())
        present(found).send_away(number)
        return Response()

    def app(self) -> Any:
        both = Route(STEP_FRAMES, self.take, methods=["GET", "POST"])
        app = Starlette(routes=[Route("/stream", self.stream, methods=["POST"]), both])
        return FramedApp(app, self.relays)

    async def opened(self) -> None:
        """The relay has its frames."""
        while not self.frames.header():
            await asyncio.sleep(0.01)

    def call(
        self, stream: int, got: bytearray, count: int = 3, size: int = 1, kind: str = ""
    ) -> Call:
        """A stream that goes into frames where they are there."""
        path = f"/stream?n={stream}&count={count}&size={size}&kind={kind}"
        header = self.frames.header()
        call = self.pool.post(path, b"{}", got.extend, header)
        if header:
            self.frames.follow(call)
        return call

    @property
    def framed(self) -> int:
        """Streams that are in frames now."""
        return sum(len(each.streams) for each in self.relays.values())


@asynccontextmanager
async def serving() -> AsyncIterator[Worker]:
    worker = Worker()
    config = uvicorn.Config(worker.app(), port=worker.port, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    running = asyncio.create_task(server._serve())
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(WAIT_S):
            yield worker
    finally:
        worker.step.set()
        worker.frames.drop()
        worker.pool.close_idle()
        server.force_exit = server.should_exit = True
        await running


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def whole(stream: int, count: int, size: int) -> bytes:
    return b"".join(piece(stream, number, size) for number in range(count))


async def test_streams_in_frames_have_the_bytes_that_they_have_without() -> None:
    async with serving() as worker:
        worker.step.set()
        sizes = [1, 100, 70_000, 2_500_000]
        for framed in (False, True):
            got = [bytearray() for _ in range(12)]
            calls = [worker.call(n, got[n], 4, sizes[n % 4]) for n in range(12)]
            await asyncio.gather(*(call.done for call in calls))
            assert [bytes(each) for each in got] == [whole(n, 4, sizes[n % 4]) for n in range(12)]
            assert [call.framed is not None for call in calls] == [framed] * 12
            assert all(call.status == 200 and call.connection is None for call in calls)
            await worker.opened()
        assert worker.framed == 0, "the worker has let go of them"
        assert not worker.frames._answers, "and so has the relay"


async def test_an_answer_that_is_no_stream_is_as_it_was() -> None:
    async with serving() as worker:
        await worker.opened()
        got = bytearray()
        call = worker.call(5, got, kind="json")
        await call.done
        assert bytes(got) == b'{"n":5}'
        assert call.framed is None
        assert not worker.frames._answers


async def test_a_stream_that_begins_when_its_frames_are_gone_comes_by_itself() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    frames = RelayFrames()
    stream = FramedStream(frames, 1, send, object())
    frames.close()
    head = [(b"content-type", b"text/event-stream")]
    said = [
        {"type": "http.response.start", "status": 200, "headers": head},
        {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True},
    ]
    for message in said:
        await stream.send(message)
    assert sent == said


async def test_a_stream_whose_client_does_not_read_leaves_the_others_alone() -> None:
    """It goes on by itself; once its client reads again it has all of its bytes, in order."""
    async with serving() as worker:
        await worker.opened()
        slow, others = bytearray(), [bytearray() for _ in range(3)]
        count, size = 400, 20_000
        paused = worker.call(0, slow, count, size)
        calls = [worker.call(n + 1, got, count, size) for n, got in enumerate(others)]
        await until(lambda: worker.framed == 4)
        worker.step.set()
        await until(lambda: len(slow) > size)
        worker.step.clear()
        before = len(slow)
        assert before < count * size / 2
        paused.pause()
        worker.step.set()
        await asyncio.gather(*(call.done for call in calls))
        assert [bytes(got) for got in others] == [whole(n + 1, count, size) for n in range(3)]
        held = len(slow)
        assert held - before < step_frames.OVER_MAX, "some came before it had left"
        assert paused.framed is None, "it has left"
        await asyncio.sleep(0.1)
        assert len(slow) == held, "nothing is read for it"
        assert not paused.done.done()
        paused.resume()
        await paused.done
        assert bytes(slow) == whole(0, count, size)


@pytest.mark.parametrize("lets_leave", [True, False])
async def test_a_client_that_reads_again_before_its_stream_has_left(
    monkeypatch: pytest.MonkeyPatch, lets_leave: bool
) -> None:
    """Whether it leaves after that, or ends in frames."""
    if not lets_leave:
        monkeypatch.setattr(RelayFrames, "send_away", lambda frames, number: None)
    async with serving() as worker:
        await worker.opened()
        got, count = bytearray(), 2_000
        call = worker.call(0, got, count, 50)
        await until(lambda: worker.framed == 1)
        worker.step.set()
        await until(lambda: len(got) > 0)
        worker.step.clear()
        assert worker.framed == 1, "it still runs"
        for _ in range(2):
            call.pause()
            call.resume()
        assert not present(call.framed).resume(), "its own connection is not read yet"
        if lets_leave:
            await until(lambda: worker.framed == 0)
        worker.step.set()
        await call.done
        assert bytes(got) == whole(0, count, 50)


async def test_a_worker_that_does_not_let_a_stream_leave_loses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its relay's memory is bounded all the same."""
    async with serving() as worker:
        await worker.opened()
        monkeypatch.setattr(RelayFrames, "send_away", lambda frames, number: None)
        got = bytearray()
        call = worker.call(0, got, 10_000, 20_000)

        def take(piece: bytes) -> None:
            got.extend(piece)
            call.pause()  # as a client's stream does whenever it is written to

        worker.frames._answers[worker.frames._last]._sink = take
        await until(lambda: worker.framed == 1)
        worker.step.set()
        with pytest.raises(UpstreamError, match="a client that does not read"):
            await call.done
        assert len(got) <= step_frames.OVER_MAX + 2 * 20_100
        await until(lambda: worker.left == [0])


async def test_a_client_that_goes_ends_its_stream_and_no_other() -> None:
    async with serving() as worker:
        await worker.opened()
        got = [bytearray(), bytearray()]
        gone, stays = (worker.call(n, got[n]) for n in range(2))
        await until(lambda: worker.framed == 2)
        gone.close()
        await until(lambda: worker.left == [0])
        await until(lambda: worker.framed == 1)
        worker.step.set()
        await stays.done
        assert bytes(got[1]) == whole(1, 3, 1)
        assert got[0] == b""


async def test_frames_that_break_take_their_streams_along_and_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_frames, "AGAIN_S", 0.05)
    async with serving() as worker:
        await worker.opened()
        got = bytearray()
        calls = [worker.call(n, got) for n in range(3)]
        await until(lambda: worker.framed == 3)
        present(present(present(worker.frames._call).connection).transport).abort()
        for call in calls:
            with pytest.raises(UpstreamError, match="its frames broke"):
                await call.done
        await until(lambda: sorted(worker.left) == [0, 1, 2])
        assert not worker.relays
        worker.step.set()
        alone = worker.call(3, got)
        await alone.done
        assert bytes(got) == whole(3, 3, 1), "meanwhile they come by themselves"
        await worker.opened()
        again = bytearray()
        await worker.call(4, again).done
        assert bytes(again) == whole(4, 3, 1)


async def test_a_relay_that_does_not_read_holds_up_its_own_streams_only() -> None:
    """What waits for it is bounded, and another relay's streams go on."""
    async with serving() as worker:
        size, count = 50_000, 20
        loop = asyncio.get_running_loop()
        own = socket.create_connection(("127.0.0.1", worker.port))
        own.sendall(f"GET {STEP_FRAMES}?relay=deaf HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await until(lambda: "deaf" in worker.relays)
        streams = []
        for n in range(1, count + 1):
            line = f"POST /stream?n={n}&count=1000&size={size} HTTP/1.1"
            each = await loop.run_in_executor(
                None, socket.create_connection, ("127.0.0.1", worker.port)
            )
            each.sendall(
                f"{line}\r\nHost: x\r\n{HEADER}: deaf {n}\r\nContent-Length: 0\r\n\r\n".encode()
            )
            streams.append(each)
        deaf = worker.relays["deaf"]
        await until(lambda: len(deaf.streams) == count)
        worker.step.set()
        await until(lambda: deaf.is_full)
        await asyncio.sleep(0.2)
        assert deaf._size <= relay_frames.WAITING_MAX + 2 * count * (size + 100)
        await worker.opened()
        got = bytearray()
        await worker.call(50, got).done
        assert bytes(got) == whole(50, 3, 1)
        own.close()
        await until(lambda: len(worker.left) == count)
        for each in streams:
            each.close()


async def test_nothing_reaches_the_sink_of_a_call_that_is_closed() -> None:
    """The next attempt may have the same one, and the rest of the frame is still to be read."""
    frames = StepFrames(Upstream("worker", "127.0.0.1", 9))
    got: list[bytes] = []

    def take(piece: bytes) -> None:
        got.append(piece)
        call.close()

    call = Call("worker", (b"",), take)
    frames.follow(call)
    present(call.framed).headed(True)
    frames._take(head(0, 1) + b"a" + head(0, 1) + b"b" + head(0, ENDED))
    assert got == [b"a"]


@pytest.mark.parametrize(
    "named", ["", "deaf", "deaf x", "deaf -1", "deaf 0", "deaf 4294967296", "none 1", "deaf 1 1"]
)
def test_what_names_no_frames_finds_none(named: str) -> None:
    relays: dict[str, Any] = {"deaf": object()}
    assert find(relays, named)[0] is None
    assert find(relays, "deaf 4294967295") == (relays["deaf"], 4294967295)
