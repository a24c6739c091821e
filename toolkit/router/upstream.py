"""HTTP/1.1 to a worker: raw asyncio protocol, httptools parser, pooled connections.

No task runs per received chunk: `data_received` parses and hands the body to the call's sink.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

import httptools

from toolkit.router.errors import Reason, UpstreamError

IDLE_S = 3.0
"""Idle connections older than this are not reused: uvicorn closes them after 5 s."""
IDLE_MAX = 256

Sink = Callable[[bytes], None]


class Call:
    """One request in flight. `done` ends with True, or with UpstreamError.

    With a `sink`, a 200's body goes there as it arrives; every other body collects in `body`.
    """

    __slots__ = (
        "begun",
        "body",
        "connection",
        "done",
        "heard",
        "request",
        "retriable",
        "sink",
        "status",
        "worker",
    )

    def __init__(self, worker: str, request: bytes, sink: Sink | None) -> None:
        self.worker = worker
        self.request = request
        self.sink = sink
        self.status = 0
        self.begun = False
        """Something of the answer's body has come."""
        self.heard = 0
        """How often something has come."""
        self.body = bytearray()
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_retrieve)
        self.connection: Connection | None = None
        self.retriable = False

    @property
    def failed(self) -> bool:
        """True when it ended without a complete answer."""
        return self.done.done() and (self.done.cancelled() or self.done.exception() is not None)

    @property
    def kind(self) -> Reason | None:
        """Why it failed; None when it did not."""
        error = self.done.exception() if self.failed and not self.done.cancelled() else None
        return error.kind if isinstance(error, UpstreamError) else None

    @property
    def answered(self) -> bool:
        return self.done.done() and not self.failed

    def close(self, what: str = "closed by the router", kind: Reason = "closed") -> None:
        """Give up: the worker sees the connection close."""
        connection, self.connection = self.connection, None
        if not self.done.done():
            self.done.set_exception(UpstreamError(self.worker, what, kind))
        if connection is not None:
            connection.drop()


def _retrieve(future: asyncio.Future[bool]) -> None:
    # A failed call that nobody awaits any more must not log "exception was never retrieved".
    if not future.cancelled():
        future.exception()


def _bytes(head: str) -> bytes:
    """As aiohttp decodes it: a client's header goes on byte for byte."""
    return head.encode("utf-8", "surrogateescape")


class Connection(asyncio.Protocol):
    """One keep-alive connection; at most one call at a time."""

    __slots__ = (
        "_keep",
        "_parser",
        "_parts",
        "_started",
        "call",
        "idle_since",
        "pool",
        "reused",
        "transport",
    )

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.transport: asyncio.Transport | None = None
        self.call: Call | None = None
        self.idle_since = 0.0
        self.reused = False
        self._parts: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        self._keep = True
        self._started = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def send(self, call: Call) -> None:
        self.call = call
        call.connection = self
        call.retriable = self.reused
        self._started = False
        assert self.transport is not None
        self.transport.write(call.request)

    def data_received(self, data: bytes) -> None:
        call = self.call
        if call is None:  # bytes that nobody asked for: this connection is of no use
            self.drop()
            return
        self._started = True
        call.retriable = False
        call.heard += 1
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            call.close(f"sent something that is not HTTP: {error}", "lost")
            return
        parts = self._parts
        if parts:
            call.begun = True
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            self._parts = []
            if call.sink is not None and call.status == 200:
                call.sink(body)
            else:
                call.body += body
        if self.call is None:
            self._finish(call)

    # httptools callbacks
    def on_headers_complete(self) -> None:
        assert self.call is not None
        self.call.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self._keep = self._parser.should_keep_alive()
        self.call = None  # `data_received` finishes once the body has been handed on

    def _finish(self, call: Call) -> None:
        if call.connection is not self:  # closed while its last bytes were handed on
            return
        call.connection = None
        if self._keep:
            self._parser = httptools.HttpResponseParser(self)
            self.reused = True
            self.pool.put(self)
        else:
            self.drop()
        if not call.done.done():
            call.done.set_result(True)

    def pause(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.pool.forget(self)
        call, self.call = self.call, None
        if call is None or call.connection is not self:
            return
        call.connection = None
        if call.retriable and not self._started and not call.done.done():
            # The worker closed an idle connection just as we reused it; it saw nothing.
            self.pool.start(call, fresh=True)
            return
        if not call.done.done():
            call.done.set_exception(
                UpstreamError(call.worker, f"connection lost ({exc or 'closed by the worker'})")
            )
            self.pool.on_lost()

    def drop(self) -> None:
        self.call = None
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.abort()


class Pool:
    """Connections to one worker. `on_lost` is told when one breaks in the middle of a call."""

    def __init__(
        self,
        worker: str,
        host: str,
        port: int,
        api_key: str | None = None,
        connect_timeout_s: float = 2.0,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._worker = worker
        self._host = host
        self._port = port
        self._connect_timeout_s = connect_timeout_s
        self._idle: deque[Connection] = deque()
        self._connecting: set[asyncio.Task[None]] = set()
        self.on_lost = on_lost
        auth = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._common = f" HTTP/1.1\r\nHost: {address}\r\n{auth}"

    def post(self, path: str, body: bytes, sink: Sink | None = None, headers: str = "") -> Call:
        """Send a JSON POST; `headers` are ready-made `Name: value\\r\\n` lines."""
        head = (
            f"POST {path}{self._common}{headers}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return self._begin(_bytes(head) + body, sink)

    def get(self, path: str, sink: Sink | None = None) -> Call:
        return self._begin(_bytes(f"GET {path}{self._common}\r\n"), sink)

    def _begin(self, request: bytes, sink: Sink | None) -> Call:
        call = Call(self._worker, request, sink)
        self.start(call)
        return call

    def start(self, call: Call, fresh: bool = False) -> None:
        now = monotonic()
        while self._idle and not fresh:
            connection = self._idle.pop()
            transport = connection.transport
            if transport is None or transport.is_closing():
                continue
            if now - connection.idle_since > IDLE_S:
                connection.drop()
                continue
            connection.send(call)
            return
        task = asyncio.get_running_loop().create_task(self._connect(call, fresh))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, call: Call, fresh: bool) -> None:
        """`fresh`: it was sent on an idle connection that then broke, so it may have been seen."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(self), self._host, self._port
                )
        except (OSError, TimeoutError) as error:
            if not call.done.done():
                why = f"cannot connect ({error})"
                kind: Reason = "lost" if fresh else "unreached"
                call.done.set_exception(UpstreamError(self._worker, why, kind))
                self.on_lost()
            return
        if call.done.done():  # given up while connecting
            connection.drop()
            return
        connection.send(call)

    def put(self, connection: Connection) -> None:
        connection.idle_since = monotonic()
        if len(self._idle) >= IDLE_MAX:
            connection.drop()
        else:
            self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        try:
            self._idle.remove(connection)
        except ValueError:
            pass  # it was not idle

    def close_idle(self) -> None:
        """Drop what is idle, e.g. because the process behind it is gone."""
        while self._idle:
            self._idle.pop().drop()
