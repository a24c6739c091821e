"""A queue of requests that wait for a change: a credit, or a worker's health."""

from __future__ import annotations

import asyncio
from types import TracebackType

WAIT_LIMIT = 64


class QueuePlace:
    """A request's place in the queue, from `enter` until it leaves it (`with`)."""

    __slots__ = ("_queue", "_woken", "best_effort")

    def __init__(self, queue: WaitQueue, best_effort: bool = False) -> None:
        self._queue = queue
        self._woken = asyncio.Event()
        self.best_effort = best_effort

    @property
    def first(self) -> bool:
        """Whether nobody waits before it."""
        return self._queue._head() is self

    async def wait(self, timeout_s: float) -> None:
        """Until something may have changed, at most `timeout_s`. The place stays its own."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    def __enter__(self) -> QueuePlace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._queue._leave(self)
        self._queue.wake_one()


class WaitQueue:
    """Places in order of arrival, best-effort requests behind all others. A place is kept over any
    number of wake-ups: whoever finds that it still cannot go is where it was, before all who came
    later. Once `WAIT_LIMIT` others have left while the same best-effort request was the first of
    them, it is the first of all."""

    def __init__(self) -> None:
        self._places: dict[QueuePlace, None] = {}
        self._behind: dict[QueuePlace, None] = {}
        self._passed = 0

    @property
    def waiting(self) -> int:
        return len(self._places) + len(self._behind)

    def enter(self, best_effort: bool = False) -> QueuePlace:
        """A place behind all others of its kind."""
        place = QueuePlace(self, best_effort)
        (self._behind if best_effort else self._places)[place] = None
        return place

    def wake_one(self) -> None:
        """Let the first one look again; when it goes, the next one looks."""
        head = self._head()
        if head is not None:
            head.wake()

    def wake_all(self) -> None:
        """Let everybody look again, in order."""
        for place in (*self._places, *self._behind):
            place.wake()

    def _head(self) -> QueuePlace | None:
        first, behind = next(iter(self._places), None), next(iter(self._behind), None)
        if first is None or (behind is not None and self._passed >= WAIT_LIMIT):
            return behind
        return first

    def _leave(self, place: QueuePlace) -> None:
        if place.best_effort:
            if next(iter(self._behind)) is place:
                self._passed = 0
            del self._behind[place]
            return
        del self._places[place]
        self._passed = self._passed + 1 if self._behind else 0
