"""Workers that prefill and decode both, where best-effort prompts give way to latency-sensitive
requests."""

from collections import deque
from typing import Any

from toolkit.simulate.plain import PlainGroup, PlainRank
from toolkit.simulate.preemption import Preemption, SlicedPass
from toolkit.simulate.prompt_order import WAIT_LIMIT, PromptOrder, latency_sensitive, stoppable
from toolkit.simulate.prompt_queue import Part


class StoppingGroup(PlainGroup):
    """As `patches.preempt`: best-effort prompts are in passes of their own, behind all others and
    behind the answers of latency-sensitive requests (`PromptOrder`). Such a pass is looked at
    between two slices. While it stands still latency-sensitive requests are prefilled to their
    first token, and nobody takes a decode step; then it goes on.

    Ranks that take their steps together stop between chunks only, and so does a pass that holds a
    decode step (`mixed`).
    """

    def __init__(self, preemption: Preemption, *args: Any) -> None:
        super().__init__(*args)
        self.preemption = preemption
        self._order = {rank: PromptOrder() for rank in self._plain}
        self._counted: list[PromptOrder] = []
        """Whose best-effort prompts wait while the steps that are planned go first."""
        self._sliced: SlicedPass | None = None
        """The pass that runs, or stands still, where it can be stopped."""
        self._beside: list[Part] = []
        """The pass of latency-sensitive requests, while that one stands still."""
        self._was_full = False

    # ---- who is let in ----

    def _prepare(self) -> None:
        self._counted = []
        super()._prepare()

    def _next_pass(self, rank: PlainRank) -> list[Part]:
        order = self._order[rank]
        answering = any(latency_sensitive(r) and not self._through(r) for r in rank.running)
        parts = order.next(rank.prompts, answering, lambda wanted: self._pass_of(rank, wanted))
        if answering and not parts and any(map(stoppable, rank.prompts.all)):
            self._counted.append(order)
        return parts

    def _steps_left(self) -> int:
        left = super()._steps_left()
        patient = (WAIT_LIMIT - each.passed + 1 for each in self._counted)
        return max(1, min(left, *patient)) if self._counted else left

    def _advance(self) -> None:
        if not self._passes:
            for order in self._counted:
                order.passed += max(0, self._hop - 1)  # it was asked once for all these steps
        super()._advance()

    # ---- a pass in slices ----

    def _begin_pass(self, seconds: float) -> None:
        if self._can_stop():
            (parts,) = self._passes.values()
            self._sliced = self.preemption.sliced(parts, seconds)
            seconds = self._sliced.slice_s
        super()._begin_pass(seconds)

    def _can_stop(self) -> bool:
        if len(self._plain) > 1 or self.preemption.slices < 2:
            return False
        (rank,) = self._plain
        mixes = self.mixed and bool(rank.running)
        return not mixes and all(stoppable(part.request) for part in self._passes[rank])

    def _boundary(self) -> None:
        sliced = self._sliced
        if sliced is None:
            super()._boundary()
            return
        self._planned = None
        self._spent()
        if sliced.stopped_at is not None:
            self._join()
        else:
            sliced.sliced()
            if sliced.over:
                self._sliced = None
                super()._boundary()
                return
        self._take_in()
        self._go_on(sliced)

    def _go_on(self, sliced: SlicedPass) -> None:
        """With latency-sensitive requests, or with the next slice."""
        (rank,) = self._plain
        now = self.events.now
        if sliced.stopped_at is None:
            waiting = [each for each in rank.prompts.waiting if latency_sensitive(each)]
            if not sliced.stops(waiting, now):
                self._start(1, sliced.slice_s, 0.0)
                return
            sliced.stop(now)
            self._was_full, rank.full = rank.full, False
        self._beside = self._pass_of(rank, sliced.wanted(rank.prompts.halves, now))
        if self._beside:
            shape = [(new, before) for _, new, before in self._beside]
            self._start(1, self.cost.prefill_s(shape), 0.0)
            return
        rank.full = self._was_full
        sliced.resume(now)
        self._start(1, sliced.slice_s, 0.0)

    def _spent(self) -> None:
        """Of the round that is not over yet."""
        now = self.events.now
        self.busy_s += now - self._begin
        self.prefill_s += now - self._begin
        self._begin = now

    def _join(self) -> None:
        """Latency-sensitive requests are prefilled."""
        (rank,) = self._plain
        parts, self._beside = self._beside, []
        for request in rank.prompts.passed(parts):
            self._prefilled(rank, request)
        self._finish()

    def _take_in(self) -> None:
        """Who has come; whatever else is due when the round is over waits for that."""
        agenda, self._agenda = self._agenda, deque()
        for due, action, given in agenda:
            if action == self._wait:
                action(*given)
            else:
                self._agenda.append((due, action, given))
