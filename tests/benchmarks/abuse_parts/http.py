"""A raw HTTP client for `abuse`: what goes out are bytes, what comes back is looked at strictly."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import httptools

HANG_S = 5.0
"""Who has no answer by then hangs."""


@dataclass
class Outcome:
    """Of one connection. `answers`: (status, body) of each final answer that came whole."""

    answers: list[tuple[int, bytes]] = field(default_factory=list)
    closed: bool = False
    garbled: bool = False
    """What came back is no HTTP."""
    hung: bool = False
    refused: bool = False
    """There was nobody to connect to."""
    seconds: float = 0.0

    @property
    def failures(self) -> int:
        """Answers of 500, those inside a stream included."""
        return sum(
            status == 500 or (status == 200 and b'"code":500' in body.replace(b" ", b""))
            for status, body in self.answers
        )

    @property
    def internal(self) -> int:
        """Of those, the ones that are an unexpected error of the router itself."""
        return sum(b"Internal error of the router" in body for _, body in self.answers)


class _Client(asyncio.Protocol):
    def __init__(self, wanted: int) -> None:
        self.outcome = Outcome()
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None
        self._wanted = wanted
        self._body = bytearray()
        self._headers = False
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._finish()
        except httptools.HttpParserError:
            self.outcome.garbled = True
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self.outcome.closed = True
        if self._headers and not self._framed:  # a body that ends with its connection
            self.on_message_complete()
        self._finish()

    # httptools callbacks
    def on_message_begin(self) -> None:
        self._body = bytearray()
        self._headers = self._framed = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._framed = self._framed or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self._headers = True

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        self._headers = False
        if status < 200:
            return
        self.outcome.answers.append((status, bytes(self._body)))
        if len(self.outcome.answers) >= self._wanted:
            self._finish()

    def _finish(self) -> None:
        if not self.end.done():
            self.end.set_result(None)


async def exchange(
    port: int, pieces: Sequence[bytes | float], answers: int = 1, limit_s: float = HANG_S
) -> Outcome:
    """Write the pieces (a number is a pause in seconds), then wait until so many answers have come
    or the other side has closed, at most `limit_s`; with no answers wanted, close at once."""
    loop = asyncio.get_running_loop()
    began = perf_counter()
    try:
        _, client = await loop.create_connection(lambda: _Client(answers), "127.0.0.1", port)
    except OSError:
        return Outcome(refused=True)
    transport = client.transport
    assert transport is not None
    for piece in pieces:
        if isinstance(piece, float):
            await asyncio.sleep(piece)
        elif not transport.is_closing():
            transport.write(piece)
    if answers:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await asyncio.shield(client.end)
        client.outcome.hung = not client.end.done()
        transport.abort()
    else:
        transport.close()
    client.outcome.seconds = perf_counter() - began
    return client.outcome


def head(path: str, *lines: str, host: str = "abuse", method: str = "POST") -> bytes:
    """A request's head, with its lines as they are."""
    text = "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", *lines])
    return text.encode("utf-8", "surrogateescape") + b"\r\n\r\n"
