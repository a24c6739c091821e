"""HTTP/1.1 to a worker: raw asyncio protocol, httptools parser, pooled connections.

No task runs per received chunk: `data_received` parses and hands the body to the call's sink.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Protocol
from weakref import WeakSet

import httptools

from toolkit.contract.addresses import host_port
from toolkit.contract.headers import STEP_FRAMES, TO_CLIENT
from toolkit.router import descriptors
from toolkit.router.errors import OutOfResources, Reason, UpstreamError
from toolkit.router.quiet import where
from toolkit.router.time_limit import TimeLimit

HEAD_MAX = 64 * 1024
"""Bytes of an answer's head."""
HEADERS_MAX = 100
INFORMATIONAL_MAX = 16
"""Answers of 1xx before the final one."""
ANSWER_MAX = 128 * 2**20
"""Bytes of an answer that does not stream."""
IDLE_S = 3.0
"""Idle connections older than this are not reused: uvicorn closes them after 5 s."""
IDLE_MAX = 256
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_PASSED = frozenset(name.encode() for name in TO_CLIENT)
_FRAMES = STEP_FRAMES.encode()
_KNOWN_LENGTHS = frozenset(map(len, _FRAMING | _PASSED | {_FRAMES}))
PASSED_MAX = 128
"""Bytes of a header's value that goes on to the client."""

_POOLS: WeakSet[Upstream] = WeakSet()
"""All of this process: what is idle in any of them can be closed when descriptors are short."""

Sink = Callable[[bytes], None]


class Framing(Protocol):
    """How an answer comes whose events may come elsewhere (`toolkit.router.step_frames`)."""

    def headed(self, framed: bool) -> None: ...
    def complete(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> bool: ...


class Call:
    """One request in flight. `done` ends with True, or with UpstreamError. `request` is sent in
    pieces, which calls may share.

    With a `sink`, a 200's body goes there as it arrives; every other body collects in `body`.
    `headers`: those of the answer that go on to a client (`TO_CLIENT`).
    """

    __slots__ = (
        "begun",
        "body",
        "connection",
        "done",
        "framed",
        "headers",
        "heard",
        "request",
        "retriable",
        "sink",
        "status",
        "worker",
    )

    def __init__(self, worker: str, request: tuple[bytes, ...], sink: Sink | None) -> None:
        self.worker = worker
        self.request = request
        self.sink = sink
        self.status = 0
        self.begun = False
        """Something of the answer's body has come."""
        self.heard = 0
        """How often something has come."""
        self.body = bytearray()
        self.headers: dict[str, str] = {}
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_retrieve)
        self.connection: UpstreamConnection | None = None
        self.framed: Framing | None = None
        """While its events come in frames, or may."""
        self.retriable = False

    def pause(self) -> None:
        """Who takes what comes is to be left alone."""
        if self.framed is not None:
            self.framed.pause()
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """It takes more."""
        ready = self.framed is None or self.framed.resume()
        if ready and self.connection is not None:
            self.connection.resume()

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


class TooMuch(Exception):
    """A worker's answer is not one that the router takes; the text is the router's own."""


def _what(error: Exception) -> str:
    """The parser's word on it, without a byte of what came."""
    cause = error.__context__
    if isinstance(cause, TooMuch):
        return str(cause)
    return type(error).__name__


