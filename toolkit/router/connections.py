"""Clients' connections: how many, and how long each may take to say what it wants.

`Connection` is aiohttp's own handler of a connection with three things added: it is counted when
it opens (`toolkit.router.lobby`) and closed with 503 when there are too many, each head has a time
limit, and what is not HTTP is answered in one line and counted, not logged with its bytes.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiohttp import web, web_protocol

from toolkit.contract.headers import REQUEST_ID
from toolkit.router import request_id, stalls
from toolkit.router.errors import OWN, ApiError
from toolkit.router.lobby import Lobby
from toolkit.router.neighbours import neighbours
from toolkit.router.quiet import log, where
from toolkit.router.stalls import Stalls
from toolkit.router.unserved import answered

READ_BUFFER = 64 * 1024
"""Bytes of a body that aiohttp holds before it stops reading; twice that at most."""
MAX_HEADERS = 100
LINGER_S = 2.0
"""How long what is left of a refused body is read and thrown away, so that the answer arrives."""
LINGER_BYTES = 2**20
"""Of a refused body that are read as fast as they come; then a read every REFUSED_PAUSE_S, or some
clients with large ones would take the loop from everybody."""
REFUSED_PAUSE_S = 0.1
NO_LINGER = struct.pack("ii", 1, 0)
"""A connection so closed is reset, and the kernel lets go of what it holds for it."""

# Pipelined requests that are read while one runs; aiohttp's 32 may hold 4 MiB a connection.
web_protocol.MAX_MSG_QUEUE_SIZE = 2


def _plain(error: ApiError) -> bytes:
    """An answer to what is no request yet."""
    body = error.body(OWN)
    lines = [
        f"HTTP/1.1 {error.status} {error.kind}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in error.headers().items()),
        f"{REQUEST_ID}: {request_id.new()}",
        "Connection: close",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


_FULL = ApiError(503, "The router has too many connections.", retry_after=1)
_LATE = ApiError(408, "The head of the request took too long.")


class Connection(web.RequestHandler):
    """One client's connection. `on_malformed` is told of what is not HTTP."""

    __slots__ = ("_body", "_let_in", "_lobby", "_refused", "_said", "_seen", "_wire")

    def __init__(self, lobby: Lobby, manager: web.Server, **options: Any) -> None:
        super().__init__(
            manager,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            lingering_time=LINGER_S,
            read_bufsize=READ_BUFFER,
            max_headers=MAX_HEADERS,
            auto_decompress=False,
            **options,
        )
        self._lobby = lobby
        self._let_in = False
        self._said = False
        self._seen = 0
        self._refused = -1
        """Bytes that have come since its body was refused; -1: it was not."""
        self._body: Any = None
        self._wire: Any = None
        """Its transport, also while it is being closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = transport
        if not self._lobby.enter(self):
            transport.write(_plain(_FULL))  # type: ignore[attr-defined]
            transport.close()
            return
        self._let_in = True
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._let_in:
            return
        if self._refused >= 0 and self._too_much(len(data)):
            return
        super().data_received(data)
        if self._request_count != self._seen:
            self._seen = self._request_count
            self._said = True
            self._break_off()
            # Here before anybody has taken it off; an empty queue is one that was cleared.
            self._body = self._messages[-1][1] if self._messages else None
            self._lobby.headed(self)
        elif data and (self._body is None or self._body.is_eof()):
            self._said = True
            self._lobby.begun(self)

    def refuse_body(self) -> None:
        """What is still to come of the body is for nobody; the connection closes after LINGER_S."""
        self._refused = max(self._refused, 0)

    def _too_much(self, size: int) -> bool:
        self._refused += size
        if self._refused <= LINGER_BYTES:
            return False
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.pause_reading()
            asyncio.get_running_loop().call_later(REFUSED_PAUSE_S, self._read_on)
        return True

    def _read_on(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def _break_off(self) -> None:
        """Tell who reads a body that its framing is broken: aiohttp only says so to whoever asks
        for the next request, and the body would be waited for until its time is over."""
        if not self._messages or not isinstance(self._messages[-1][0], web_protocol._ErrInfo):
            return
        body = self._body
        if body is not None and not body.is_eof():
            body.set_exception(web.RequestPayloadError("broken framing"))
            body.feed_eof()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._let_in:
            self._lobby.lost(self)
            super().connection_lost(exc)

    @property
    def address(self) -> str:
        """Whose it is, as far as its address tells."""
        peer = self._wire.get_extra_info("peername")
        return neighbours(peer[0]) if peer else ""

    def welcome(self) -> None:
        """A request on it has shown a key."""
        self._lobby.welcome(self)

    def is_stalled(self, known: Stalls, now: float) -> bool:
        waits = stalls.unsent(self._wire)
        return known.look(self, waits, stalls.taken(self._wire) if waits else 0, now)

    def drop(self) -> None:
        """Close it at once, whatever waits to be written, here or in the kernel."""
        sock = self._wire.get_extra_info("socket")
        with suppress(OSError):  # it is closed already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self._wire.abort()
        self.force_close()

    @property
    def idle(self) -> bool:
        """It waits for a request, of which nothing has come, or has not come in time."""
        waiter = self._waiter
        return waiter is not None and not waiter.done() and not self._messages

    def too_late(self) -> None:
        """Its head has taken too long. One that never said a word is closed without one."""
        if not self.idle:
            return
        if self._said and self.transport is not None:
            self.transport.write(_plain(_LATE))
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        name = request_id.enter(request)
        if status < 500:
            self._lobby.malformed.add()
            text = "This is not a well-formed HTTP/1.1 request."
        else:
            log.error("request %s failed: %s", name, "?" if exc is None else where(exc))
            text = "Internal error of the router."
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer has been sent")
        answer = answered(ApiError(status, text), "")
        answer.headers[REQUEST_ID] = name
        answer.force_close()
        return answer

    def log_exception(self, *args: Any, **options: Any) -> None:
        error = options.get("exc_info")
        what = where(error) if isinstance(error, BaseException) else ""
        log.error("a connection failed: %s", what)


def factory(
    lobby: Lobby, manager: web.Server, max_head_kib: int, keepalive_s: float
) -> Callable[[], Connection]:
    """Makes connections of `manager`'s application."""
    size = max_head_kib * 1024

    def make() -> Connection:
        return Connection(
            lobby,
            manager,
            keepalive_timeout=keepalive_s,
            max_line_size=size,
            max_field_size=size,
        )

    return make
