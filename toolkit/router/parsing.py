"""Parsing of bodies: small ones at once, large ones in a process of their own.

A body of 60 MiB takes seconds to parse and to look at, while no stream would get a token. So
whatever may take longer than some 10 ms (`INLINE` bytes, `INLINE_VALUES` JSON values) goes to a
second process, one after the other, and comes back as small objects and packed bytes
(`toolkit.router.parse_job`, `toolkit.router.packed`). That process may take `PARSER_MIB` of memory,
`PARSE_S` for one body, and is started again when it has ended.
"""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import struct
import sys
from typing import Any

from toolkit.router import descriptors, request_view, splitting
from toolkit.router.budget import Charge, values, weight
from toolkit.router.errors import ApiError
from toolkit.router.packed import WORTH, Packed, pack, unpacked
from toolkit.router.quiet import log
from toolkit.router.request import Job

INLINE = 256 * 1024
INLINE_VALUES = 20_000
PARSER_MIB = 1536
PARSE_S = 30.0
PIECE = 256 * 1024
FRAME = struct.Struct("<Q")


class Parser:
    """`parse`, off the loop where it matters."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def parse(self, path: str, chunks: list[bytes], charge: Charge, **known: Any) -> Job:
        """`toolkit.router.splitting.parse` of the chunks, which are taken out of the list.

        Raises:
            ApiError: as `parse`; 413 for what cannot be parsed within the bounds, 503 when there
                is no memory for it now.
        """
        size = sum(map(len, chunks))
        if size < INLINE:
            raw = b"".join(chunks)
            count = values(raw)
            if count < INLINE_VALUES:
                chunks.clear()
                charge.become(weight(raw, count) + size)
                job = splitting.parse(path, raw, **known)
                if size >= WORTH:
                    pack(job)
                    charge.become(charge.bytes + unpacked(job))
                return job
            chunks[:] = [raw]
        async with self._lock:
            work = asyncio.ensure_future(self._ask(path, chunks, charge, known))
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.wait({work})  # half a question would spoil the next one
                raise

    async def _ask(
        self, path: str, chunks: list[bytes], charge: Charge, known: dict[str, Any]
    ) -> Job:
        try:
            async with asyncio.timeout(PARSE_S):
                return await self._exchange(path, chunks, charge, known)
        except ApiError:
            raise
        except (TimeoutError, OSError, EOFError, asyncio.IncompleteReadError) as error:
            log.error("a large body could not be parsed: %s", type(error).__name__)
            await self.stop()
            if descriptors.is_ours(error):
                raise ApiError(
                    503, "The router is out of file descriptors. Try again.", retry_after=2
                ) from error
            raise ApiError(
                413, "The body could not be parsed within the router's bounds of time and memory."
            ) from error
        except BaseException:
            await self.stop()
            raise

    async def _exchange(
        self, path: str, chunks: list[bytes], charge: Charge, known: dict[str, Any]
    ) -> Job:
        process = await self._start()
        to, out = process.stdin, process.stdout
        assert to is not None and out is not None
        head = pickle.dumps((path, known, request_view.SALT))
        size = sum(map(len, chunks))
        to.write(FRAME.pack(len(head)) + head + FRAME.pack(size))
        chunks.reverse()
        while chunks:
            to.write(chunks.pop())
            await to.drain()
        (length,) = FRAME.unpack(await out.readexactly(FRAME.size))
        skeleton = await out.readexactly(length)
        (count,) = FRAME.unpack(await out.readexactly(FRAME.size))
        sizes = struct.unpack(f"<{count}Q", await out.readexactly(8 * count))
        room: ApiError | None = None
        try:
            charge.become(sum(sizes) + 4 * length)
        except ApiError as error:
            room = error
        packed = [Packed(await self._pieces(out, each, keep=room is None)) for each in sizes]
        if room is not None:
            raise room
        job, answer = _Unpickler(io.BytesIO(skeleton), packed).load()
        if job is None:
            raise ApiError(**answer)
        charge.become(charge.bytes + answer)
        return job  # type: ignore[no-any-return]

    async def _pieces(self, out: asyncio.StreamReader, size: int, keep: bool) -> tuple[bytes, ...]:
        pieces = []
        while size:
            piece = await out.readexactly(min(size, PIECE))
            size -= len(piece)
            if keep:
                pieces.append(piece)
        return tuple(pieces)

    async def _start(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "toolkit.router.parse_job",
                str(os.getpid()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=PIECE,
            )
        return self._process

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, packed: list[Packed]) -> None:
        super().__init__(file)
        self._packed = packed

    def persistent_load(self, pid: int) -> Packed:
        return self._packed[pid]
