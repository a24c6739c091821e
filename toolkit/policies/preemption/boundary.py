"""What a policy sees at a boundary between two slices of a best-effort prefill, and what it says.

A policy is any callable `(Boundary) -> "continue" | "yield"`, a plain function of one's own too:

    def patient(state):
        return "yield" if any(each.waited_s > 0.05 for each in state.urgent) else "continue"

`check` names it (`module:patient`), and the shipped ones by their own names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf
from typing import Literal

BoundaryChoice = Literal["continue", "yield"]


@dataclass(frozen=True, slots=True)
class Urgent:
    """A latency-sensitive request that waits for its first token. Times are seconds.

    `tokens`: of its prompt, that are to be computed. `takes_s`: what its prefill is expected to
    take, 0 where nobody knows. `slo_s`: from its arrival to its first token, infinite without one.
    """

    tokens: int
    waited_s: float
    takes_s: float = 0.0
    slo_s: float = inf


@dataclass(frozen=True, slots=True)
class Boundary:
    """A best-effort pass between two slices. Times are seconds.

    `done` of its `layers` are computed, `slice` at a time. `slice_s`: what a slice takes, by the
    last one. `ran_s`, `paused_s`: this pass has been computing, and standing still; `pauses`: how
    often. `urgent`: who waits, in order of arrival; nobody is asked about an empty one.
    """

    done: int
    layers: int
    slice: int
    slice_s: float
    ran_s: float
    paused_s: float
    pauses: int
    urgent: tuple[Urgent, ...]

    @property
    def left_s(self) -> float:
        """Until the pass is over, if nobody stops it."""
        return ceil((self.layers - self.done) / self.slice) * self.slice_s

    @property
    def takes_s(self) -> float:
        """What all who wait are expected to take."""
        return sum(each.takes_s for each in self.urgent)


BoundaryPolicy = Callable[[Boundary], BoundaryChoice]
