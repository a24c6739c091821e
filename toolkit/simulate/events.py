"""The simulated clock: a heap of what happens when."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any


class Event:
    """Something planned. `cancel` takes it out."""

    __slots__ = ("action", "at", "given")

    def __init__(self, at: float, action: Callable[..., None], given: tuple[Any, ...]) -> None:
        self.at = at
        self.action: Callable[..., None] | None = action
        self.given = given

    def cancel(self) -> None:
        self.action = None


class Events:
    """`now` in seconds from the start. What is planned for one moment happens in the order in which
    it was planned, so a run with the same seed is the same run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.handled = 0
        self._heap: list[tuple[float, int, Event]] = []
        self._number = count()
        self._stopped = False

    def at(self, when: float, action: Callable[..., None], *given: Any) -> Event:
        """Call `action(*given)` at that time, or now if that is over."""
        now = self.now
        event = Event(now if now > when else when, action, given)
        heappush(self._heap, (event.at, next(self._number), event))
        return event

    def after(self, seconds: float, action: Callable[..., None], *given: Any) -> Event:
        return self.at(self.now + seconds, action, *given)

    def run(self, until: float = inf) -> None:
        """Until nothing is left to happen, that time is reached, or somebody says `stop`."""
        heap = self._heap
        self._stopped = False
        while heap and heap[0][0] <= until and not self._stopped:
            self.now, _, event = heappop(heap)
            if event.action is not None:
                self.handled += 1
                event.action(*event.given)
        if until < inf and not self._stopped:
            self.now = max(self.now, until)

    def stop(self) -> None:
        """Return from `run` after what happens now."""
        self._stopped = True
