"""Passes over all decode ranks for requests that are to move, and the books of those that do."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from toolkit.policies.stages.moving import Instance, Mover, RunningRequest
from toolkit.policies.stages.narrowing import StageFilter
from toolkit.policies.stages.refining import Batch, Refiner
from toolkit.settings.router.rebalance import Rebalance
from toolkit.simulate.events import Event, Events
from toolkit.simulate.moves import SimulatedMove, SimulatedMoves
from toolkit.simulate.rank import SimulatedRank
from toolkit.simulate.request import Request

if TYPE_CHECKING:
    from toolkit.decide.reservation import Reservation
    from toolkit.simulate.router import SimulatedRouter
    from toolkit.simulate.worker_states import SimulatedRankState


class Staged:
    """Asks the mover, as the router does, who is to move, and keeps their places meanwhile.

    A request on its way counts at its target, as one that waits there, from the beginning, and at
    its source until it goes on at the target.
    """

    def __init__(
        self,
        events: Events,
        mover: Mover,
        router: SimulatedRouter,
        tokens_per_s: float,
        rebalance: Rebalance,
    ) -> None:
        """`tokens_per_s`: of a line that KV moves over, 0 where it takes no time. `rebalance`: how
        often a pass is made. `run` with the moves begins it."""
        self.events = events
        self.mover = mover
        self.passes = 0
        self._router = router
        self._states = router.rank_states
        self._stages = router.stages.stages if router.stages else [0] * len(self._states)
        self._tokens_per_s = tokens_per_s
        self._rebalance = rebalance
        ranks = [state.rank for state in self._states]
        self._ranks: dict[Hashable, SimulatedRank] = {rank.key: rank for rank in ranks}
        self._coming: dict[SimulatedRank, dict[Request, SimulatedMove]] = {r: {} for r in ranks}
        self._places: dict[SimulatedMove, Reservation] = {}
        self._going: dict[SimulatedRank, int] = dict.fromkeys(ranks, 0)
        self._moves: SimulatedMoves | None = None
        self._soon: Event | None = None

    def run(self, moves: SimulatedMoves) -> None:
        """Look from now on."""
        self._moves = moves
        self.events.after(self._rebalance.every_s, self._tick)

    def refine(self, refiner: Refiner, narrowing: StageFilter) -> None:
        """From now on the stages' bounds follow the lengths of who runs."""
        self.events.after(self._rebalance.refine_s, self._refine, refiner, narrowing)

    # ---- what becomes of a move ----

    def coming(self, moving: SimulatedMove) -> None:
        self._coming[moving.target][moving.request] = moving
        self._going[moving.source] += 1
        place = self._router.reserve(moving.request, moving.target, moving.length)
        self._places[moving] = place

    def moved(self, moving: SimulatedMove, said: int) -> None:
        self._over(moving)
        self._router.moved(moving.request, self._places.pop(moving), said)

    def given_up(self, moving: SimulatedMove) -> None:
        self._over(moving)
        self._router.give_up(self._places.pop(moving))

    def _over(self, moving: SimulatedMove) -> None:
        del self._coming[moving.target][moving.request]
        self._going[moving.source] -= 1
        if self._soon is None:
            self._soon = self.events.after(self._rebalance.soon_s, self._pass_soon)

    # ---- passes ----

    def _tick(self) -> None:
        self._pass()
        self.events.after(self._rebalance.every_s, self._tick)

    def _pass_soon(self) -> None:
        self._soon = None
        self._pass()

    def _pass(self) -> None:
        assert self._moves is not None
        self.passes += 1
        for move in self.mover.decide([self._instance(*each) for each in self._each()]):
            request, source, target = move.request, move.source, move.target
            assert isinstance(request, Request)
            self._moves.begin(request, self._ranks[source], self._ranks[target], move.why)

    def _refine(self, refiner: Refiner, narrowing: StageFilter) -> None:
        batches: list[list[Batch]] = [[] for _ in refiner.layout.stages]
        for state, stage in self._each():
            loop = state.loop
            done = loop.steps + loop.taken()
            running = state.rank.running
            batches[stage].append(
                [(r.prompt, r.prompt + r.generated + done - r.joined) for r in running]
            )
        self.mover.layout = narrowing.layout = refiner.refine(batches)
        self.events.after(self._rebalance.refine_s, self._refine, refiner, narrowing)

    def _each(self) -> list[tuple[SimulatedRankState, int]]:
        return list(zip(self._states, self._stages, strict=True))

    def _instance(self, state: SimulatedRankState, stage: int) -> Instance:
        rank, loop = state.rank, state.loop
        assert self._moves is not None
        way = self._moves.under_way
        done = loop.steps + loop.taken()
        running = [
            RunningRequest(
                r,
                r.prompt + r.generated + done - r.joined,
                r.first_token == r.first_token,  # it has said something
                r in way,
                r.prompt,
            )
            for r in rank.running
        ]
        coming = self._coming[rank]
        waiting = [r for r in state.unbegun if r not in rank.running]
        running += [RunningRequest(r, r.prompt, movable=False, prompt=r.prompt) for r in waiting]
        running += [
            RunningRequest(r, r.to_fill, movable=False, prompt=r.prompt) for r in rank.retracted
        ]
        place = rank.place
        used = loop.kv_of(place) + sum(r.prompt for r in waiting)
        # Those that have come and not yet gone on are in the batch already.
        ahead = [moving for r, moving in coming.items() if r not in rank.running]
        kept = sum(moving.tokens or moving.length for moving in ahead)
        taken = len(rank.running) + len(waiting) + len(ahead) + len(rank.retracted)
        return Instance(
            rank.key,
            stage,
            tuple(running),
            coming_tokens=sum(moving.length for moving in coming.values()),
            free_tokens=max(0, rank.capacity - used - kept),
            slots_free=max(0, rank.slots - taken),
            tokens_per_s=self._tokens_per_s,
            moving=len(coming) + self._going[rank],
        )
