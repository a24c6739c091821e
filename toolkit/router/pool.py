"""Finished prefills that wait for a decode rank, and the rounds that bind them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic

from toolkit.policies.base import Policy, RequestView, WorkerView
from toolkit.policies.following import Following
from toolkit.policies.rounds.assign import Assigner
from toolkit.policies.rounds.due import Rounds
from toolkit.policies.stages.narrowing import StageFilter
from toolkit.policies.support.readings import kv_sizes, read_ranks
from toolkit.router.errors import ApiError
from toolkit.router.known_workers import KnownWorkers
from toolkit.router.rank import Rank
from toolkit.router.request import SubRequest
from toolkit.router.reservation import Reservation

log = logging.getLogger("toolkit.router")

BELIEVED_S = 1.0
"""A reading that says full and does not change, where nothing of ours runs, is believed so long."""


class Waiter:
    """A request in the pool. `bound` ends with its reservation, or with the ApiError that it
    gets."""

    __slots__ = ("bound", "entered", "generated", "streams", "sub_request", "taken", "view")

    def __init__(
        self, sub_request: SubRequest, view: RequestView, streams: bool, generated: int
    ) -> None:
        self.sub_request = sub_request
        self.view = view
        self.streams = streams
        self.generated = generated
        self.entered = monotonic()
        self.bound: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        self.taken = False

    def take(self) -> Reservation:
        """The reservation, which is the caller's from now on. ApiError: there will be none."""
        reservation = self.bound.result()
        self.taken = True
        return reservation


