"""Simulations of candidates, counted: the same one is never run twice."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolkit.plan.candidate import Candidate
from toolkit.plan.errors import PlanError, Spent
from toolkit.plan.expert_layout import Lay, Layouts
from toolkit.plan.objective import PlanSlo, rank
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.fleet import Fleet
from toolkit.simulate.request import Request
from toolkit.simulate.session import Requests
from toolkit.simulate.simulation import Simulation, Window
from toolkit.simulate.workloads.patterns import with_rows

ALONE = 200
"""Requests that are played one at a time, to see what an empty fleet does."""


@dataclass
class Trials:
    """`requests` of a seed are the same for every candidate. `in_flight`: so many at any time,
    whenever they were to come (a closed loop). `budget`: simulations that may be run; `ceiling`:
    those that may be until somebody raises it. `layouts`: where experts may lie, None where they
    lie as `experts` has them."""

    cost: CostModel
    requests: Requests
    slo: PlanSlo
    budget: int
    experts: SimulatedExperts | None = None
    report: Callable[[str], None] = lambda text: None
    in_flight: int | None = None
    layouts: Layouts | None = None
    done: int = 0
    ceiling: int = 0
    _known: dict[tuple[Fleet, Lay, int, int, float], dict[str, Any]] = field(default_factory=dict)
    _counts: dict[int, tuple[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ceiling = self.budget

    def count(self, seed: int) -> int:
        """Requests of a seed. PlanError: none."""
        return self._counted(seed)[0]

    def rate(self, seed: int) -> float:
        """Its requests a second, from the first arrival to the last."""
        count, seconds = self._counted(seed)
        return count / max(seconds, 1e-9)

    def play(
        self, candidate: Candidate, seed: int, first: int | None = None, speed: float = 1.0
    ) -> dict[str, Any]:
        """The figures of its first so many requests, arriving `speed` times as fast; in a closed
        loop `speed` times as many at a time.

        Spent: no simulation is left. PlanError: nobody arrives.
        """
        count = self.count(seed)
        first = count if first is None else min(first, count)
        flying = None
        if self.in_flight is not None:
            flying = max(1, round(self.in_flight * speed))
            speed = flying / self.in_flight  # 3 of 4 is 3 of 4, however it was asked for
        key = (candidate.fleet, candidate.lay, seed, first, speed)
        if key not in self._known:
            if self.done >= min(self.budget, self.ceiling):
                raise Spent(f"all of the {self.budget} simulations are used up: raise --budget")
            self.done += 1
            arriving = itertools.islice(_faster(self.requests(seed), speed), first)
            made = self._simulation(candidate, arriving, seed, self.slo.limits, flying)
            self._known[key] = made.run().result()
            self.report(f"{self.done} of at most {self.budget}: {candidate}")
        return self._known[key]

    def all(
        self, candidate: Candidate, seeds: Sequence[int], speed: float = 1.0
    ) -> list[dict[str, Any]]:
        """Every request of these seeds."""
        return [self.play(candidate, seed, speed=speed) for seed in seeds]

    def rank(self, candidate: Candidate, first: int) -> tuple[int, float]:
        """On the first requests of seed 0: a quick look."""
        return rank([self.play(candidate, 0, first)], self.slo)

    def alone(self, candidate: Candidate, slo: PlanSlo) -> dict[str, Any]:
        """The figures of requests that have the whole fleet to themselves, one after the other."""
        self.done += 1
        few = itertools.islice(self.requests(0), ALONE)
        return self._simulation(candidate, few, 0, slo.limits, in_flight=1).run().result()

    def _simulation(
        self,
        candidate: Candidate,
        requests: Iterator[Request],
        seed: int,
        limits: tuple[float, ...],
        in_flight: int | None = None,
    ) -> Simulation:
        experts = self.experts if self.layouts is None else self.layouts.of(candidate.lay)
        if experts is not None:
            requests = with_rows(requests, experts, seed)
        return Simulation(
            candidate.fleet, self.cost, requests, experts, seed, in_flight, Window(), limits
        )

    def _counted(self, seed: int) -> tuple[int, float]:
        if seed not in self._counts:
            count, first, last = 0, 0.0, 0.0
            for count, request in enumerate(self.requests(seed), 1):
                first = request.arrived if count == 1 else first
                last = request.arrived
            if not count:
                raise PlanError("no request arrives: nothing can be planned for")
            self._counts[seed] = count, last - first
        return self._counts[seed]


def _faster(requests: Iterator[Request] | Any, speed: float) -> Iterator[Request]:
    for request in requests:
        request.arrived /= speed
        yield request
