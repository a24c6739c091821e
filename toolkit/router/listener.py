"""The listening socket: accepts clients, whatever `accept` says.

uvloop's own server closes its socket for good, without a word, when `accept` fails with anything
but a few errors. Here every failure is waited out: no descriptors (EMFILE, ENFILE), no buffers.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterable

from toolkit.front import BACKLOG, opened
from toolkit.router.quiet import Tally

BATCH = 64
PAUSE_S = 0.1
SEND_BUFFER = 128 * 1024
"""Bytes of answers that the kernel may hold for a client that does not read; by itself it takes 4
MiB. At a round trip of 100 ms some MiB a second still get through."""
_NOW = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR})
_THEIRS = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EPERM})


class Listener:
    """Listening sockets, of one or more `start`s; each connection gets a protocol of `make`."""

    def __init__(self, make: Callable[[], asyncio.Protocol], batch: int = BATCH) -> None:
        """`batch`: connections that are taken in one turn of the loop."""
        self._make = make
        self._batch = batch
        self._sockets: list[socket.socket] = []
        self._paused: set[asyncio.TimerHandle] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self.failed = Tally("connections could not be accepted, waiting (file descriptors?)")

    async def start(self, host: str, port: int, backlog: int = BACKLOG) -> tuple[str, int]:
        """Listen; gives the first address. OSError when one cannot be had: then all are closed."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            sockets = opened(found, backlog)
        except OSError:
            await self.stop()
            raise
        self.adopt(sockets)
        name = sockets[0].getsockname()
        return str(name[0]), int(name[1])

    def adopt(self, sockets: Iterable[socket.socket]) -> None:
        """Take clients from these too: they listen already, and block nobody."""
        loop = asyncio.get_running_loop()
        for listening in sockets:
            listening.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER
            )  # those it accepts
            self._sockets.append(listening)
            loop.add_reader(listening, self._accept, listening)

    async def stop(self) -> None:
        """No new connections; those that are open stay."""
        loop = asyncio.get_running_loop()
        for handle in self._paused:
            handle.cancel()
        self._paused.clear()
        for listening in self._sockets:
            if listening.fileno() >= 0:
                loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(self._batch):
            try:
                accepted, _ = listening.accept()
            except OSError as error:
                if error.errno in _THEIRS:
                    continue
                if error.errno not in _NOW:
                    self.failed.add()
                    self._pause(listening, PAUSE_S)
                return
            accepted.setblocking(False)
            task = loop.create_task(self._open(accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._make, accepted)
        except OSError:  # it went away again
            accepted.close()

    def _pause(self, listening: socket.socket, seconds: float) -> None:
        """Do not spin: the socket stays readable for as long as nobody is accepted."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)

        def again() -> None:
            self._paused.discard(handle)
            loop.add_reader(listening, self._accept, listening)

        handle = loop.call_later(seconds, again)
        self._paused.add(handle)
