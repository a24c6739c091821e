"""Streams that leave a worker in the frames of a relay (`patches.streams.step_frames`)."""

import asyncio

from starlette.responses import Response

from patches.sglang_types import App, Message, Receive, Scope, Send
from toolkit.contract import step_frames
from toolkit.contract.headers import STEP_FRAMES as HEADER

WAITING_MAX = 2**20
"""Bytes that wait for a relay to read; then its streams wait, too."""
HEADERS = [(b"content-type", b"application/octet-stream")]
_HEADER = HEADER.encode()
_EVENTS = b"text/event-stream"


class RelayFrames:
    """What one relay's streams say, until the next turn of the loop."""

    def __init__(self) -> None:
        self.streams: dict[int, FramedStream] = {}
        self.taken_in = self.sent_away = 0
        """Streams that went into them so far, and of these the ones that had to leave."""
        self.is_closed = False
        self._parts: list[bytes] = []
        self._size = 0
        """Bytes that the server has not taken yet."""
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self.mark(step_frames.NOBODY, step_frames.ENDED)

    def put(self, number: int, piece: bytes) -> None:
        """A stream says something."""
        if len(piece) > step_frames.PIECE_MAX:
            for at in range(0, len(piece), step_frames.PIECE_MAX):
                self.put(number, piece[at : at + step_frames.PIECE_MAX])
            return
        if not self._parts:
            self._wake.set()
        self._parts.append(step_frames.head(number, len(piece)))
        self._parts.append(piece)
        self._size += len(piece) + step_frames.HEAD_BYTES
        if self._size > WAITING_MAX:
            self._room.clear()

    def mark(self, number: int, mark: int) -> None:
        """Something is said of a stream."""
        if not self._parts:
            self._wake.set()
        self._parts.append(step_frames.head(number, mark))
        self._size += step_frames.HEAD_BYTES

    @property
    def is_full(self) -> bool:
        """Whoever has said something is to wait for `room`."""
        return self._size > WAITING_MAX

    async def room(self) -> None:
        await self._room.wait()

    async def write(self, send: Send) -> None:
        """Until cancelled: a frame for each turn in which something was said."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            parts, self._parts = self._parts, []
            frame = b"".join(parts)
            await send({"type": "http.response.body", "body": frame, "more_body": True})
            self._size -= len(frame)
            if not self.is_full:
                self._room.set()

    def send_away(self, number: int) -> None:
        """The rest of a stream goes to its own connection."""
        stream = self.streams.pop(number, None)
        if stream is not None:
            stream.in_frames = False
            self.sent_away += 1
            self.mark(number, step_frames.BY_ITSELF)

    def describe(self) -> dict[str, int]:
        """Streams in them now, and so far."""
        now, so_far = len(self.streams), self.taken_in
        return {"streams": now, "framed": so_far, "sent_away": self.sent_away}

    def close(self) -> None:
        """The relay has gone: nobody would hear the rest of these streams."""
        self.is_closed = True
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            stream.cut()
        self._size = 0
        self._room.set()


class FramedStream:
    """One answer of a request that named a relay's frames. `exchange`: the server's own object of
    the request."""

    def __init__(self, frames: RelayFrames, number: int, send: Send, exchange: object) -> None:
        self._frames = frames
        self._number = number
        self._send = send
        self._exchange = exchange
        self.in_frames = False
        """Whether its body goes into frames now."""

    async def send(self, message: Message) -> None:
        """ASGI."""
        if not self.in_frames:
            if message["type"] == "http.response.start":
                message = self._begin(message)
            await self._send(message)
            return
        frames = self._frames
        if self._exchange.disconnected:  # type: ignore[attr-defined]
            return
        body = message.get("body")
        if body:
            frames.put(self._number, body)
        if message.get("more_body"):
            if frames.is_full:
                await frames.room()
            return
        self.over()
        frames.mark(self._number, step_frames.ENDED)
        await self._send({"type": "http.response.body", "body": b""})

    def _begin(self, message: Message) -> Message:
        headers = list(message.get("headers", ()))
        kind = next((value for name, value in headers if name.lower() == b"content-type"), b"")
        if message["status"] != 200 or not kind.startswith(_EVENTS) or self._frames.is_closed:
            return message
        self.in_frames = True
        self._frames.streams[self._number] = self
        self._frames.taken_in += 1
        return {**message, "headers": [*headers, (_HEADER, b"1")]}

    def over(self) -> None:
        """Nothing more of it goes into frames."""
        if self.in_frames:
            self.in_frames = False
            self._frames.streams.pop(self._number, None)

    def cut(self) -> None:
        """End its connection in the middle, as if the client had."""
        self._exchange.transport.close()  # type: ignore[attr-defined]


class FramedApp:
    """ASGI application, around all others: puts streams into the frames of the relays that asked
    for that."""

    def __init__(self, app: App, relays: dict[str, RelayFrames]) -> None:
        self._app = app
        self._relays = relays

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = None
        if scope["type"] == "http":
            named = next((value for name, value in scope["headers"] if name == _HEADER), None)
        exchange = getattr(send, "__self__", None)
        if named is None or not hasattr(exchange, "disconnected"):
            await self._app(scope, receive, send)
            return
        frames, number = find(self._relays, named.decode("latin-1"))
        if frames is None or number in frames.streams:
            await self._app(scope, receive, send)
            return
        stream = FramedStream(frames, number, send, exchange)
        try:
            await self._app(scope, receive, stream.send)
        finally:
            stream.over()


def find(relays: dict[str, RelayFrames], name: str) -> tuple[RelayFrames | None, int]:
    """The frames and the number that a header, or an order, names; None: there are none."""
    relay, _, number = name.partition(" ")
    good = number.isascii() and number.isdigit() and 0 < int(number[:11]) <= step_frames.NUMBER_MAX
    return (relays.get(relay), int(number)) if good else (None, 0)


class FramesResponse(Response):  # type: ignore[misc]
    """A relay's frames, until it goes."""

    def __init__(self, relays: dict[str, RelayFrames], name: str) -> None:
        super().__init__()
        self._relays = relays
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        frames = self._relays[self._name] = RelayFrames()
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        writing = asyncio.get_running_loop().create_task(frames.write(send))
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            del self._relays[self._name]
            writing.cancel()
            frames.close()
