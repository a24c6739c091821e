"""Finished prefills that wait for a decode rank, and the rounds that assign them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from toolkit.decide.choosing import PolicyFailed
from toolkit.policies.base import RequestView, WorkerView
from toolkit.policies.rounds.assign import Assigner
from toolkit.policies.rounds.due import Rounds
from toolkit.policies.support.readings import kv_sizes, read_ranks

if TYPE_CHECKING:
    from toolkit.decide.choosing import Chooser
    from toolkit.decide.ranks import RankState
    from toolkit.decide.requests import RequestState
    from toolkit.decide.reservation import Reservation

BELIEVED_S = 1.0
"""A reading that says full and does not change, where nothing of ours runs, is believed so long."""


class BoundRequest(NamedTuple):
    """A request has its rank, after so long in the pool."""

    request: RequestState
    reservation: Reservation
    waited_s: float


@dataclass(slots=True)
class PoolRound:
    """What one round made of those who waited. `given_up`: as no decode worker is there, or
    (`failure`) as the policy failed."""

    bound: list[BoundRequest] = field(default_factory=list)
    given_up: list[RequestState] = field(default_factory=list)
    failure: PolicyFailed | None = None


class Pool:
    """Rounds of `Assigner.assign` over all that wait, while the decode policy is one.

    `Rounds` says when one is due; "at once" is when the host has told all that happened at the same
    time. Who is bound counts on the rank at once, and the next round sees it.

    A request that failed on a worker is assigned among the others, before those who never failed,
    as long as there are others; best-effort requests are assigned behind all others. Nobody waits
    for more than `park_timeout_s`, as its KV is locked on the prefill worker: then it goes to the
    rank that the policy takes for it alone, full or not, and waits there. While no decode worker is
    up, it waits that long for one to come back, and is then given up. When the policy has changed
    to one that does not assign, that one chooses for all. With stages a round is one for each stage
    that somebody waits for, over its ranks.
    """

    def __init__(self, choosing: Chooser, park_timeout_s: float) -> None:
        self._choosing = choosing
        self._ranks = choosing.ranks.of("decode")
        self._park_timeout_s = park_timeout_s
        self._waiting: dict[RequestState, float] = {}
        """Since when."""
        self._rounds = Rounds()
        self._gone_at: float | None = None
        self.rounds = 0
        """In which somebody waited."""
        self.bound = 0
        self.expired = 0
        """Of those, bound since their time was up."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def due(self) -> float | None:
        """When the next round is; None while nobody waits."""
        return self._rounds.due

    def enter(self, request: RequestState, now: float) -> None:
        """Its prefill is done."""
        self._waiting[request] = now
        self.notified(now)

    def leave(self, request: RequestState) -> None:
        """It does not wait any more, if it did."""
        self._waiting.pop(request, None)

    def notified(self, now: float) -> None:
        """Something has changed that may let somebody go."""
        self._rounds.notified(now, len(self._waiting))

    def reading(self, now: float) -> None:
        """A rank has published its load."""
        self._rounds.reading(now, len(self._waiting))

    def round(self, now: float) -> PoolRound:
        """The round that was due. A policy that fails leaves nobody waiting."""
        self._rounds.begun()
        made = PoolRound()
        if self._waiting:
            self.rounds += 1
            try:
                self._assign_all(made, now)
            except PolicyFailed as failure:
                made.failure = failure
                self._give_up(made, list(self._waiting))
        self._rounds.over(now, len(self._waiting))
        return made

    def _assign_all(self, made: PoolRound, now: float) -> None:
        if not any(rank.open for rank in self._ranks):
            self._gone_at = now if self._gone_at is None else self._gone_at
            gone_at = self._gone_at
            waited = [
                request
                for request, since in self._waiting.items()
                if self._late(max(gone_at, since), now)
            ]
            self._give_up(made, waited)
            return
        self._gone_at = None
        policy = self._choosing.policies["decode"]
        assigner = policy if isinstance(policy, Assigner) else None
        for request, since in list(self._waiting.items()):
            late = self._late(since, now)
            if assigner is not None and not late:
                break  # nor are those who came after it
            rank = self._choosing.choose("decode", request, now)
            if rank is not None:
                self.expired += late
                self._bind(made, request, rank, now)
        if assigner is not None:
            self._assign(made, assigner, now)

    def _late(self, since: float, now: float) -> bool:
        return now - since >= self._park_timeout_s

    def _assign(self, made: PoolRound, policy: Assigner, now: float) -> None:
        failed = [request for request in self._waiting if request.avoid]
        for request in failed:
            self._place(made, policy, [request], now)
        others = [r for r in self._waiting if not r.avoid] if failed else [*self._waiting]
        urgent = [request for request in others if request.view.urgent]
        behind = [request for request in others if request.view.best_effort]
        if urgent and any(rank.worker.spec.preempts for rank in self._ranks):
            self._place(made, policy, urgent, now)
            left = [request for request in urgent if request in self._waiting]
            if left:  # there is no room but that of answers that are paused for them
                self._place(made, policy, left, now, urgent=True)
            others = [request for request in others if not request.view.urgent]
        if behind:
            others = [request for request in others if not request.view.best_effort]
        for requests in filter(None, (others, behind)):
            self._place(made, policy, requests, now)

    def _place(
        self,
        made: PoolRound,
        policy: Assigner,
        requests: Sequence[RequestState],
        now: float,
        urgent: bool = False,
    ) -> None:
        """One round of the policy over these, who avoid the same, in each stage of their lengths.
        `urgent`: best-effort answers give way to them. Those whose KV does not get everywhere are
        placed one by one, before the others."""
        if self._choosing.pairs.known and len(requests) > 1:
            others = []
            for request in requests:
                if self._narrow(request):
                    self._place(made, policy, [request], now, urgent)
                else:
                    others.append(request)
            if not others:
                return
            requests = others
        stages = self._choosing.stages
        if stages is None:
            self._place_here(made, policy, requests, now, urgent)
            return
        by_stage: dict[int, list[RequestState]] = {}
        for request in requests:
            stage = stages.layout.stage_of(request.view.prompt_tokens)
            by_stage.setdefault(stage, []).append(request)
        for group in by_stage.values():
            self._place_here(made, policy, group, now, urgent)

    def _narrow(self, request: RequestState) -> bool:
        prefill = request.prefill_rank
        return prefill is not None and self._choosing.pairs.narrows(prefill.worker.name)

    def _place_here(
        self,
        made: PoolRound,
        policy: Assigner,
        requests: Sequence[RequestState],
        now: float,
        urgent: bool,
    ) -> None:
        wanted = [request.view for request in requests]
        views = self._views(wanted, requests[0], now, urgent)
        try:
            assignments = list(policy.assign(views, wanted))
        except Exception as error:
            raise PolicyFailed(f"policy {policy.name} failed", error) from error
        for each in assignments:
            request = requests[each.request]
            if request not in self._waiting or not views[each.worker].healthy:
                raise PolicyFailed(f"policy {policy.name} made an assignment that cannot be")
            if self._choosing.stages is not None:
                self._choosing.stages.note(request.view.prompt_tokens, each.worker)
            rank = self._ranks[each.worker]
            if request.record.suspect:
                self._choosing.probation.take(rank.worker.name, request)
            self._bind(made, request, rank, now)

    def _views(
        self, wanted: Sequence[RequestView], request: RequestState, now: float, urgent: bool
    ) -> list[WorkerView]:
        """As the policy is to see them: whom requests must not go to is down, and one that is on
        probation takes one request."""
        views = []
        usable = self._choosing.usable("decode", request, now)
        if self._choosing.stages is not None:  # they are of one stage
            usable = self._choosing.stages.narrow(wanted[0].prompt_tokens, usable)
        any_out = self._choosing.ranks.any_out("decode")
        for rank, ok in zip(self._ranks, usable, strict=True):
            view = rank.view(now, ok, urgent)
            if not view.inflight:
                view = _believable(rank, view, wanted, now)
            if any_out and ok and rank.worker.record.out:
                view = replace(view, slots=1)
            views.append(view)
        return views

    def _bind(self, made: PoolRound, request: RequestState, rank: RankState, now: float) -> None:
        reservation = self._choosing.reserve(
            rank, request.view, now, streams=request.streams, generated=request.generated
        )
        self._choosing.pair(request, rank, now)
        waited_s = now - self._waiting.pop(request)
        self.bound += 1
        made.bound.append(BoundRequest(request, reservation, waited_s))

    def _give_up(self, made: PoolRound, requests: Sequence[RequestState]) -> None:
        for request in requests:
            del self._waiting[request]
        made.given_up += requests


def _believable(
    rank: RankState, view: WorkerView, wanted: Sequence[RequestView], now: float
) -> WorkerView:
    """Without a reading that says "full" for ever: where nothing of ours runs, nothing of ours will
    end, so that nothing would ever free it. Then it counts as silent, which has a free slot and
    comes last; what is full in truth, with other routers' requests, changes at every step."""
    load = view.load
    if load is None or rank.quiet_s(now) < BELIEVED_S:
        return view
    ranks = read_ranks([replace(view, healthy=True)])
    fits = ranks.room[0] >= min(ranks.pool, min(kv_sizes(wanted)))
    full = 0 < view.slots <= load.requests
    return replace(view, load=None) if full or not fits else view
