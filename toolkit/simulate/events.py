"""The simulated clock: a heap of what happens when."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any


class Event(list[Any]):
    """Something planned: when, its number, what to call, and with what. A list, which the heap
    orders by its first two in C. `cancel` takes it out."""

    __slots__ = ()

    def cancel(self) -> None:
        self[2] = None


class Events:
    """`now` in seconds from the start. What is planned for one moment happens in the order in which
    it was planned, so a run with the same seed is the same run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.handled = 0
        self._heap: list[Event] = []
        self._number = count()
        self._stopped = False

    def at(self, when: float, action: Callable[..., None], *given: Any) -> Event:
        """Call `action(*given)` at that time, or now if that is over."""
        now = self.now
        event = Event((now if now > when else when, next(self._number), action, given))
        heappush(self._heap, event)
        return event

    def after(self, seconds: float, action: Callable[..., None], *given: Any) -> Event:
        return self.at(self.now + seconds, action, *given)

    def run(self, until: float = inf) -> None:
        """Until nothing is left to happen, that time is reached, or somebody says `stop`."""
        heap = self._heap
        self._stopped = False
        while heap and heap[0][0] <= until and not self._stopped:
            self.now, _, action, given = heappop(heap)
            if action is not None:
                self.handled += 1
                action(*given)
        if until < inf and not self._stopped:
            self.now = max(self.now, until)

    def stop(self) -> None:
        """Return from `run` after what happens now."""
        self._stopped = True
