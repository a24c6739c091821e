"""Reading a client's body: only when it may come in, within its bounds, and at a pace.

`refuse` looks at the head alone; `read` then takes the body chunk by chunk, each charged to the
request's `Charge` before the next is read. So a request that is refused costs its head.

What a head must not say: a `Transfer-Encoding` other than `chunked` (501), a `Content-Encoding`
(415, but gzip with `accept_gzip`), a `Content-Length` above `max_body_mib` (413).
A body must keep a pace: `body_pace_kib` KiB a second, averaged over windows of `body_window_s`, and
be here within `body_timeout_s`; else 408. Either way the connection closes: what is still to come
of the body is not a request, and little of it is read (`connections.LINGER_BYTES`).

Large bodies together are read at `budget.LARGE_PER_S`, and their clients' time stands still while
they wait for their turn: streams go on beside them.
"""

from __future__ import annotations

import asyncio
import zlib
from time import monotonic

from aiohttp import StreamReader, web

from toolkit.router.budget import MIB, Charge
from toolkit.router.errors import ApiError
from toolkit.router.time_limit import HELD_UP_S, TimeLimit
from toolkit.settings.router.config import RouterConfig

ORDER = 64 * 1024
"""The largest body of an endpoint that only tells the router something: it is read on the loop."""
INFLATE_STEP = 256 * 1024
"""Bytes that are decompressed at a time; the loop turns in between."""
CHUNK = 64 * 1024
"""Smaller pieces are put together: a body that comes byte by byte must not be a list of bytes."""


def refuse(request: web.Request, config: RouterConfig, limit: int) -> None:
    """Raise ApiError for a head whose body (of at most `limit` bytes) will not be read."""
    headers = request.headers
    coding = headers.get("Transfer-Encoding")
    if coding is not None and coding.strip().lower() != "chunked":
        raise ApiError(
            501, "The only Transfer-Encoding that the router takes is exactly 'chunked'."
        )
    packed = _packed(request)
    if packed not in ("identity", "gzip" if config.accept_gzip else "identity"):
        takes = "gzip or none" if config.accept_gzip else "none: send the body as it is"
        raise ApiError(415, f"This Content-Encoding is not taken; the router takes {takes}.")
    if (request.content_length or 0) > limit:
        raise too_large(limit)


def _packed(request: web.Request) -> str:
    return request.headers.get("Content-Encoding", "identity").strip().lower()


def too_large(limit: int) -> ApiError:
    return ApiError(
        413, f"The body is larger than {limit / MIB:g} MiB, which is the most that is taken."
    )


async def read(
    request: web.Request, config: RouterConfig, charge: Charge, limit: int
) -> list[bytes]:
    """The body in chunks, decompressed.

    Raises:
        ApiError: 408 too slow, 413 too large, 503 no room for it, 400 not the gzip that it says.
    """
    content = request.content
    gzip = _packed(request) == "gzip"
    if not gzip and content.is_eof():
        _check_whole(content)
        data = content.read_nowait()
        if len(data) > limit:
            raise too_large(limit)
        charge.grow(len(data))
        return [data]
    _go_on(request)
    body = _Gzip(limit) if gzip else _Plain(limit)
    if content.is_eof():  # all of it is here, as of almost every request
        _check_whole(content)
        await body.take(content.read_nowait(), charge)
        return body.end()
    begin = monotonic()
    end = begin + config.body_timeout_s
    opened, came = begin, 0
    while not content.at_eof():
        until = min(opened + config.body_window_s, end)
        try:
            async with TimeLimit(max(0.0, until - monotonic())):
                data = await content.readany()
        except TimeoutError:
            data = b""
        except web.RequestPayloadError as error:
            raise _broken() from error
        came += len(data)
        now = monotonic()
        if now - until > HELD_UP_S:  # by us: more of it may lie unread
            opened, end, came = now, end + now - until, 0
        if now >= end and not content.at_eof():
            raise _slow(f"The body was not here within {config.body_timeout_s:g} s.")
        if now >= opened + config.body_window_s:
            if came < config.body_pace_kib * 1024 * config.body_window_s:
                raise _slow(f"The body comes slower than {config.body_pace_kib:g} KiB/s.")
            opened, came = now, 0
        await body.take(data, charge)
        pause = charge.pause_s(len(data), now)
        if pause > 0 and not content.at_eof():
            await asyncio.sleep(pause)
            opened, end = opened + pause, end + pause  # not the client's slowness
    _check_whole(content)
    return body.end()


def _check_whole(content: StreamReader) -> None:
    """Raise ApiError for a body that ended because its framing broke."""
    if content.exception() is not None:
        raise _broken()


def _broken() -> ApiError:
    return ApiError(400, "The body's framing is not HTTP/1.1.")


def _slow(message: str) -> ApiError:
    return ApiError(408, message)


def _go_on(request: web.Request) -> None:
    """Tell a client that asked (`Expect: 100-continue`) to send its body."""
    if "Expect" in request.headers and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


async def expect(request: web.Request) -> None:
    """aiohttp's hook for `Expect`: nothing yet, `read` answers it once the request may come in."""
    if request.headers["Expect"].strip().lower() != "100-continue":
        raise web.HTTPExpectationFailed(text="The only Expect is 100-continue.")


class _Plain:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._chunks: list[bytes] = []
        self._open = bytearray()

    async def take(self, data: bytes, charge: Charge) -> None:
        self._keep(data, charge)

    def _keep(self, data: bytes, charge: Charge) -> None:
        if not data:
            return
        self._size += len(data)
        if self._size > self._limit:
            raise too_large(self._limit)
        charge.grow(len(data))
        if not self._open and len(data) >= CHUNK:
            self._chunks.append(data)
            return
        self._open += data
        if len(self._open) >= CHUNK:
            self._close()

    def _close(self) -> None:
        self._chunks.append(bytes(self._open))
        self._open = bytearray()

    def end(self) -> list[bytes]:
        if self._open or not self._chunks:
            self._close()
        return self._chunks


class _Gzip(_Plain):
    """The limit is that of what comes out."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)

    async def take(self, data: bytes, charge: Charge) -> None:
        while data:
            try:
                out = self._inflate.decompress(data, INFLATE_STEP)
            except zlib.error as error:
                raise ApiError(400, "The body is not the gzip that it says.") from error
            if self._inflate.unused_data:
                raise ApiError(400, "Something follows the end of the gzip body.")
            data = self._inflate.unconsumed_tail
            self._keep(out, charge)
            if data:
                await asyncio.sleep(0)

    def end(self) -> list[bytes]:
        if not self._inflate.eof:
            raise ApiError(400, "The gzip body ends too early.")
        return super().end()
