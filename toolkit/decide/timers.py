"""What is due when. Pure: whoever hosts it has the clock."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

SPARE = 64
"""So many cancelled entries are kept in any case."""

What = TypeVar("What")


class TimerEntry(Generic[What]):
    """One entry: `what` is due; `cancel` it once it is of no use."""

    __slots__ = ("_timers", "what")

    def __init__(self, timers: Timers[What], what: What) -> None:
        self._timers = timers
        self.what: What | None = what

    def cancel(self) -> None:
        if self.what is not None:
            self.what = None
            self._timers.cancelled()


class Timers(Generic[What]):
    """Entries by time, and of equal times in the order in which they were set."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, TimerEntry[What]]] = []
        self._number = 0
        self._dead = 0

    def set(self, at: float, what: What) -> TimerEntry[What]:
        """`what` is due once `at` has come."""
        self._number += 1
        timer = TimerEntry(self, what)
        heapq.heappush(self._heap, (at, self._number, timer))
        return timer

    @property
    def due(self) -> float | None:
        """When the next one is; None: there is none."""
        heap = self._heap
        while heap and heap[0][2].what is None:
            heapq.heappop(heap)
            self._dead -= 1
        return heap[0][0] if heap else None

    def take(self, now: float) -> Iterator[What]:
        """Those that are due, each taken out before it is given."""
        while (due := self.due) is not None and due <= now:
            timer = heapq.heappop(self._heap)[2]
            what, timer.what = timer.what, None
            assert what is not None
            yield what

    def cancelled(self) -> None:
        """One more is of no use. They are thrown away when they are more than half of all."""
        self._dead += 1
        if self._dead > SPARE and 2 * self._dead > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].what is not None]
            heapq.heapify(self._heap)
            self._dead = 0

    def __len__(self) -> int:
        return len(self._heap) - self._dead