class UpstreamConnection(asyncio.Protocol):
    """One keep-alive connection; at most one call at a time."""

    __slots__ = (
        "_framed",
        "_frames",
        "_head",
        "_headers",
        "_informational",
        "_keep",
        "_parser",
        "_parts",
        "_passed",
        "_started",
        "call",
        "idle_since",
        "pool",
        "reused",
        "transport",
    )

    def __init__(self, pool: Upstream) -> None:
        self.pool = pool
        self.transport: asyncio.Transport | None = None
        self.call: Call | None = None
        self.idle_since = 0.0
        self.reused = False
        self._parts: list[bytes] = []
        self._keep = True
        self._started = False
        self._expect_answer()

    def _expect_answer(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._head = 0
        """Bytes that came before the final answer's head was complete."""
        self._headers = 0
        self._framed = False
        """Its head says where the body ends."""
        self._frames = False
        """It says that its events come in frames."""
        self._informational = 0
        self._passed: dict[str, str] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def send(self, call: Call) -> None:
        self.call = call
        call.connection = self
        call.retriable = self.reused
        self._started = False
        assert self.transport is not None
        if len(call.request) == 1:
            self.transport.write(call.request[0])
        else:
            self.transport.writelines(call.request)

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
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self.call is not None:
                call.close(f"sent something that is not HTTP: {_what(error)}", "lost")
                return
            self._keep = False  # the answer was complete, and something came behind it
        parts = self._parts
        if call.framed is not None and call.status:
            call.framed.headed(self._frames)
            if parts and call.framed is not None:
                call.close("sent a body beside its frames", "lost")
                return
        if parts:
            call.begun = True
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            self._parts = []
            if call.sink is not None and call.status == 200:
                try:
                    call.sink(body)
                except Exception as error:
                    call.close(f"sent what the router cannot read: {where(error)}", "lost")
                    return
            else:
                call.body += body
                if len(call.body) > ANSWER_MAX:
                    call.close(f"sent an answer of more than {ANSWER_MAX >> 20} MiB", "lost")
                    return
        elif not call.status:
            self._head += len(data)
            if self._head > HEAD_MAX:
                call.close(f"sent a head of more than {HEAD_MAX >> 10} KiB", "lost")
                return
        if self.call is None:
            self._finish(call)

    # httptools callbacks
    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        if self._headers > HEADERS_MAX:
            raise TooMuch(f"more than {HEADERS_MAX} headers")
        if len(name) + len(value) > HEAD_MAX:
            raise TooMuch(f"a header of more than {HEAD_MAX >> 10} KiB")
        if len(name) not in _KNOWN_LENGTHS:
            return
        name = name.lower()
        if name in _FRAMING:
            self._framed = True
        elif name == _FRAMES:
            self._frames = True
        elif name in _PASSED and len(value) <= PASSED_MAX and value.isascii():
            text = value.decode()
            if text.isprintable():
                self._passed[name.decode()] = text

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self.call is None:
            raise TooMuch("a second answer")
        if status > 599:
            raise TooMuch(f"status {status}, which HTTP does not have")
        if status >= 200:
            self.call.status = status
            self.call.headers = self._passed
            self._framed = self._framed or status in (204, 304)
            return
        self._informational += 1
        self._headers, self._passed = 0, {}
        self._framed = self._frames = False
        if status == 101:
            raise TooMuch("a change of protocol")
        if self._informational > INFORMATIONAL_MAX:
            raise TooMuch(f"more than {INFORMATIONAL_MAX} answers of 1xx")

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self.call is None or not self.call.status:
            return  # of a 1xx: the final answer is still to come
        self._keep = self._parser.should_keep_alive()
        self.call = None  # `data_received` finishes once the body has been handed on

    def _finish(self, call: Call) -> None:
        if call.connection is not self:  # closed while its last bytes were handed on
            return
        call.connection = None
        if self._keep:
            self._expect_answer()
            self.reused = True
            self.pool.put(self)
        else:
            self.drop()
        if call.framed is not None:
            call.framed.complete()
        elif not call.done.done():
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
        if call.status and not self._framed and exc is None:
            # Without a length the body ends where the connection does.
            if not call.done.done():
                call.done.set_result(True)
            return
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


class Upstream:
    """Connections to one worker. `on_lost` is told when one breaks in the middle of a call.
    `prefix` stands before every path."""

    def __init__(
        self,
        worker: str,
        host: str,
        port: int,
        api_key: str | None = None,
        connect_timeout_s: float = 2.0,
        on_lost: Callable[[], None] = lambda: None,
        prefix: str = "",
    ) -> None:
        self._worker = worker
        self._host = host
        self._port = port
        self._connect_timeout_s = connect_timeout_s
        self._idle: deque[UpstreamConnection] = deque()
        _POOLS.add(self)
        self._connecting: set[asyncio.Task[None]] = set()
        self.on_lost = on_lost
        auth = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._prefix = prefix
        self._common = f" HTTP/1.1\r\nHost: {host_port(host, port)}\r\n{auth}"

    def post(
        self,
        path: str,
        body: bytes | tuple[bytes, ...],
        sink: Sink | None = None,
        headers: str = "",
    ) -> Call:
        """Send a JSON POST, in pieces if `body` is that; `headers` are ready-made
        `Name: value\\r\\n` lines."""
        pieces = body if isinstance(body, tuple) else (body,)
        head = _bytes(
            f"POST {self._prefix}{path}{self._common}{headers}Content-Type: application/json\r\n"
            f"Content-Length: {sum(map(len, pieces))}\r\n\r\n"
        )
        first = head + pieces[0]  # the small ones, mostly all there is
        return self._begin((first, *pieces[1:]), sink)

    def get(self, path: str, sink: Sink | None = None, headers: str = "") -> Call:
        """`headers` as in `post`."""
        head = f"GET {self._prefix}{path}{self._common}{headers}\r\n"
        return self._begin((_bytes(head),), sink)

    def _begin(self, request: tuple[bytes, ...], sink: Sink | None) -> Call:
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
        try:
            connection = await self._open()
        except (OSError, TimeoutError) as error:
            if descriptors.is_ours(error):
                if not call.done.done():
                    call.done.set_exception(OutOfResources(self._worker, str(error)))
                return
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

    async def _open(self) -> UpstreamConnection:
        """A new connection; when descriptors are short, idle ones are closed for it."""
        loop = asyncio.get_running_loop()
        for last in (False, True):
            try:
                async with TimeLimit(self._connect_timeout_s):
                    _, connection = await loop.create_connection(
                        lambda: UpstreamConnection(self), self._host, self._port
                    )
                return connection
            except OSError as error:
                if last or not descriptors.is_ours(error):
                    raise
            for pool in list(_POOLS):
                pool.close_idle()
            await asyncio.sleep(0)  # until they are closed
        raise AssertionError

    def put(self, connection: UpstreamConnection) -> None:
        connection.idle_since = monotonic()
        if len(self._idle) >= IDLE_MAX:
            connection.drop()
        else:
            self._idle.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        try:
            self._idle.remove(connection)
        except ValueError:
            pass  # it was not idle

    def close_idle(self) -> None:
        """Drop what is idle, e.g. because the process behind it is gone."""
        while self._idle:
            self._idle.pop().drop()
