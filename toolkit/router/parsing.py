"""Parsing of bodies: ordinary ones at once, all others in processes of their own.

What looking at a body takes may not follow from its size, and a body of 60 MiB takes seconds, while
no stream would get a token. So only what is sure to take the loop a few ms stays on it: fewer than
`INLINE` bytes, `INLINE_VALUES` JSON values, and nothing unusual in them (`toolkit.router.usual`).
The rest goes to one of `PROCESSES` processes and comes back as small objects and packed bytes
(`toolkit.router.parse_job`, `toolkit.router.packed`).

A body has `parse_cpu_ms` of CPU time there and `PER_MIB_S` for each MiB of it: plain JSON of 60 MiB
takes long, too, some 20 to 300 ms a MiB. Clients take turns (`toolkit.router.fair_queue`); who has
waited for `WAIT_S` gets 503. A process that was ended is replaced by a fork (`parse_server`).
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from toolkit.router import descriptors, parse_server, request_view, splitting
from toolkit.router.budget import MIB, Charge, values, weight
from toolkit.router.errors import ApiError
from toolkit.router.fair_queue import FairQueue, QueueTicket
from toolkit.router.packed import WORTH, pack, rest
from toolkit.router.parse_job import LARGE, too_costly
from toolkit.router.parse_process import Ended, ParseProcess, ParseServer
from toolkit.router.quiet import log
from toolkit.router.request import Job
from toolkit.router.usual import usual

INLINE = 256 * 1024
INLINE_VALUES = 20_000
PROCESSES = max(2, min(4, len(os.sched_getaffinity(0)) // 8))
EACH = 256
"""Bodies of one client that may wait."""
WAIT_S = 30.0
PER_MIB_S = 0.5
WALL_S = 30.0
"""The longest time of a process with one body, whatever the machine does meanwhile."""
WALL = 4.0
"""Times the CPU time that it has, where that is more."""
RETRY_AFTER_S = 2


class Parser:
    """`parse`, off the loop where it matters. `cpu_s`: CPU time of a body without its size;
    `started`: the server of parsing processes, None: it is started when it is needed."""

    def __init__(self, cpu_s: float = 0.1, started: parse_server.Started | None = None) -> None:
        self._cpu_s = cpu_s
        self._started = started
        self._server: ParseServer | None = None
        self._queue = FairQueue(PROCESSES, EACH)
        self._turns: dict[QueueTicket, asyncio.Future[None]] = {}
        self._idle: list[ParseProcess] = []
        self.elsewhere = 0
        """Bodies that went to a process."""

    @property
    def waiting(self) -> int:
        """Bodies that wait for a process."""
        return self._queue.waiting

    async def parse(
        self, path: str, chunks: list[bytes], charge: Charge, client: str = "", **known: Any
    ) -> Job:
        """`toolkit.router.splitting.parse` of the chunks, which are taken out of the list.
        `client`: with whom others take turns.

        Raises:
            ApiError: as `parse`; 400 for what takes more CPU time than it may, 413 for what cannot
                be parsed within the bounds of memory, 503 when there is no memory or no process for
                it now.
        """
        size = sum(map(len, chunks))
        if size < INLINE:
            raw = b"".join(chunks)
            count = values(raw)
            if count < INLINE_VALUES:
                charge.become(weight(raw, count) + size)
                body, lax = splitting.load(path, raw)
                if not lax and usual(body):
                    chunks.clear()
                    job = splitting.split(path, body, lax, **known)
                    if size >= WORTH:
                        pack(job)
                        charge.become(charge.bytes + rest(job).bytes)
                    return job
            chunks[:] = [raw]
        self.elsewhere += 1
        ticket = await self._turn(client, size >= LARGE)
        seconds = self._cpu_s + PER_MIB_S * size / MIB
        work = asyncio.ensure_future(self._ask(ticket, path, chunks, charge, known, seconds))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait({work})  # half a question would spoil the next one
            raise

    async def _turn(self, client: str, large: bool) -> QueueTicket:
        """A place at a process, once it is this client's turn."""
        ticket = self._queue.enter(client, large)
        if ticket is None:
            raise ApiError(
                503,
                f"{EACH} of your requests wait to be checked already. Try again.",
                retry_after=RETRY_AFTER_S,
            )
        turn = self._turns[ticket] = asyncio.get_running_loop().create_future()
        self._go_on()
        try:
            async with asyncio.timeout(WAIT_S):
                await turn
        except BaseException as error:
            self._leave(ticket)
            if isinstance(error, TimeoutError):
                raise ApiError(
                    503,
                    f"The request waited {WAIT_S:g} s to be checked. Try again.",
                    retry_after=RETRY_AFTER_S,
                ) from error
            raise
        return ticket

    def _go_on(self) -> None:
        while (ticket := self._queue.next()) is not None:
            turn = self._turns[ticket]
            if not turn.done():
                turn.set_result(None)

    def _leave(self, ticket: QueueTicket) -> None:
        del self._turns[ticket]
        self._queue.leave(ticket)
        self._go_on()

    async def _ask(
        self,
        ticket: QueueTicket,
        path: str,
        chunks: list[bytes],
        charge: Charge,
        known: dict[str, Any],
        seconds: float,
    ) -> Job:
        process: ParseProcess | None = None
        name, good = known.get("request_id"), False
        try:
            async with asyncio.timeout(max(WALL_S, WALL * seconds)):
                process = await self._process()
                told = (path, known, request_view.SALT, seconds)
                job = await process.ask(told, chunks, charge)
            good = True
            return job
        except ApiError:
            good = True
            raise
        except Ended as ended:
            if ended.code == -signal.SIGVTALRM:
                raise too_costly(seconds) from ended
            log.error("request %s: its parsing process ended with %s", name, ended.code)
            raise ApiError(
                413, "The body could not be parsed within the router's bounds of memory."
            ) from ended
        except (TimeoutError, OSError) as error:
            log.error("request %s could not be parsed: %s", name, type(error).__name__)
            short = descriptors.is_ours(error)
            raise ApiError(
                503,
                "The router is out of file descriptors. Try again."
                if short
                else "The router is too busy to check this body. Try again.",
                retry_after=RETRY_AFTER_S,
            ) from error
        finally:
            if process is not None and good:
                self._idle.append(process)
            elif process is not None:
                process.end()
            self._leave(ticket)

    async def _process(self) -> ParseProcess:
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
            process.end()
        if self._server is None or self._server.gone:
            if self._server is not None:
                log.error("the server of parsing processes has ended; another one is started")
                await self._server.stop()
            started, self._started = self._started, None
            self._server = ParseServer(started or parse_server.started())
        return await self._server.fork()

    async def stop(self) -> None:
        for process in self._idle:
            process.end()
        self._idle.clear()
        server, self._server = self._server, None
        if server is None and self._started is not None:
            server, self._started = ParseServer(self._started), None
        if server is not None:
            await server.stop()
