"""Best-effort prefills in slices of layers, which a policy may stop in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf

from toolkit.policies.preemption.boundary import Boundary, BoundaryPolicy, Urgent
from toolkit.policies.preemption.bounds import Bounds, Paused
from toolkit.policies.preemption.named import boundary_policy
from toolkit.simulate.costs import per_slice_of
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.fleet import Stopping
from toolkit.simulate.prompt_order import latency_sensitive
from toolkit.simulate.prompt_queue import Part
from toolkit.simulate.request import Request


def stops(stopping: Stopping | None) -> bool:
    """Whether prompts are stopped between layers."""
    return stopping is not None and stopping.layers > stopping.rules.slice


@dataclass(frozen=True)
class Preemption:
    """`slice` of the model's `layers` at a time; `boundary_s`: what a look between two slices
    takes. `slo_s`: of latency-sensitive requests, to their first token. `takes_s`: what a prefill
    of so many tokens is expected to take. `ahead`: as `Stopping` has it."""

    policy: BoundaryPolicy
    layers: int
    slice: int
    bounds: Bounds = field(default_factory=Bounds)
    boundary_s: float = 0.0
    slo_s: float = inf
    takes_s: Callable[[int], float] = lambda tokens: 0.0
    ahead: bool = False

    @classmethod
    def of(cls, stopping: Stopping | None, cost: CostModel) -> Preemption | None:
        """As a fleet describes it. ValueError: a policy of one's own that cannot be loaded."""
        if stopping is None:
            return None
        rules = stopping.rules
        return cls(
            policy=boundary_policy(rules.policy),
            layers=stopping.layers,
            slice=min(rules.slice, stopping.layers),
            bounds=Bounds(rules.pauses, rules.seconds),
            boundary_s=per_slice_of(cost),
            slo_s=inf if rules.slo_s is None else rules.slo_s,
            takes_s=lambda tokens: cost.prefill_s([(tokens, 0)]),
            ahead=stopping.ahead,
        )

    @property
    def slices(self) -> int:
        return ceil(self.layers / self.slice)

    def sliced(self, parts: list[Part], seconds: float) -> SlicedPass:
        """A best-effort pass that takes so long where nobody looks."""
        looks = self.boundary_s * (self.slices - 1)
        return SlicedPass(self, parts, (seconds + looks) / self.slices)


@dataclass(eq=False)
class SlicedPass:
    """A best-effort pass: what is done of it, and how long it has run and stood still."""

    preemption: Preemption
    parts: list[Part]
    slice_s: float
    done: int = 0
    ran_s: float = 0.0
    paused_s: float = 0.0
    pauses: int = 0
    stopped_at: float | None = None
    told: bool = False
    """The slice that runs is the last one before it stops."""

    @property
    def over(self) -> bool:
        return self.done >= self.preemption.slices

    def sliced(self) -> None:
        """One more slice is done."""
        self.done += 1
        self.ran_s += self.slice_s

    def stops(self, waiting: Sequence[Request], now: float) -> bool:
        """Whether it stops here for latency-sensitive requests who wait."""
        due, self.told = self.told, False
        if due or not self._yields(waiting, now):
            return due
        self.told = self.preemption.ahead
        return not self.told

    def _yields(self, waiting: Sequence[Request], now: float) -> bool:
        rules = self.preemption
        if not waiting or not all(map(rules.bounds.may_begin, self._paused())):
            return False
        state = Boundary(
            done=min(rules.layers, self.done * rules.slice),
            layers=rules.layers,
            slice=rules.slice,
            slice_s=self.slice_s,
            ran_s=self.ran_s,
            paused_s=self.paused_s,
            pauses=self.pauses,
            urgent=tuple(
                Urgent(each.prompt, now - each.arrived, rules.takes_s(each.prompt), rules.slo_s)
                for each in waiting
            ),
        )
        return rules.policy(state) == "yield"

    def stop(self, now: float) -> None:
        self.stopped_at = now
        self.pauses += 1

    def stays(self, now: float) -> bool:
        """Whether, standing still, it lets one more batch go first."""
        assert self.stopped_at is not None
        since = now - self.stopped_at
        return all(self.preemption.bounds.may_go_on(p, since) for p in self._paused())

    def wanted(self, halves: Sequence[Request], now: float) -> Callable[[Request], bool]:
        """Who goes first, standing still: latency-sensitive requests, and once the time is used up
        only the rest of who has begun."""
        if self.stays(now):
            return latency_sensitive
        begun = {id(each) for each in halves}
        return lambda request: latency_sensitive(request) and id(request) in begun

    def resume(self, now: float) -> None:
        """It goes on."""
        assert self.stopped_at is not None
        stood = now - self.stopped_at
        self.stopped_at = None
        self.paused_s += stood
        for paused in self._paused():
            paused.pauses += 1
            paused.seconds += stood

    def _paused(self) -> list[Paused]:
        found = []
        for request, *_ in self.parts:
            if request.paused is None:
                request.paused = Paused()
            found.append(request.paused)
        return found
