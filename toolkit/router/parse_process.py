"""Parsing processes, as the router sees them: one is forked, asked, and ended."""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import signal
import socket
import struct
from contextlib import suppress
from typing import Any

from toolkit.router import parse_server
from toolkit.router.budget import Charge
from toolkit.router.errors import ApiError
from toolkit.router.packed import Packed
from toolkit.router.parse_job import FRAME
from toolkit.router.request import Job

PIECE = 256 * 1024
ENDED_S = 2.0
"""How long its server may take to tell how a process ended."""


class Ended(Exception):
    """The process is no more. `code`: its return code, negative for a signal; None: unknown."""

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code


class ParseProcess:
    """One parsing process."""

    def __init__(
        self,
        pid: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        code: asyncio.Future[int],
    ) -> None:
        self.pid = pid
        self._reader = reader
        self._writer = writer
        self._code = code

    @property
    def alive(self) -> bool:
        """As far as its server has told."""
        return not self._code.done()

    async def ask(self, known: tuple[Any, ...], chunks: list[bytes], charge: Charge) -> Job:
        """What comes of the chunks, which are taken out of the list.

        Raises:
            ApiError: what it answers, or 503 when there is no memory for the answer now.
            Ended: it ended instead.
        """
        try:
            return await self._exchange(known, chunks, charge)
        except (EOFError, ConnectionError, asyncio.IncompleteReadError) as error:
            code = None
            with suppress(TimeoutError):
                async with asyncio.timeout(ENDED_S):
                    code = await asyncio.shield(self._code)
            raise Ended(code) from error

    async def _exchange(self, known: tuple[Any, ...], chunks: list[bytes], charge: Charge) -> Job:
        to, out = self._writer, self._reader
        head = pickle.dumps(known)
        to.write(FRAME.pack(len(head)) + head + FRAME.pack(sum(map(len, chunks))))
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
        packed = [Packed(await self._pieces(each, keep=room is None)) for each in sizes]
        if room is not None:
            raise room
        job, answer = _Unpickler(io.BytesIO(skeleton), packed).load()
        if job is None:
            raise ApiError(**answer)
        charge.become(charge.bytes + answer)
        return job  # type: ignore[no-any-return]

    async def _pieces(self, size: int, keep: bool) -> tuple[bytes, ...]:
        pieces = []
        while size:
            piece = await self._reader.readexactly(min(size, PIECE))
            size -= len(piece)
            if keep:
                pieces.append(piece)
        return tuple(pieces)

    def end(self) -> None:
        """Now, whatever it does."""
        self._writer.close()
        if not self._code.done():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, packed: list[Packed]) -> None:
        super().__init__(file)
        self._packed = packed

    def persistent_load(self, pid: int) -> Packed:
        return self._packed[pid]


class ParseServer:
    """The process that forks them (`toolkit.router.parse_server`), as long as it lives."""

    def __init__(self, started: parse_server.Started) -> None:
        self._control, self._pid = started
        self._codes: dict[int, asyncio.Future[int]] = {}
        self.gone = False
        self._control.setblocking(False)
        asyncio.get_running_loop().add_reader(self._control, self._told)

    async def fork(self) -> ParseProcess:
        """A new process. OSError when there are no descriptors, or the server is gone."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [parse_server.ASK], [theirs.fileno()])
            ours.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=PIECE)
        except BaseException:
            ours.close()
            raise
        try:
            (pid,) = parse_server.PID.unpack(await reader.readexactly(parse_server.PID.size))
        except asyncio.IncompleteReadError as error:
            writer.close()
            raise ConnectionResetError("the server of parsing processes has ended") from error
        except BaseException:
            writer.close()
            raise
        return ParseProcess(pid, reader, writer, self._codes.setdefault(pid, _future()))

    def _told(self) -> None:
        """A process has ended, or the server has."""
        while True:
            try:
                said = self._control.recv(parse_server.ENDED.size)
            except BlockingIOError:
                return
            except OSError:
                said = b""
            if not said:
                self._lost()
                return
            pid, code = parse_server.ENDED.unpack(said)
            future = self._codes.pop(pid, None)
            if future is not None and not future.done():
                future.set_result(code)

    def _lost(self) -> None:
        self.gone = True
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        for future in self._codes.values():  # the kernel has ended them with it
            if not future.done():
                future.set_result(-signal.SIGKILL)
        self._codes.clear()

    async def stop(self) -> None:
        """It ends when its socket does, and its processes with it."""
        if not self.gone:
            self._lost()
        for _ in range(100):
            try:
                if os.waitpid(self._pid, os.WNOHANG)[0]:
                    return
            except ChildProcessError:
                return
            await asyncio.sleep(0.01)
        os.kill(self._pid, signal.SIGKILL)


def _future() -> asyncio.Future[int]:
    return asyncio.get_running_loop().create_future()
