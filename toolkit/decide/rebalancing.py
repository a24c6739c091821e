"""Passes over all decode ranks: which requests are to go on elsewhere, for stages and load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from toolkit.policies.stages.moving import Instance, Mover, RunningRequest
from toolkit.policies.stages.refining import Batch, Refiner
from toolkit.policies.stages.replanning import Replanner
from toolkit.policies.support.readings import possible, read_ranks

if TYPE_CHECKING:
    from toolkit.decide.bounds import MoveBounds
    from toolkit.decide.ranks import RankState
    from toolkit.policies.stages.layout import Layout
    from toolkit.policies.stages.narrowing import StageFilter
    from toolkit.policies.stages.running import Why

PLENTY = 1 << 40
"""Free KV tokens, or slots, of a rank that does not say how many it has."""
SHARE = 0.2
"""Of the newest figure in running means of what moves take."""


class RankMove(NamedTuple):
    """A request is to go from one rank to another."""

    request: int
    source: RankState
    target: RankState
    why: Why


class Rebalancing:
    """Shows the `Mover` all ranks and their requests, and refines stages.

    What a rank has free is by its last reading and what was sent since. Ranks that are down,
    silent, ejected or held get none. Those of held ranks are left to who empties them
    (`toolkit.decide.moves`).
    """

    def __init__(
        self, ranks: Sequence[RankState], bounds: MoveBounds, stages: StageFilter | None
    ) -> None:
        self.bounds = bounds
        self._ranks = ranks
        self._stages = stages
        qoe, layout = bounds.qoe, None if stages is None else stages.layout
        quality = None if qoe is None else qoe.batch
        self.mover = Mover(layout, bounds.knobs, lambda length: self.price_s, quality)
        self.refiner = (
            Refiner(layout, qoe, bounds.refine_weight)
            if layout is not None and qoe is not None and bounds.refine_s > 0
            else None
        )
        self.replanner = (
            Replanner(qoe, len(layout.stages))
            if layout is not None and qoe is not None and bounds.replan_s > 0
            else None
        )
        self.price_s = bounds.price_s
        """What a move stalls a request, in a running mean."""
        self.tokens_per_s = 0.0
        """KV tokens that a move brings over a second, in a running mean; 0 before the first."""
        self.passes = 0
        self.refused: Counter[str] = Counter()
        """Moves that did not come about, by how they ended: kept, ended or lost."""
        self.restaged: Counter[str] = Counter()
        """How often stages were changed: `refined`, `replanned`."""
        self._refined_at: float | None = None
        self._planned_at: float | None = None

    def run_pass(
        self,
        running: Mapping[RankState, Sequence[RunningRequest]],
        coming: Mapping[RankState, int],
        moving: Mapping[RankState, int],
        now: float,
    ) -> list[RankMove]:
        """One pass. `running`: by rank, all that it holds; `coming`: KV tokens on their way to it;
        `moving`: moves from it or to it."""
        self.passes += 1
        ranks = self._ranks
        return [
            RankMove(cast(int, each.request), ranks[each.source], ranks[each.target], each.why)
            for each in self.mover.decide(self.instances(running, coming, moving, now))
        ]

    def instances(
        self,
        running: Mapping[RankState, Sequence[RunningRequest]],
        coming: Mapping[RankState, int],
        moving: Mapping[RankState, int],
        now: float,
    ) -> list[Instance]:
        """All ranks as they are, as in `run_pass`."""
        return [
            self._instance(place, rank, running.get(rank, ()), coming, moving, now)
            for place, rank in enumerate(self._ranks)
        ]

    def refine(
        self, running: Mapping[RankState, Sequence[RunningRequest]], now: float
    ) -> Layout | None:
        """The stages' new bounds, where it is time for them and they are not what they were."""
        stages, refiner = self._stages, self.refiner
        if refiner is None or stages is None:
            return None
        if self._refined_at is None:
            self._refined_at = now
        if now - self._refined_at < self.bounds.refine_s:
            return None
        self._refined_at = now
        batches: list[list[Batch]] = [[] for _ in stages.layout.stages]
        for stage, rank in zip(stages.stages, self._ranks, strict=True):
            if not self._held(rank, now):
                batch = [(e.prompt, e.length) for e in running.get(rank, ()) if not e.moving]
                batches[stage].append(batch)
        layout = refiner.refine(batches)
        if layout == stages.layout:
            return None
        self.restaged["refined"] += 1
        stages.layout = self.mover.layout = layout
        return layout

    def plans(self, now: float) -> Layout | None:
        """The stages that are to be planned anew, where it is time for that."""
        stages = self._stages
        if self.replanner is None or stages is None:
            return None
        if self._planned_at is None:
            self._planned_at = now
        if now - self._planned_at < self.bounds.replan_s:
            return None
        self._planned_at = now
        return stages.layout

    def adopt(self, layout: Layout) -> None:
        """Other stages of the same ranks, from now on."""
        assert self._stages is not None
        self.restaged["replanned"] += 1
        self._stages.use(layout)
        self.mover.layout = layout
        if self.refiner is not None and self.bounds.qoe is not None:
            self.refiner = Refiner(layout, self.bounds.qoe, self.bounds.refine_weight)

    def moved(self, stall_s: float, tokens: int, took_s: float) -> None:
        """A move of so many KV tokens has taken so long."""
        self.price_s += SHARE * (stall_s - self.price_s)
        speed = tokens / took_s if took_s > 0 else 0.0
        before = self.tokens_per_s
        self.tokens_per_s = speed if not before else before + SHARE * (speed - before)

    @staticmethod
    def _held(rank: RankState, now: float) -> bool:
        reading = rank.load(now)
        known = reading is not None and possible(reading)
        return not (rank.open and known) or rank.worker.record.out

    def _instance(
        self,
        place: int,
        rank: RankState,
        running: Sequence[RunningRequest],
        coming: Mapping[RankState, int],
        moving: Mapping[RankState, int],
        now: float,
    ) -> Instance:
        ranks = read_ranks([rank.view(now, True)])
        reading = rank.load(now)
        room, slots = ranks.room[0], ranks.slots[0]
        spare = None
        if reading is not None and possible(reading) and reading.total_tokens:
            sent = reading.waiting_tokens + reading.sent_tokens
            spare = reading.total_tokens - reading.used_tokens - sent
        return Instance(
            rank=place,
            stage=0 if self._stages is None else self._stages.stages[place],
            running=tuple(running),
            coming_tokens=coming.get(rank, 0),
            free_tokens=int(room) if room < PLENTY else PLENTY,
            slots_free=int(slots) if slots < PLENTY else PLENTY,
            tokens_per_s=self.tokens_per_s,
            moving=moving.get(rank, 0),
            held=self._held(rank, now),
            spare_tokens=spare,
        )
