"""The streams of a worker that come on one connection (`toolkit.contract.step_frames`).

One read then brings the events of all streams of a step. Each request keeps a connection of its
own beside that: its answer's head and end come there, and when either side closes it, the request
is over. A client that is slow to read must not hold up the others, so its stream leaves the frames:
the worker is told, and the rest comes on the stream's own connection, which is not read meanwhile.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from contextlib import suppress
from time import monotonic

from toolkit.contract import step_frames
from toolkit.contract.headers import STEP_FRAMES
from toolkit.contract.paths import STEP_FRAMES as PATH
from toolkit.router.quiet import where
from toolkit.router.upstream import Call, Upstream

AGAIN_S = 1.0
"""Frames that broke, or could not be had, are asked for again so much later."""
ORDER_S = 5.0
"""For the order that a stream leaves them."""
OVER_MAX = 2**20
"""Bytes for a client that does not read which may still come in frames until its stream has left
them."""
KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3))
"""Seconds, and tries: an idle connection whose other end is gone without a word is noticed."""


class FramedAnswer:
    """The answer of one call, whose events come in frames once its head says so."""

    __slots__ = ("_complete", "_ended", "_frames", "_headed", "_over", "_paused", "_sink",
                 "_waiting", "call", "number")  # fmt: skip

    def __init__(self, frames: StepFrames, call: Call, number: int) -> None:
        self._frames = frames
        self.call = call
        self.number = number
        assert call.sink is not None
        self._sink = call.sink
        self._headed = False
        self._waiting: list[bytes] = []
        """Pieces that came before the head."""
        self._ended = False
        """Its last piece has come."""
        self._complete = False
        """Its own connection has had the end of the answer."""
        self._paused = False
        self._over = 0

    def headed(self, framed: bool) -> None:
        """The head of the answer is there; `framed`: its events come in frames."""
        if self._headed:
            return
        self._headed = True
        if not framed:
            self._leave()
            return
        if self._paused:
            self._frames.send_away(self.number)
        waiting, self._waiting = self._waiting, []
        for piece in waiting:
            self.take(piece)

    def take(self, piece: bytes) -> None:
        """Events of this stream."""
        call = self.call
        if call.done.done():  # it was closed, and others may run with this sink
            return
        call.heard += 1
        if (self._paused or not self._headed) and self._holds_back(piece):
            return
        call.begun = True
        try:
            self._sink(piece)
        except Exception as error:
            call.close(f"sent what the router cannot read: {where(error)}", "lost")

    def _holds_back(self, piece: bytes) -> bool:
        """A piece that comes before the head waits for it; of what a client that does not read
        still gets there is a bound."""
        if self._over > OVER_MAX:
            self.call.close("goes on with frames for a client that does not read", "lost")
            return True
        self._over += len(piece)
        if not self._headed:
            self._waiting.append(piece)
        return not self._headed

    def mark(self, mark: int) -> None:
        """What the worker says of this stream."""
        if mark == step_frames.BY_ITSELF:
            self._leave()
        else:
            self._ended = True
            self._finish()
        if not self._paused:
            self.call.resume()

    def complete(self) -> None:
        """The end of the answer has come on its own connection."""
        self._complete = True
        self._finish()

    def _finish(self) -> None:
        if self._complete and self._ended and not self.call.done.done():
            self.call.done.set_result(True)

    def _leave(self) -> None:
        self.call.framed = None
        self._frames.leave(self.number)

    def pause(self) -> None:
        """Its client is slow to read; said again with each event that it gets all the same."""
        if self._paused:
            return
        self._paused, self._over = True, 0
        if self._headed and not self._ended:
            self._frames.send_away(self.number)

    def resume(self) -> bool:
        """Whether its own connection may be read: not before the last piece has come in frames."""
        self._paused = False
        return self._ended


class StepFrames:
    """Those of one worker for this process. They are asked for when a first stream could use them;
    until they are there, streams come as the bodies of their answers."""

    def __init__(self, pool: Upstream) -> None:
        self._pool = pool
        self._relay = ""
        self._call: Call | None = None
        self._is_open = False
        self._pieces = step_frames.Pieces()
        self._answers: dict[int, FramedAnswer] = {}
        self._last = step_frames.NOBODY
        """The newest stream's number; none is used again."""
        self._not_before = 0.0

    def header(self) -> str:
        """The line for a new stream, which `follow` is told of next; empty: they are not there."""
        if not self._is_open:
            self._ask()
            return ""
        self._last += 1
        return f"{STEP_FRAMES}: {self._relay} {self._last}\r\n"

    def follow(self, call: Call) -> None:
        """The call that has been posted with the newest header."""
        number = self._last
        answer = self._answers[number] = call.framed = FramedAnswer(self, call, number)
        call.done.add_done_callback(lambda _: self._answers.pop(answer.number, None))

    def leave(self, number: int) -> None:
        """Nothing more comes of this stream here."""
        self._answers.pop(number, None)

    def send_away(self, number: int) -> None:
        """Have the worker go on with this stream on its own connection."""
        call = self._pool.post(PATH, f"{self._relay} {number}".encode())
        asyncio.get_running_loop().call_later(ORDER_S, call.close)

    def drop(self) -> None:
        """The worker is given up."""
        if self._call is not None:
            self._call.close()

    def _ask(self) -> None:
        now = monotonic()
        if self._call is not None or now < self._not_before:
            return
        self._not_before = now + AGAIN_S
        self._relay = secrets.token_hex(8)
        self._pieces = step_frames.Pieces()
        self._call = self._pool.get(f"{PATH}?relay={self._relay}", self._take)
        self._call.done.add_done_callback(self._lost)

    def _take(self, data: bytes) -> None:
        answers = self._answers
        for number, piece in self._pieces.read(data):
            answer = answers.get(number)
            if answer is None:  # it is over here; or the first word
                self._is_open = self._is_open or self._opened()
            elif isinstance(piece, int):
                answer.mark(piece)
            else:
                answer.take(piece)

    def _opened(self) -> bool:
        connection = self._call.connection if self._call is not None else None
        if connection is not None and connection.transport is not None:
            own = connection.transport.get_extra_info("socket")
            with suppress(OSError):
                own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in KEEPALIVE:
                    own.setsockopt(socket.IPPROTO_TCP, option, value)
        return True

    def _lost(self, _: object) -> None:
        self._call, self._is_open = None, False
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer.call.close("connection lost (its frames broke)", "lost")
