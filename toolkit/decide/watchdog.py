"""Whether a process that holds work still goes on. Pure: heartbeats and times in, a state of health
out.

The router and the launcher use it alike, each for itself: a launcher needs no router for it, and
a router no launcher.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from toolkit.contract.heartbeat import Beat

FACTOR = 5.0
"""What takes so many times as long as expected is stuck, if that is longer than the bound."""
GAP_S = 1.5
"""Two readings further apart say no more than two so far apart: whoever reads was held up."""
SUSPECT = 0.5
"""The part of its bound after which a process gets nothing new."""


class Health(StrEnum):
    """Of one process. `suspect`: nothing new should go there; `stuck`: it will not go on."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    STUCK = "stuck"


@dataclass(frozen=True, slots=True)
class StuckBounds:
    """Seconds without a round. `stuck_s`: the bound of what announces nothing, and the least of
    what says how long it takes; 0: nobody is ever stuck. `announced_s`: the bound of what is
    announced and has never been measured: a kernel's compilation, new weights, moved experts."""

    stuck_s: float
    announced_s: float

    def of(self, beat: Beat) -> float:
        """How long a process that has said this may stand still."""
        if beat.doing and not beat.expected_s:
            return max(self.stuck_s, self.announced_s)
        return max(self.stuck_s, FACTOR * beat.expected_s)


class Watchdog:
    """Judges one process by what is read of it, again and again.

    What counts is not a clock but what was seen: each reading that shows the same count as the one
    before adds the time between the two, at most GAP_S. A reader that was held up itself, or a
    machine that slept, therefore proves nothing. Time without work does not count; but only a step
    shows that a process goes on, not that its work has been taken away from it.
    """

    def __init__(self, bounds: StuckBounds) -> None:
        self._bounds = bounds
        self._last: Beat | None = None
        self._at = 0.0
        self._allowed_s = 0.0
        self.moved_at = 0.0
        """When it was last seen to have made a step. What was sent to it later, it has not taken
        in since."""
        self.still_s = 0.0
        """For how long it has been seen to stand still with work."""

    @property
    def own_bound_s(self) -> float:
        """What is allowed to it by what it says itself."""
        return self._bounds.stuck_s if self._last is None else self._bounds.of(self._last)

    @property
    def bound_s(self) -> float:
        """What is allowed to it now."""
        return max(self.own_bound_s, self._allowed_s)

    @property
    def doing(self) -> str:
        """What it has announced."""
        return "" if self._last is None else self._last.doing

    def read(self, beat: Beat, works: bool, now: float, allowed_s: float = 0.0) -> Health:
        """Take a reading. `works`: whether the process holds work, as far as the reader knows; its
        own word counts as well. `allowed_s`: the longest bound of those for which it may wait."""
        gap = min(max(0.0, now - self._at), GAP_S)
        same = self._last is not None and self._last.beats == beat.beats
        if not same:
            self.moved_at, self.still_s = now, 0.0
        elif works or beat.works:
            self.still_s += gap
        self._last, self._at, self._allowed_s = beat, now, allowed_s
        return self.health

    @property
    def health(self) -> Health:
        """By the last reading."""
        if not self._bounds.stuck_s:
            return Health.HEALTHY
        if self.still_s >= self.bound_s:
            return Health.STUCK
        return Health.SUSPECT if self.still_s >= SUSPECT * self.bound_s else Health.HEALTHY

    def describe(self) -> str:
        """Why it is not healthy."""
        what = f" (it was at: {self.doing})" if self.doing else ""
        return f"no step for {self.still_s:.1f} s while it held work{what}"
