"""A fleet's workers, as it describes them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from toolkit.policies.sjf import ShortestFirst, theta_tokens
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.decode import Group
from toolkit.simulate.events import Events
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.fleet import DecodeFleet, Fleet, WorkerFleet
from toolkit.simulate.neighbours import Neighbours
from toolkit.simulate.plain import PlainGroup, PlainRank
from toolkit.simulate.plain_stopping import StoppingGroup
from toolkit.simulate.preemption import Preemption
from toolkit.simulate.prefill import PrefillWorker
from toolkit.simulate.prompt_queue import PromptQueue
from toolkit.simulate.rank import SimulatedRank
from toolkit.simulate.request import Request
from toolkit.simulate.reserve import FIRST, NewTokenRatio
from toolkit.simulate.scheduling import CPU_OVERLAP, OVERLAP, PLAIN, Scheduling

LOOPS = {"overlap": OVERLAP, "cpu": CPU_OVERLAP, "plain": PLAIN}
OneRank = TypeVar("OneRank")
Notified = Callable[[SimulatedRank, Request], None]


@dataclass(frozen=True)
class WorkerBuilder:
    """What all workers share."""

    events: Events
    cost: CostModel
    fleet: Fleet
    neighbours: Neighbours | None
    experts: SimulatedExperts | None

    def prefills(self, on_done: Callable[[Request], None]) -> list[PrefillWorker]:
        """Those of prefill and decode apart."""
        prefill = self.fleet.prefill
        preemption = Preemption.of(prefill.preempt, self.cost)
        return [
            PrefillWorker(
                self.events,
                self.cost,
                f"prefill-{n}",
                on_done,
                prefill.chunk,
                prefill.kv_tokens,
                self._shortest(),
                behind=prefill.loop == "cpu",
                neighbours=self.neighbours,
                preemption=preemption,
            )
            for n in range(prefill.replicas)
        ]

    def decodes(self, on_place: Notified, on_first: Notified, on_end: Notified) -> list[Group]:
        """Those of prefill and decode apart."""
        d = self.fleet.decode
        scheduling = self._scheduling(d.loop, d.early_place)
        experts = self._in_steps()
        servers = [
            [
                SimulatedRank(f"decode-{replica}", dp_rank, d.slots, d.kv_tokens, d.reserve)
                for dp_rank in range(d.dp)
            ]
            for replica in range(d.replicas)
        ]
        return [
            Group(
                self.events,
                self.cost,
                ranks,
                scheduling,
                experts,
                on_place,
                on_first,
                on_end,
                self.neighbours,
            )
            for ranks in _together(d, servers)
        ]

    def plains(self, worker: WorkerFleet, on_first: Notified, on_end: Notified) -> list[PlainGroup]:
        """Workers that do both."""
        servers = [
            [self._plain_rank(worker, replica, dp_rank) for dp_rank in range(worker.dp)]
            for replica in range(worker.replicas)
        ]
        experts, scheduling = self._in_steps(), self._scheduling(worker.loop)
        preemption = Preemption.of(worker.preempt, self.cost)
        kind = PlainGroup if preemption is None else partial(StoppingGroup, preemption)
        return [
            kind(
                self.events,
                self.cost,
                ranks,
                scheduling,
                experts,
                on_first,
                on_end,
                self.neighbours,
                worker.mixed,
                worker.limit,
                worker.static,
            )
            for ranks in _together(worker, servers)
        ]

    def _scheduling(self, loop: str, early: bool = False) -> Scheduling:
        return replace(LOOPS[loop], early=early, drafting=self.fleet.drafting)

    def _in_steps(self) -> SimulatedExperts | None:
        """Those of what a step looks at."""
        drafting = self.fleet.drafting
        if drafting is None or self.experts is None:
            return self.experts
        return self.experts.verified(drafting.verified)

    @staticmethod
    def _plain_rank(worker: WorkerFleet, replica: int, dp_rank: int) -> PlainRank:
        age = worker.waiting_age_s
        # It ages by ms, as `patches.pd.waiting_queue`.
        shortest = None if age is None else ShortestFirst(age * 1e3)
        return PlainRank(
            f"worker-{replica}",
            dp_rank,
            worker.slots,
            worker.kv_tokens,
            prompts=PromptQueue(worker.chunk, shortest, by_class=worker.priorities),
            ratio=NewTokenRatio(FIRST * worker.conservativeness),
        )

    def _shortest(self) -> ShortestFirst | None:
        """Ages as prefill tokens, at the rate of full passes."""
        prefill = self.fleet.prefill
        if prefill.waiting_age_s is None:
            return None
        rate = prefill.chunk / self.cost.prefill_s([(prefill.chunk, 0)])
        return ShortestFirst(theta_tokens(prefill.waiting_age_s, rate))


def _together(
    sizes: DecodeFleet | WorkerFleet, servers: Sequence[list[OneRank]]
) -> Iterator[list[OneRank]]:
    """The ranks that take their steps together: a server's with DP attention, else each alone."""
    for ranks in servers:
        yield from [ranks] if sizes.dp_attention else [[rank] for rank in ranks]
