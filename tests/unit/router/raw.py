"""Clients that speak HTTP by hand: unfinished bodies, slow heads, frames that no library sends."""

from __future__ import annotations

import asyncio
from types import TracebackType

PATH = "/v1/completions"


class Raw:
    """`async with Raw(port) as client`."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Raw:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.writer.close()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, size: int | None, *more: str, path: str = PATH) -> None:
        """The head of a POST that announces `size` bytes (None: says nothing of it)."""
        lines = [f"POST {path} HTTP/1.1", "Host: h", "Content-Type: application/json", *more]
        if size is not None:
            lines.append(f"Content-Length: {size}")
        await self.send(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def answer(self, seconds: float = 5.0) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (lower case) and body; status 0 for a connection closed without one."""
        async with asyncio.timeout(seconds):
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return 0, {}, b""
            first, *lines = head.decode().rstrip().split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(first.split()[1]), headers, body

    async def closed(self, seconds: float = 5.0) -> bool:
        async with asyncio.timeout(seconds):
            try:
                return not await self.reader.read()
            except ConnectionResetError:
                return True
