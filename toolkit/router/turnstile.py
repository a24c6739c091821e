"""A queue of requests that wait for a change: a credit, or a worker's health."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Place:
    """A request's place in the queue, from `enter` until it leaves it (`with`)."""

    __slots__ = ("_queue", "_woken")

    def __init__(self, queue: Turnstile) -> None:
        self._queue = queue
        self._woken = asyncio.Event()

    @property
    def first(self) -> bool:
        """Whether nobody waits before it."""
        return next(iter(self._queue._places)) is self

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

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del self._queue._places[self]
        self._queue.wake_one()


class Turnstile:
    """Places in order of arrival. A place is kept over any number of wake-ups: whoever finds that
    it still cannot go is where it was, before all who came later."""

    def __init__(self) -> None:
        self._places: dict[Place, None] = {}

    @property
    def waiting(self) -> int:
        return len(self._places)

    def enter(self) -> Place:
        """A place behind all others."""
        place = Place(self)
        self._places[place] = None
        return place

    def wake_one(self) -> None:
        """Let the first one look again; when it goes, the next one looks."""
        for place in self._places:
            place.wake()
            return

    def wake_all(self) -> None:
        """Let everybody look again, in order."""
        for place in self._places:
            place.wake()
