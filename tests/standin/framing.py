"""How a stand-in worker puts its streams into frames, as `patches.streams.step_frames` does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from toolkit.contract import headers, step_frames

if TYPE_CHECKING:
    from tests.standin.worker import Protocol


class Frames:
    """Those of one worker: a connection for each relay, and the streams that go there."""

    def __init__(self) -> None:
        self._relays: dict[str, Protocol] = {}
        self._waiting: dict[Protocol, list[bytes]] = {}
        self._streams: dict[Protocol, tuple[str, int]] = {}
        self.framed = 0
        """Streams that went into frames so far."""
        self.sent_away = 0
        """Of them, those that left them."""

    def open(self, relay: str, protocol: Protocol) -> None:
        """The connection of a relay."""
        self._relays[relay] = protocol
        self._put(protocol, step_frames.head(step_frames.NOBODY, step_frames.ENDED))

    def closed(self, protocol: Protocol) -> None:
        """A connection is gone: of a relay's frames, then all streams in them end; or of one."""
        self._streams.pop(protocol, None)
        for relay in [name for name, own in self._relays.items() if own is protocol]:
            del self._relays[relay]
            for stream in [each for each, at in self._streams.items() if at[0] == relay]:
                stream.transport.abort()

    def begin(self, protocol: Protocol) -> bool:
        """Whether what this stream says goes into frames."""
        relay, _, number = protocol.head.get(headers.STEP_FRAMES, "").partition(" ")
        if relay not in self._relays:
            return False
        self._streams[protocol] = (relay, int(number))
        self.framed += 1
        return True

    def say(self, protocol: Protocol, data: bytes) -> bool:
        """False: it is to go on by itself."""
        if protocol not in self._streams:
            return False
        relay, number = self._streams[protocol]
        if relay in self._relays:
            self._put(self._relays[relay], step_frames.head(number, len(data)) + data)
        return True

    def end(self, protocol: Protocol) -> None:
        """The stream is complete."""
        self._mark(protocol, step_frames.ENDED)

    def send_away(self, order: str) -> None:
        """A stream is to go on by itself."""
        relay, _, number = order.partition(" ")
        for protocol, at in list(self._streams.items()):
            if at == (relay, int(number)):
                self.sent_away += 1
                self._mark(protocol, step_frames.BY_ITSELF)

    def _mark(self, protocol: Protocol, mark: int) -> None:
        relay, number = self._streams.pop(protocol, ("", 0))
        if relay in self._relays:
            self._put(self._relays[relay], step_frames.head(number, mark))

    def _put(self, protocol: Protocol, piece: bytes) -> None:
        """All of a turn of the loop is one chunk."""
        if protocol not in self._waiting:
            self._waiting[protocol] = []
            asyncio.get_running_loop().call_soon(self._flush, protocol)
        self._waiting[protocol].append(piece)

    def _flush(self, protocol: Protocol) -> None:
        protocol.chunk(b"".join(self._waiting.pop(protocol)))
