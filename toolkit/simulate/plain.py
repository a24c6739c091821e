"""Workers that prefill and decode both: SGLang without disaggregation (`mode: plain`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify
from math import isnan
from typing import cast

from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.events import Events
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.movable import Movable
from toolkit.simulate.neighbours import Neighbours
from toolkit.simulate.prompt_order import Wanted, everybody
from toolkit.simulate.prompt_queue import Part, PromptQueue
from toolkit.simulate.rank import SimulatedRank
from toolkit.simulate.request import Request
from toolkit.simulate.reserve import CLIP, NewTokenRatio
from toolkit.simulate.scheduling import Scheduling


@dataclass(eq=False)
class PlainRank(SimulatedRank):
    """A rank that has prompts of its own. `full`: as SGLang's `batch_is_full`, nobody is let in
    before somebody has left. `shared`: KV tokens of its batch that the prefix cache has, too."""

    prompts: PromptQueue = field(default_factory=PromptQueue)
    ratio: NewTokenRatio = field(default_factory=NewTokenRatio)
    full: bool = False
    shared: int = 0


class PlainGroup(Movable):
    """Engines that prefill and decode both; ranks of DP attention together, or one.

    As SGLang's `get_next_batch_to_run`, each round of the loop is either a prefill pass, which goes
    first, or a decode step; meanwhile running answers stand still. `mixed` (SGLang's
    `--enable-mixed-chunk`, vLLM's chunked prefill): they take a step within the pass, and their
    tokens count towards the chunk. With DP attention a rank without prompts takes its step while
    others prefill, and all wait for the longest.

    A request is let in while there is a slot and its prompt, all it may answer (`limit` tokens,
    at least its own; None: its own), and a share of what running ones may still say (`ratio`) fit
    into free KV. Who is retracted waits again, at the end, and prefills prompt and answer anew. A
    prefix that several running requests share is counted for each of them; a prompt's blocks are
    in the cache from the end of its prefill. `static`: nobody is let in before the whole batch has
    ended, as inference servers did before continuous batching.
    """

    def __init__(
        self,
        events: Events,
        cost: CostModel,
        ranks: Sequence[PlainRank],
        scheduling: Scheduling,
        experts: SimulatedExperts | None,
        on_first: Callable[[SimulatedRank, Request], None],
        on_end: Callable[[SimulatedRank, Request], None],
        neighbours: Neighbours | None = None,
        mixed: bool = False,
        limit: int | None = None,
        static: bool = False,
    ) -> None:
        super().__init__(events, cost, ranks, scheduling, experts, on_first, on_end, neighbours)
        import numpy as np

        self._plain = list(ranks)
        self.mixed = mixed
        self.limit = limit
        self.static = static
        self.prefill_s = 0.0
        """Spent in passes."""
        self._passes: dict[PlainRank, list[Part]] = {}
        self._stepping: np.ndarray = np.ones(len(ranks), dtype=np.int64)
        """1: the rank takes a decode step in this round."""

    def arrive(self, rank: SimulatedRank, request: Request) -> None:
        """A request was sent to one of the ranks."""
        self.at_boundary(self._wait, rank, request, steps=self.scheduling.join)

    def kv_now(self) -> list[int]:
        import numpy as np

        return self.kv.astype(np.int64).tolist() if self._passes else super().kv_now()

    def computing(self, place: int) -> int:
        return int(self.coming[place] - self.expected[place])

    def _wait(self, rank: PlainRank, request: Request) -> None:
        # As `patches.pd.waiting_queue`, which ages by ms since a request came to the worker.
        rank.prompts.add(request, round(self.events.now * 1e3))

    # ---- what the next round is ----

    def _prepare(self) -> None:
        self._passes = {}
        for rank in self._plain:
            parts = self._next_pass(rank)
            if parts:
                self._passes[rank] = parts
            self._stepping[rank.place] = self.mixed or not parts
        self._make_room(self._stepping)
        for rank in self._plain:
            if rank.prompts.cache.tokens:
                rank.prompts.cache.shrink(max(0, self._room(rank) + rank.shared))

    def _next_pass(self, rank: PlainRank) -> list[Part]:
        if self.static and rank.running and not rank.prompts.halves:
            return []
        return self._pass_of(rank, everybody)

    def _pass_of(self, rank: PlainRank, wanted: Wanted) -> list[Part]:
        """Of those who are wanted, as far as they find room."""
        prompts = rank.prompts
        halves = [each for each in prompts.halves if wanted(each)]
        if not halves and (rank.full or not any(map(wanted, prompts.waiting))):
            return []
        running = len(rank.running)
        reserved = rank.ratio.reserved(self._left(rank)) + (running if self.mixed else 0)
        reserved += sum(map(self._answer, halves))

        def let_in(request: Request) -> bool:
            nonlocal reserved
            if rank.full or not self._fits(rank, request, reserved):
                rank.full = True
                return False
            reserved += self._answer(request)
            rank.coming += 1
            self.coming[rank.place] += request.to_fill
            prompts.begin(request, self.events.now)
            return True

        chunk = prompts.chunk - running if self.mixed else prompts.chunk
        return prompts.next_pass(max(1, chunk), round(self.events.now * 1e3), let_in, wanted)

    def _fits(self, rank: PlainRank, request: Request, reserved: float) -> bool:
        there = len(rank.running) + rank.coming
        if there >= rank.slots:
            return False
        # Alone it gets in, or nobody ever would.
        needed = request.to_fill + self._answer(request) + 1
        return not there or needed < self._room(rank) - reserved

    def _answer(self, request: Request) -> int:
        """Tokens for which it must find room when it gets in."""
        return min(self._asked(request) - request.generated, CLIP)

    def _asked(self, request: Request) -> int:
        """Tokens that its answer may have, as SGLang is told."""
        return request.output if self.limit is None else max(self.limit, request.output)

    def _left(self, rank: SimulatedRank) -> list[int]:
        return [max(0, self._asked(each) - self._said(each)) for each in rank.running]

    def _plan(self) -> None:
        if not self._passes:
            super()._plan()
            return
        self._look_at_experts()
        self._begin_pass(self._pass_s())

    def _begin_pass(self, seconds: float) -> None:
        self._start(1, seconds, 0.0)

    def _pass_s(self) -> float:
        """Of the rank for which it takes longest."""
        seconds = 0.0
        for rank, parts in self._passes.items():
            shape = [(new, before) for _, new, before in parts]
            running = len(rank.running)
            if self.mixed and running:
                shape += [(1, int(self.kv[rank.place]) // running)] * running
            seconds = max(seconds, self.cost.prefill_s(shape))
        if (self.requests * self._stepping).any():
            # A pass that holds a step is not over before that.
            seconds = max(seconds, self._step_s(1, self._stepping))
        return seconds

    def _tell_neighbours(self) -> None:
        if self._neighbours is None or not self._passes:
            super()._tell_neighbours()
            return
        self._neighbours.busy(self, "prefill")

    def _steps_left(self) -> int:
        if any(rank.prompts.waiting and not rank.full for rank in self._plain):
            return 1
        return super()._steps_left()

    # ---- what a round has done ----

    def _advance(self) -> None:
        passes, self._passes = self._passes, {}
        if not passes:
            for rank in self._plain:
                if rank.running:
                    rank.ratio.stepped(self._hop)
            super()._advance()
            return
        seconds = self.events.now - self._begin
        self.busy_s += seconds
        self.prefill_s += seconds
        self._set_hop(0)
        grown = self.requests * self._stepping * self.pace
        self.kv += grown
        self.made += grown
        if (self.requests * self._stepping).any():
            self._count_experts(1)
        for each in self._plain:
            if not self._stepping[each.place]:
                self._stand_still(each)
        self.steps += 1
        for rank, parts in passes.items():
            for request in rank.prompts.passed(parts):
                self._prefilled(rank, request)

    def _stand_still(self, rank: SimulatedRank) -> None:
        """The round that is over had no step of its batch: all that is due in steps is one later.

        Who has said everything and only waits for the loop to notice (`notices`, `stays`) does not.
        """
        rank.skipped += 1
        self.skips += 1
        for heap in (self._ends, self._leaves):
            heap[:] = [
                (due + (at is rank and not self._through(request)), number, request, at)
                for due, number, request, at in heap
            ]
            heapify(heap)
        for request in rank.running:
            request.joined += 1

    def _through(self, request: Request) -> bool:
        return request.joined + self.steps_for(request.output - request.generated) <= self.steps

    def _prefilled(self, rank: PlainRank, request: Request) -> None:
        """Into the batch with its first token, or its next one if it was retracted."""
        rank.coming -= 1
        self.coming[rank.place] -= request.to_fill
        self._share(rank, request)
        self._enter(rank, request, request.generated + 1)
        if not isnan(request.prefilled):
            return
        request.prefilled = self.events.now
        if self.scheduling.notices:
            due = self.steps + self.scheduling.notices
            self._agenda.append((due, self._on_first, (rank, request)))
        else:
            self._on_first(rank, request)

    def _share(self, rank: PlainRank, request: Request) -> None:
        """What it has of its prompt is in the prefix cache, too."""
        if request.block:
            rank.prompts.cache.add(request.blocks[: request.prompt // request.block], request.block)
            rank.shared += self._in_cache(request)

    def _moved_in(self, rank: SimulatedRank, request: Request) -> None:
        self._share(cast(PlainRank, rank), request)
        super()._moved_in(rank, request)

    @staticmethod
    def _in_cache(request: Request) -> int:
        if not request.block:
            return 0
        return min(len(request.blocks), request.prompt // request.block) * request.block

    def _freed(self, rank: SimulatedRank) -> None:
        """Who waits is looked at before every round."""
        cast(PlainRank, rank).full = False

    def _leave(self, rank: SimulatedRank, request: Request) -> None:
        super()._leave(rank, request)
        plain = cast(PlainRank, rank)
        plain.shared -= self._in_cache(request)
        plain.full = False

    def _retracted(self, rank: SimulatedRank, request: Request) -> None:
        plain = cast(PlainRank, rank)
        plain.ratio.retracted((self._said(other), self._asked(other)) for other in rank.running)
        request.cached = request.computed = 0
        plain.prompts.add(request, round(self.events.now * 1e3))
