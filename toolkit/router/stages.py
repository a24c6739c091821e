"""The loop that moves requests between decode ranks by itself, and refines stages."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from toolkit.policies.stages.moving import Instance, Mover, PlannedMove, RunningRequest
from toolkit.policies.stages.refining import Refiner
from toolkit.policies.support.readings import possible, read_ranks
from toolkit.router.first import first_of
from toolkit.router.quiet import where

if TYPE_CHECKING:
    from toolkit.router.known_workers import KnownWorkers
    from toolkit.router.moves import Live, MoveOutcome, Moves
    from toolkit.router.worker import Rank
    from toolkit.settings.router.rebalance import Rebalance

log = logging.getLogger("toolkit.router")

PLENTY = 1 << 40
"""Free KV tokens, or slots, of a rank that does not say how many it has."""
SHARE = 0.2
"""Of the newest figure in running means of what moves take."""
AGAIN_S = 2.0
"""A request that could not be moved after all does not ask for so long."""
PARTS = 20
"""Looks take at most one part in so many of the router's time: with thousands of requests one takes
some milliseconds, and moves may end at any rate."""


class Rebalancer:
    """Shows the `Mover` all decode ranks and their requests every `every_s`, and soon after a move
    has ended, and has its moves carried out (`toolkit.router.moves`).

    What a request weighs is its prompt and what was relayed of its answer; an answer that does not
    stream cannot be moved and weighs its prompt. What a rank has free is by its last reading and
    what was sent since. Ranks that are down, silent, ejected or held get none; who empties a rank
    moves its requests (`toolkit.router.drains`), so those of held ranks are left to him. A request
    whose move was refused rests for AGAIN_S.
    """

    def __init__(self, known_workers: KnownWorkers, moves: Moves, config: Rebalance) -> None:
        self._moves = moves
        self._config = config
        self._keyed = bool(known_workers.worker_key)
        self._ranks = known_workers.side("decode")
        self._narrowing = stages = known_workers.decider.choosing.stages
        self._stage = [0] * len(self._ranks) if stages is None else stages.stages
        qoe = config.model
        layout = None if stages is None else stages.layout
        quality = None if qoe is None else qoe.batch
        self.mover = Mover(layout, config.knobs, lambda length: self.price_s, quality)
        refines = layout is not None and qoe is not None and config.refine_s > 0
        self.refiner = (
            Refiner(layout, qoe, config.refine_weight)
            if refines and layout is not None and qoe is not None
            else None
        )
        self.price_s = config.move_s
        """What a move stalls a request, in a running mean."""
        self.tokens_per_s = 0.0
        """KV tokens that a move brings over a second, in a running mean; 0 before the first."""
        self.passes = 0
        self.pass_s = 0.0
        """What the last one took."""
        self.refused: Counter[str] = Counter()
        """Moves that did not come about, by how they ended: kept, ended or lost."""
        self._carried: dict[Live, PlannedMove] = {}
        self._rests: dict[Live, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[None] | None = None
        """Done when a move has ended since the last pass; None while it does not run."""
        self._refined_at = monotonic()

    async def run(self) -> None:
        """Until it is cancelled. A pass that fails is logged, and there is a next one."""
        if not self._keyed:
            log.warning("rebalance: nothing can be moved, as the router has no worker_api_key_env")
        ended = self._ended = asyncio.get_running_loop().create_future()
        try:
            while True:
                await first_of((ended,), self._config.every_s)
                if ended.done():
                    ended = self._ended = asyncio.get_running_loop().create_future()
                    await asyncio.sleep(max(self._config.soon_s, PARTS * self.pass_s))
                begun = monotonic()
                try:
                    self.run_pass()
                except Exception as error:
                    log.error("rebalancing failed: %s", where(error))
                self.pass_s = monotonic() - begun
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def run_pass(self) -> None:
        """One pass, and its moves begun."""
        now = monotonic()
        self.passes += 1
        self._rests = {live: until for live, until in self._rests.items() if until > now}
        instances = self.instances(now)
        self._refine(instances, now)
        for move in self.mover.decide(instances):
            live: Any = move.request
            self._carried[live] = move
            task = asyncio.create_task(self._carry(live, move))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def instances(self, now: float) -> list[Instance]:
        """All decode ranks as they are."""
        held: defaultdict[Rank, list[Live]] = defaultdict(list)
        coming: Counter[Rank] = Counter()
        moving: Counter[Rank] = Counter()
        for live in self._moves.all():
            if live.rank is not None:
                held[live.rank].append(live)
            for source, target in self._on_its_way(live):
                coming[target] += live.length
                moving.update((source, target))
        return [
            self._instance(place, rank, held[rank], coming[rank], moving[rank], now)
            for place, rank in enumerate(self._ranks)
        ]

    def _on_its_way(self, live: Live) -> Sequence[tuple[Rank, Rank]]:
        """From where to where it is moved now, by us or by others."""
        if live.move is not None:
            return [(live.move.source, live.move.target)]
        ours = self._carried.get(live)
        if ours is None:
            return []
        return [(self._ranks[ours.source], self._ranks[ours.target])]  # type: ignore[call-overload]

    def _instance(
        self, place: int, rank: Rank, held: Sequence[Live], coming: int, moving: int, now: float
    ) -> Instance:
        ranks = read_ranks([rank.view(now, True)])
        reading = rank.load(now)
        room, slots = ranks.room[0], ranks.slots[0]
        known, spare = reading is not None and possible(reading), None
        if reading is not None and known and reading.total_tokens:
            sent = reading.waiting_tokens + reading.sent_tokens
            spare = reading.total_tokens - reading.used_tokens - sent
        return Instance(
            rank=place,
            stage=self._stage[place],
            running=tuple(self._running(live, rank) for live in held),
            coming_tokens=coming,
            free_tokens=int(room) if room < PLENTY else PLENTY,
            slots_free=int(slots) if slots < PLENTY else PLENTY,
            tokens_per_s=self.tokens_per_s,
            moving=moving,
            held=not (rank.open and known) or rank.worker.record.out,
            spare_tokens=spare,
        )

    def _running(self, live: Live, rank: Rank) -> RunningRequest:
        moving = bool(self._on_its_way(live))
        length = live.length
        return RunningRequest(
            request=live,
            length=length,
            movable=not (moving or rank.held or live in self._rests)
            and self._moves.why_not(live) is None,
            moving=moving,
            prompt=length - live.generated,
            left=live.left,
        )

    async def _carry(self, live: Live, move: PlannedMove) -> None:
        target: Any = move.target
        began = monotonic()
        try:
            outcome = await self._moves.move(live, self._ranks[target], move.why)
            self._over(live, outcome, monotonic() - began)
        finally:
            self._carried.pop(live, None)
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(None)

    def _over(self, live: Live, outcome: MoveOutcome, took_s: float) -> None:
        if outcome.how != "moved":
            self.refused[outcome.how] += 1
            self._rests[live] = monotonic() + AGAIN_S
            return
        self.price_s += SHARE * (outcome.stall_s - self.price_s)
        speed = outcome.tokens / took_s if took_s > 0 else 0.0
        before = self.tokens_per_s
        self.tokens_per_s = speed if not before else before + SHARE * (speed - before)

    def _refine(self, instances: Sequence[Instance], now: float) -> None:
        stages = self._narrowing
        if self.refiner is None or stages is None:
            return
        if now - self._refined_at < self._config.refine_s:
            return
        self._refined_at = now
        batches: list[list[list[tuple[int, int]]]] = [[] for _ in stages.layout.stages]
        for each in instances:
            if not each.held:
                batch = [(one.prompt, one.length) for one in each.running if not one.moving]
                batches[each.stage].append(batch)
        layout = self.refiner.refine(batches)
        if layout != stages.layout:
            log.info("stages end at %s now", ", ".join(map(str, layout.bounds)))
            stages.layout = self.mover.layout = layout

    def describe(self) -> dict[str, Any]:
        """For GET /workers."""
        return {
            "passes": self.passes,
            "pass_ms": round(self.pass_s * 1e3, 3),
            "moves": dict(self.mover.counters.moves),
            "passed": dict(self.mover.counters.passed),
            "refused": dict(self.refused),
            "price_ms": round(self.price_s * 1e3, 3),
            "tokens_per_s": round(self.tokens_per_s),
        }
