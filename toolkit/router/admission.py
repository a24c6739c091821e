"""Bounded admission: so many requests run, so many wait, the rest get 429 at once."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType

from toolkit.router.errors import ApiError

RETRY_AFTER_S = 1


class Admission:
    """FIFO slots. One single request holds one slot; `async with admission:` takes and frees it."""

    def __init__(self, max_inflight: int, max_queue: int) -> None:
        self.max_inflight = max_inflight
        self.max_queue = max_queue
        self.running = 0
        self.draining = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def check(self, count: int) -> None:
        """Refuse a request of `count` singles that would not fit into the queue.

        Raises:
            ApiError: 429 when the queue is full, 503 while draining; both with Retry-After.
        """
        if self.draining:
            raise ApiError(503, "The router is draining; try another one.", retry_after=5)
        free = max(0, self.max_inflight - self.running) if not self._waiting else 0
        if count - free > self.max_queue - len(self._waiting):
            raise ApiError(
                429,
                f"The router is full: {self.running} requests run and {self.queued} wait "
                f"(limits {self.max_inflight} and {self.max_queue}).",
                retry_after=RETRY_AFTER_S,
            )

    async def __aenter__(self) -> None:
        if self.running < self.max_inflight and not self._waiting:
            self.running += 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future  # the one who leaves hands its slot over
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._free()
            else:
                self._waiting.remove(future)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._free()

    def _free(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self.running -= 1