class Pool:
    """Rounds of `Assigner.assign` over all that wait, while the decode policy is one.

    `Rounds` says when one is due; "at once" is the turn of the event loop after the event: nobody
    waits for longer than it takes to hear of a free slot. Who is bound counts on the rank at once,
    and the next round sees it.

    A request that failed on a worker is assigned among the others, before those who never failed,
    as long as there are others; best-effort requests are assigned behind all others. Nobody waits
    for more than `park_timeout_s`, as its KV is locked on the prefill worker: then it goes to the
    rank that the policy takes for it alone, full or not, and waits there. While no decode worker is
    up, it waits that long for one to come back, and then
    gets 503. When the policy has changed to one that does not assign, that one chooses for all.
    With `stages` a round is one for each stage that somebody waits for, over its ranks.
    """

    def __init__(
        self,
        known_workers: KnownWorkers,
        policy: Callable[[], Policy],
        following: Callable[[], Following | None],
        choose: Callable[[SubRequest, RequestView], Rank | None],
        usable: Callable[[SubRequest], list[bool]],
        park_timeout_s: float,
        on_bound: Callable[[float], None] = lambda waited_s: None,
        stages: StageFilter | None = None,
    ) -> None:
        self._ranks = known_workers.side("decode")
        self._probation = known_workers.probation
        self._policy = policy
        self._following = following
        self._choose = choose
        self._usable = usable
        self._park_timeout_s = park_timeout_s
        self._on_bound = on_bound
        self._stages = stages
        self._waiting: dict[Waiter, None] = {}
        self._rounds = Rounds()
        self._next: asyncio.Handle | None = None
        self._gone_at: float | None = None
        self.bound = 0
        self.expired = 0
        """Of those, bound since their time was up."""
        for worker in {rank.worker for rank in self._ranks}:
            worker.on_event = self.event

    @property
    def depth(self) -> int:
        return len(self._waiting)

    def enter(
        self, sub_request: SubRequest, view: RequestView, streams: bool = False, generated: int = 0
    ) -> Waiter:
        """A prefill is done: its request waits until `bound` is done or it is taken out."""
        waiter = Waiter(sub_request, view, streams, generated)
        self._waiting[waiter] = None
        self.event()
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """It does not wait any more. A reservation that nobody has taken is given back."""
        self._waiting.pop(waiter, None)
        if waiter.bound.cancel() or waiter.bound.cancelled() or waiter.taken:
            return
        if waiter.bound.exception() is None:
            waiter.taken = True
            waiter.bound.result().cancel()

    def event(self) -> None:
        """Something has changed that may let somebody go."""
        if self._waiting:
            now = asyncio.get_running_loop().time()
            if self._rounds.notified(now, len(self._waiting)):
                self._arm(now)

    def reading(self) -> None:
        """A rank has published its load."""
        if self._waiting:
            now = asyncio.get_running_loop().time()
            if self._rounds.reading(now, len(self._waiting)):
                self._arm(now)

    def _arm(self, now: float) -> None:
        """The next round is due otherwise than it was."""
        if self._next is not None:
            self._next.cancel()
        loop, due = asyncio.get_running_loop(), self._rounds.due
        assert due is not None
        self._next = loop.call_at(due, self._round) if due > now else loop.call_soon(self._round)

    def _round(self) -> None:
        self._next = None
        self._rounds.begun()
        if not self._waiting:
            return
        try:
            self._bind_all(monotonic())
        except Exception as error:
            # A policy that fails must not leave anybody waiting. Its text may hold anything.
            name = self._policy().name
            log.error("policy %s failed in a round: %s", name, type(error).__name__)
            self._refuse(list(self._waiting), 500, f"policy {name} failed")
        now = asyncio.get_running_loop().time()
        if self._rounds.over(now, len(self._waiting)):
            self._arm(now)

    def _bind_all(self, now: float) -> None:
        if not any(rank.open for rank in self._ranks):
            self._gone_at = now if self._gone_at is None else self._gone_at
            since = self._gone_at
            due = [w for w in self._waiting if self._is_late(max(since, w.entered), now)]
            self._refuse(due, 503, "No healthy decode worker.", retry_after=2)
            return
        self._gone_at = None
        policy = self._policy()
        assigner = policy if isinstance(policy, Assigner) else None
        for waiter in list(self._waiting):
            late = self._is_late(waiter.entered, now)
            if assigner is not None and not late:
                break  # nor are those who came after it
            rank = self._choose(waiter.sub_request, waiter.view)
            if rank is not None:
                self.expired += late
                self._bind(waiter, rank)
        if assigner is not None:
            self._assign(assigner, now)

    def _is_late(self, since: float, now: float) -> bool:
        return now - since >= self._park_timeout_s

    def _assign(self, policy: Assigner, now: float) -> None:
        failed = [waiter for waiter in self._waiting if waiter.sub_request.avoid]
        for waiter in failed:
            self._place(policy, [waiter], now)
        others = (
            [w for w in self._waiting if not w.sub_request.avoid] if failed else [*self._waiting]
        )
        urgent = [waiter for waiter in others if waiter.view.urgent]
        behind = [waiter for waiter in others if waiter.view.best_effort]
        if urgent and any(rank.worker.config.preempts for rank in self._ranks):
            self._place(policy, urgent, now)
            left = [waiter for waiter in urgent if waiter in self._waiting]
            if left:  # there is no room but that of answers that are paused for them
                self._place(policy, left, now, urgent=True)
            others = [waiter for waiter in others if not waiter.view.urgent]
        if behind:
            others = [waiter for waiter in others if not waiter.view.best_effort]
        for waiters in filter(None, (others, behind)):
            self._place(policy, waiters, now)

    def _place(
        self, policy: Assigner, waiters: Sequence[Waiter], now: float, urgent: bool = False
    ) -> None:
        """One round of the policy over these, who avoid the same, in each stage of their lengths.
        `urgent`: best-effort answers give way to them."""
        if self._stages is None:
            self._place_here(policy, waiters, now, urgent)
            return
        stage_of = self._stages.layout.stage_of
        by_stage: dict[int, list[Waiter]] = {}
        for waiter in waiters:
            by_stage.setdefault(stage_of(waiter.view.prompt_tokens), []).append(waiter)
        for group in by_stage.values():
            self._place_here(policy, group, now, urgent)

    def _place_here(
        self, policy: Assigner, waiters: Sequence[Waiter], now: float, urgent: bool
    ) -> None:
        wanted = [waiter.view for waiter in waiters]
        views = self._views(wanted, waiters[0].sub_request, now, urgent)
        for made in policy.assign(views, wanted):
            waiter = waiters[made.request]
            if waiter not in self._waiting or not views[made.worker].healthy:
                raise ValueError("an assignment that cannot be")
            if self._stages is not None:
                self._stages.note(waiter.view.prompt_tokens, made.worker)
            self._bind(waiter, self._ranks[made.worker])

    def _views(
        self, wanted: Sequence[RequestView], sub_request: SubRequest, now: float, urgent: bool
    ) -> list[WorkerView]:
        """As the policy is to see them: whom the dispatcher leaves out is down, and one that is on
        probation takes one request."""
        views = []
        usable = self._usable(sub_request)
        if self._stages is not None:  # they are of one stage
            usable = self._stages.narrow(wanted[0].prompt_tokens, usable)
        for rank, ok in zip(self._ranks, usable, strict=True):
            view = _believable(rank, rank.view(now, ok, urgent), wanted, now)
            views.append(replace(view, slots=1) if ok and rank.worker.record.out else view)
        return views

    def _bind(self, waiter: Waiter, rank: Rank) -> None:
        if waiter.sub_request.record.suspect:
            self._probation.take(rank.worker.name, waiter.sub_request)
        reservation = Reservation(
            rank, waiter.view, self._following(), waiter.streams, waiter.generated
        )
        del self._waiting[waiter]
        waiter.bound.set_result(reservation)
        self.bound += 1
        self._on_bound(monotonic() - waiter.entered)

    def _refuse(
        self,
        waiters: Sequence[Waiter],
        status: int,
        message: str,
        retry_after: int | None = None,
    ) -> None:
        for waiter in waiters:
            del self._waiting[waiter]
            waiter.bound.set_exception(ApiError(status, message, retry_after=retry_after))


def _believable(
    rank: Rank, view: WorkerView, wanted: Sequence[RequestView], now: float
) -> WorkerView:
    """Without a reading that says "full" for ever: where nothing of ours runs, nothing of ours will
    end, so that nothing would ever free it. Then it counts as silent, which has a free slot and
    comes last; what is full in truth, with other routers' requests, changes at every step."""
    load = view.load
    if load is None or view.inflight or rank.quiet_s(now) < BELIEVED_S:
        return view
    ranks = read_ranks([replace(view, healthy=True)])
    fits = ranks.room[0] >= min(ranks.pool, min(kv_sizes(wanted)))
    full = 0 < view.slots <= load.requests
    return replace(view, load=None) if full or not fits else view
