"""A Unix socket between a relay and the decider process: messages in batches, each frame once and
in its turn.

What is said in one turn of the event loop goes out as one frame: four bytes of length, then its
number and its messages. A frame that comes twice is passed over. Where one is missing, or cannot be
read, the link breaks: who rejoins tells everything anew.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import msgspec

from toolkit.router.quiet import where

if TYPE_CHECKING:
    from toolkit.router.processes.wire import DeciderFrame, RelayFrame

log = logging.getLogger("toolkit.router")

LENGTH = 4
MOST = 64 * 2**20
"""Bytes of a frame: the answers to questions are the largest ones."""

Message = TypeVar("Message", contravariant=True)


class LinkUser(Protocol[Message]):
    """Who is at one end."""

    def linked(self, link: ProcessLink[Any]) -> None:
        """The other end is there."""
        ...

    def take(self, link: ProcessLink[Any], message: Message) -> None:
        """What it says."""
        ...

    def lost(self, link: ProcessLink[Any]) -> None:
        """It is gone."""
        ...


class ProcessLink(asyncio.Protocol, Generic[Message]):
    """One end. `frames`: of what the other end says."""

    def __init__(
        self, frames: type[RelayFrame] | type[DeciderFrame], user: LinkUser[Message]
    ) -> None:
        self._frames: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(frames)
        self._encoder = msgspec.msgpack.Encoder()
        self._user = user
        self._transport: asyncio.Transport | None = None
        self._came = bytearray()
        self._serial = self._sent = 0
        """Of the last frame that came, and of the last one that went."""
        self._out: list[Any] = []
        self._flushing = False

    def send(self, message: Any) -> None:
        """With the next frame; nowhere if the other end is gone."""
        self._out.append(message)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write what is to be said."""
        self._flushing = False
        out, self._out = self._out, []
        if not out or self._transport is None or self._transport.is_closing():
            return
        self._sent += 1
        frame = self._encoder.encode((self._sent, out))
        self._transport.write(len(frame).to_bytes(LENGTH, "little") + frame)

    @property
    def unsent(self) -> int:
        """Bytes that the other end has not taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Break it."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._user.linked(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._user.lost(self)

    def data_received(self, data: bytes) -> None:
        came = self._came
        came += data
        at = 0
        while len(came) - at >= LENGTH:
            length = int.from_bytes(came[at : at + LENGTH], "little")
            if length > MOST:
                log.error("a frame of %d bytes is too long", length)
                self.close()
                return
            if len(came) - at - LENGTH < length:
                break
            frame = bytes(came[at + LENGTH : at + LENGTH + length])
            at += LENGTH + length
            if not self._take(frame):
                self.close()
                return
        del came[:at]

    def _take(self, raw: bytes) -> bool:
        """Whether the link can go on."""
        try:
            frame = self._frames.decode(raw)
        except msgspec.DecodeError as error:
            log.error("a frame of another process of this router: %s", where(error))
            return False
        if frame.serial <= self._serial:
            return True
        if frame.serial > self._serial + 1:
            log.error("frames %d to %d are missing", self._serial + 1, frame.serial - 1)
            return False
        self._serial = frame.serial
        for message in frame.messages:
            try:
                self._user.take(self, message)
            except Exception as error:  # of one request or worker: the others go on
                log.error("%s: %s", type(message).__name__, where(error))
        return True
