"""Best-effort prefills in slices of layers, which a policy may stop in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf

from toolkit.policies.preemption.boundary import Boundary, BoundaryPolicy, Urgent
from toolkit.policies.preemption.bounds import Bounds, Paused
from toolkit.simulate.prompt_queue import Part
from toolkit.simulate.request import Request


@dataclass(frozen=True)
class Preemption:
    """`slice` of the model's `layers` at a time; `boundary_s`: what a look between two slices
    takes. `slo_s`: of latency-sensitive requests, to their first token. `takes_s`: what a prefill
    of so many tokens is expected to take."""

    policy: BoundaryPolicy
    layers: int
    slice: int
    bounds: Bounds = field(default_factory=Bounds)
    boundary_s: float = 0.0
    slo_s: float = inf
    takes_s: Callable[[int], float] = lambda tokens: 0.0

    @property
    def slices(self) -> int:
        return ceil(self.layers / self.slice)


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

    @property
    def over(self) -> bool:
        return self.done >= self.preemption.slices

    def sliced(self) -> None:
        """One more slice is done."""
        self.done += 1
        self.ran_s += self.slice_s

    def yields(self, waiting: Sequence[Request], now: float, totals: dict[Request, Paused]) -> bool:
        """Whether it stops for those in a hurry who wait. `totals`: what its requests have been
        through."""
        rules = self.preemption
        if not waiting or not all(rules.bounds.may_begin(p) for p in self._paused(totals)):
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

    def stays(self, now: float, totals: dict[Request, Paused]) -> bool:
        """Whether, standing still, it lets one more batch go first."""
        assert self.stopped_at is not None
        since = now - self.stopped_at
        return all(self.preemption.bounds.may_go_on(p, since) for p in self._paused(totals))

    def resume(self, now: float, totals: dict[Request, Paused]) -> None:
        """It goes on."""
        assert self.stopped_at is not None
        stood = now - self.stopped_at
        self.stopped_at = None
        self.paused_s += stood
        for paused in self._paused(totals):
            paused.pauses += 1
            paused.seconds += stood

    def _paused(self, totals: dict[Request, Paused]) -> list[Paused]:
        return [totals.setdefault(part.request, Paused()) for part in self.parts]
