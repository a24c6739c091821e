"""The client's side of a stream: aiohttp sends the head, then we write to its transport.

Back-pressure: when the client's write buffer is over its high-water mark, every worker
connection that feeds it stops being read until the buffer has drained.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from aiohttp import web

from toolkit.router.first import first_of

_DONE = b"[DONE]\n\n"


class Feed(Protocol):
    """What brings events from a worker, and can be held up."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...


class _Response(web.StreamResponse):
    # The head then leaves in one packet with the first events.
    _send_headers_immediately = False


class ClientStream:
    """An `Output`. Events written before `start` wait for it, the last ones for `finish`.

    So head and first events are one write to the socket, and so are last events and end of body.
    """

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._protocol = request.protocol
        self._response: web.StreamResponse | None = None
        self._transport: asyncio.Transport | None = None
        self._chunked = True
        self._pending: list[bytes] = []
        self._last = b""
        self._feeds: list[Feed] = []
        self._draining: asyncio.Task[None] | None = None
        self._starting: asyncio.Future[None] | None = None
        self._begun: asyncio.Task[None] | None = None

    @property
    def started(self) -> bool:
        return self._starting is not None or self._begun is not None

    def join(self, feed: Feed) -> None:
        self._feeds.append(feed)

    def begin(self) -> None:
        """`start`, and nobody waits for it."""
        if self._starting is None and self._begun is None:
            self._begun = asyncio.get_running_loop().create_task(self._begin())

    async def _begin(self) -> None:
        with suppress(ConnectionError):  # whoever serves the client hears of it, too
            await self.start()

    async def start(self, headers: Mapping[str, str] | None = None) -> None:
        """Send the head (200, text/event-stream, and what a worker's answer had for the client),
        then what is pending. Once."""
        if self._starting is not None:
            await first_of((self._starting,))
            return
        self._starting = asyncio.get_running_loop().create_future()
        try:
            await self._open(headers or {})
        finally:
            self._starting.set_result(None)

    async def _open(self, headers: Mapping[str, str]) -> None:
        response = _Response(
            headers={
                **headers,
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
            }
        )
        self._chunked = self._request.version >= (1, 1)
        if self._chunked:
            response.enable_chunked_encoding()
        await response.prepare(self._request)
        self._response = response
        self._transport = self._request.transport
        pending, self._pending = self._pending, []
        await response.write(b"".join(pending))

    def write(self, events: bytes) -> None:
        transport = self._transport
        if transport is None:
            self._pending.append(events)
            return
        if events[-8:] == _DONE:
            self._last = events
            return
        if self._chunked:
            transport.write(b"%x\r\n%b\r\n" % (len(events), events))
        else:
            transport.write(events)
        if self._protocol.writing_paused:
            self._throttle()

    def _throttle(self) -> None:
        for feed in self._feeds:
            feed.pause()
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        try:
            while self._protocol.writing_paused:
                await self._protocol._drain_helper()
        except ConnectionError:
            return  # the client is gone: its handler is being cancelled
        finally:
            self._draining = None
        for feed in self._feeds:
            feed.resume()

    async def finish(self, events: bytes = b"") -> web.StreamResponse:
        """Last events, then the end of the body."""
        await self.start()
        if self._response is None:
            raise ConnectionResetError("the stream could not be begun")
        await self._response.write_eof(self._last + events)
        return self._response

    def close(self) -> None:
        for task in (self._draining, self._begun):
            if task is not None:
                task.cancel()
        self._feeds.clear()
