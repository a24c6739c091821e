"""One refit at a time, the most urgent first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger("toolkit.router")

Job = Coroutine[Any, Any, None]


class RefitQueue:
    """Asks `urgent`, then `others`, for the next job until nobody has one; `wake` asks again.

    `interrupt` ends a job that is not urgent: whoever gave it gives it again when asked.
    """

    def __init__(
        self, urgent: Callable[[], Job | None], others: list[Callable[[], Job | None]]
    ) -> None:
        self._urgent = urgent
        self._others = others
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._job: asyncio.Future[None] | None = None
        self._urgent_job = False
        self._held = False

    def hold(self, on: bool) -> None:
        """Whether no job is begun from now on; one that is not urgent ends."""
        if on == self._held:
            return
        self._held = on
        if on:
            self.interrupt()
        self._wake.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        self._wake.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        self._wake.set()

    def interrupt(self) -> None:
        if self._job is not None and not self._urgent_job:
            self._job.cancel()
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (job := self._next()) is not None:
                await self._do(job)

    def _next(self) -> Job | None:
        if self._held:
            return None
        job = self._urgent()
        self._urgent_job = job is not None
        others = (other() for other in self._others)
        return job or next((job for job in others if job is not None), None)

    async def _do(self, job: Job) -> None:
        self._job = asyncio.ensure_future(job)
        try:
            await asyncio.wait([self._job])
        finally:  # also when the router stops: the refit's process goes first
            self._job.cancel()
            await asyncio.gather(self._job, return_exceptions=True)
        if not self._job.cancelled() and self._job.exception() is not None:
            log.error("unexpected error in a refit", exc_info=self._job.exception())
            await asyncio.sleep(1.0)
