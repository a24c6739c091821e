"""The router: the same policy objects as the real one, on simulated workers."""

from collections import deque
from dataclasses import dataclass, replace
from typing import Literal

from toolkit.contract.request_class import RequestClass
from toolkit.policies import Policy
from toolkit.policies.base import RequestView, WorkerView
from toolkit.policies.rounds.assign import Assigner
from toolkit.policies.rounds.due import Rounds
from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.narrowing import StageFilter
from toolkit.simulate.events import Event, Events
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.lengths import Followed
from toolkit.simulate.prefill import PrefillWorker
from toolkit.simulate.rank import SimulatedRank
from toolkit.simulate.rank_view import RankView
from toolkit.simulate.refits import SimulatedRefits
from toolkit.simulate.request import Request


@dataclass(frozen=True)
class RouterTimes:
    """Seconds. `hop`: between router and worker, each way; `report`: how often a worker's load is
    read, 0 after every step (SGLang's own router: seconds)."""

    hop: float = 0.001
    report: float = 0.0


KEPT_BACK = 8
"""One in so many credits of a prefill worker is for others than best-effort requests, as
`toolkit.router.dispatch` has it."""


class SimulatedRouter:
    """Arrival -> prefill worker -> (late) decode rank; or both at arrival (early); or, where there
    are no prefill workers, arrival -> a rank that does both, which the decode policy chooses.

    As `toolkit.router`: a prefill worker takes as many requests whose decode is not chosen as it
    has credits; finished prefills wait in a pool when the decode policy assigns in rounds, and a
    round takes place when something was heard that may let one go. With `classes` best-effort
    requests wait behind all others, and `stops` says whether workers that prefill and decode both
    stop their prompts.
    """

    def __init__(
        self,
        events: Events,
        prefills: list[PrefillWorker],
        ranks: list[SimulatedRank],
        prefill_policy: Policy,
        decode_policy: Policy,
        times: RouterTimes,
        dispatch: Literal["late", "concurrent"] = "late",
        experts: SimulatedExperts | None = None,
        classes: bool = False,
        stops: bool = False,
        layout: Layout | None = None,
    ) -> None:
        """`layout`: the stages of these ranks, in their order; None: every one takes all."""
        self.events = events
        self.prefills = prefills
        self.times = times
        self.dispatch = dispatch if prefills else "concurrent"
        self.prefill_policy, self.decode_policy = prefill_policy, decode_policy
        self.classes = classes
        self.rank_views = [RankView(rank, stops) for rank in ranks]
        self.pool: deque[Request] = deque()
        self.queue: deque[Request] = deque()
        """Arrived, no prefill worker has a credit."""
        self.behind: deque[Request] = deque()
        """Best-effort ones."""
        self._kept_back = prefills[0].credit // KEPT_BACK if classes and prefills else 0
        self.rounds = 0
        self._ranks = ranks
        self.stages = None if layout is None else StageFilter(layout)
        self._rank_view = {
            rank.key: rank_view for rank, rank_view in zip(ranks, self.rank_views, strict=True)
        }
        self._at: dict[Request, PrefillWorker] = {}
        needs = decode_policy.needs
        self.followed = Followed(decode_policy.follow()) if needs.following else None
        self.refits = SimulatedRefits.of(decode_policy)
        self._assigner = decode_policy if isinstance(decode_policy, Assigner) else None
        self._signatures = None if experts is None else experts.signatures
        self._rounds = Rounds()
        self._next: Event | None = None
        if times.report:
            events.at(0.0, self._read_all)

    # ---- a request's way ----

    def arrive(self, request: Request) -> None:
        """A client's request is here."""
        signature = None
        if self.prefills and self._signatures is not None and request.row >= 0:
            signature = self._signatures[request.row]
        request.view = RequestView(
            prompt_tokens=request.prompt,
            blocks=request.blocks,
            user=request.user or None,
            signature=signature,
            label=request.label or None,
            prompt_hash=request.prompt_id,
            max_new_tokens=request.output if request.told else 0,
            now=self.events.now,
            request_class=request.request_class if self.classes else RequestClass.STANDARD,
        )
        if not self.prefills:
            self._bind(request, self._choose(request))
            return
        line = self.behind if request.view.best_effort else self.queue
        line.append(request)
        self._admit()

    def _admit(self) -> None:
        while line := self.queue or self.behind:
            late = self.dispatch == "late"
            left = self._kept_back if line is self.behind else 0
            usable = [not late or prefill.credit > left for prefill in self.prefills]
            if not any(usable):
                return
            request = line.popleft()
            urgent = request.view.urgent
            views = [p.view(ok, urgent) for p, ok in zip(self.prefills, usable, strict=True)]
            decision = self.prefill_policy.choose(views, request.view)
            assert decision is not None
            prefill = self.prefills[decision.index]
            prefill.credit -= late
            self._at[request] = prefill
            if not late:
                self._bind(request, self._choose(request))
            self.events.after(self.times.hop, prefill.take, request)

    def prefilled(self, request: Request) -> None:
        """A prefill worker is done; the router hears of it a hop later."""
        if self.dispatch == "late":
            self.events.after(self.times.hop, self._decide, request)

    def _decide(self, request: Request) -> None:
        if self._assigner is not None:
            self.pool.append(request)
            self._notified()
        else:
            self._bind(request, self._choose(request))

    def _choose(self, request: Request) -> int:
        views = [rank_view.view_for(request) for rank_view in self.rank_views]
        views = self._narrowed(views, request)
        if self.followed is not None:
            self.followed.catch_up(self._ranks)
        decision = self.decode_policy.choose(views, request.view)
        assert decision is not None
        return decision.index

    def _bind(self, request: Request, index: int) -> None:
        rank_view = self.rank_views[index]
        request.bound = self.events.now
        rank_view.bind(request)
        if self.followed is not None:
            self.followed.sent(rank_view.rank, request, request.view)
        if self.refits is not None:
            self.refits.observe(request.view.signature, self.events.now)
        if self.dispatch == "late":
            self._at[request].credit += 1
        self.events.after(self.times.hop, rank_view.rank.group.arrive, rank_view.rank, request)
        if self.dispatch == "late":
            self._admit()

    # ---- what decode ranks say ----

    def began(self, rank: SimulatedRank, request: Request) -> None:
        """Its first token was made."""
        self._rank_view[rank.key].began(request)
        if self.followed is not None:
            self.followed.joined(rank, request)

    def prefill_of(self, request: Request) -> PrefillWorker:
        return self._at[request]

    def ended(self, rank: SimulatedRank, request: Request) -> None:
        """The router has relayed its last token."""
        rank_view = self._rank_view[rank.key]
        rank_view.leave(request)
        self._at.pop(request, None)
        if self.followed is not None:
            self.followed.ended(rank, request)
        self._notified()

    # ---- rounds ----

    def _notified(self) -> None:
        if self._rounds.notified(self.events.now, len(self.pool)):
            self._arm()

    def _arm(self) -> None:
        """The next round is due otherwise than it was."""
        if self._next is not None:
            self._next.cancel()
        assert self._rounds.due is not None
        self._next = self.events.at(self._rounds.due, self._round)

    def _round(self) -> None:
        self._next = None
        self._rounds.begun()
        if not self.pool or self._assigner is None:
            return
        self.rounds += 1
        waiting = list(self.pool)
        first = [each for each in waiting if not each.view.best_effort]
        behind = [each for each in waiting if each.view.best_effort]
        for line in filter(None, (first, behind)):
            self._assign_staged(self._assigner, line)
        if self._rounds.over(self.events.now, len(self.pool)):
            self._arm()

    def _assign_staged(self, assigner: Assigner, waiting: list[Request]) -> None:
        if self.stages is None:
            self._assign(assigner, waiting)
            return
        by_stage: dict[int, list[Request]] = {}
        for request in waiting:
            by_stage.setdefault(self.stages.layout.stage_of(request.prompt), []).append(request)
        for line in by_stage.values():
            self._assign(assigner, line)

    def _narrowed(self, views: list[WorkerView], request: Request) -> list[WorkerView]:
        """Those of other stages than the request's count as sick."""
        if self.stages is None:
            return views
        usable = self.stages.narrow(request.prompt, [view.healthy for view in views])
        return [
            view if view.healthy == ok else replace(view, healthy=ok)
            for view, ok in zip(views, usable, strict=True)
        ]

    def _assign(self, assigner: Assigner, waiting: list[Request]) -> None:
        """Of one stage, where there are some."""
        views = self._narrowed([rank_view.view() for rank_view in self.rank_views], waiting[0])
        if self.followed is not None:
            self.followed.catch_up(self._ranks)
        taken = set()
        for made in assigner.assign(views, [request.view for request in waiting]):
            taken.add(waiting[made.request])
            self._bind(waiting[made.request], made.worker)
        if taken:
            self.pool = deque(each for each in self.pool if each not in taken)

    def _read_all(self) -> None:
        for rank_view in self.rank_views:
            rank_view.reading = rank_view.live()
            rank_view.sent.clear()
        self.events.after(self.times.report, self._read_all)
