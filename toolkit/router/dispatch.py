"""Which workers run a request, and what happens when one of them fails.

`Dispatcher.run` repeats `Attempt`s: each has its own bootstrap room and rid, since the room of a
failed transfer is dead and a decode posted to it hangs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from toolkit.decide.ejection import usable as ejected_left_out
from toolkit.policies import make_policy
from toolkit.policies.base import Needs, Policy, RequestView
from toolkit.policies.following import Following
from toolkit.policies.stages.narrowing import StageFilter
from toolkit.policies.support.stoppable import all_full
from toolkit.router import resumable
from toolkit.router.balance import Balance
from toolkit.router.decisions import DecisionRecord
from toolkit.router.errors import ApiError, Retry
from toolkit.router.known_workers import KnownWorkers
from toolkit.router.metrics import Metrics
from toolkit.router.moves import GoOn, Live, Moves
from toolkit.router.pool import Pool
from toolkit.router.rank import Rank
from toolkit.router.request import NOTHING, SubRequest, Wanted
from toolkit.router.reruns import Reruns
from toolkit.router.stream_memory import FORGOTTEN
from toolkit.router.wait_queue import QueuePlace
from toolkit.settings.router.choosing import Dispatch, FirstTokenFrom
from toolkit.settings.router.config import RouterConfig

if TYPE_CHECKING:
    from toolkit.router.attempt.upstream_calls import Answer
    from toolkit.router.client import ClientStream
    from toolkit.router.eldr.locality import Locality
    from toolkit.router.relay import Relay

log = logging.getLogger("toolkit.router")

RETRY_PAUSE_S = 0.02
KEPT_BACK = 8
"""One in so many parked prefills of a worker is for others than best-effort requests."""


class Dispatcher:
    """Chooses workers for sub-requests and runs them to the end."""

    def __init__(
        self,
        config: RouterConfig,
        known_workers: KnownWorkers,
        metrics: Metrics,
        locality: Locality | None = None,
    ) -> None:
        self.config = config
        self.known_workers = known_workers
        self.metrics = metrics
        self.locality = locality
        self.dispatch: Dispatch = config.dispatch
        self.first_token: FirstTokenFrom = config.first_token
        self.reruns = Reruns(config, known_workers, metrics)
        self.moves = Moves(self)
        self.parked = 0
        self._kept_back = 0 if config.classes is None else config.parked_per_prefill // KEPT_BACK
        """Credits of a prefill worker that best-effort requests leave for others."""
        self.policies: dict[str, Policy] = {}
        self.following: Following | None = None
        """Whom the decode policy has told of what is in flight; None where it needs nobody."""
        self.wanted = NOTHING
        self.pooling = False
        """Whether finished prefills wait in the pool: the decode policy assigns in rounds."""
        layout = config.layout
        self.stages = None if layout is None else StageFilter(layout)
        """Which decode ranks are for which lengths; None where all are for all."""
        self.balance = Balance(known_workers.side("decode")) if config.disaggregated else None
        self.pool = self._make_pool() if config.disaggregated else None
        for rank in known_workers.side("decode") if config.disaggregated else ():
            rank.worker.on_reading = self.read
        self.record = DecisionRecord(config)
        self.set_policy("prefill", config.prefill_policy)
        self.set_policy("decode", config.decode_policy)

    def set_policy(self, side: str, name: str) -> None:
        """A fresh policy for `side`. ValueError names the known ones."""
        seed, tau = self.config.seed, self.config.tau
        policy = self.record.of(make_policy(name, seed, side, tau), side)
        self.policies[side] = policy
        needs = Needs()
        for each in self.policies.values():
            needs |= each.needs
        self.wanted = Wanted(
            blocks=self.config.record is not None or needs.blocks,
            users=needs.user,
            hashes=needs.hash,
        )
        if side != "decode":
            return
        self.pooling = self.pool is not None and policy.needs.pool
        self.following = policy.follow() if policy.needs.following or policy.on_record else None
        if self.locality is not None:
            self.locality.attach(policy)
        if self.pool is not None:
            self.pool.event()

    def _make_pool(self) -> Pool:
        return Pool(
            self.known_workers,
            policy=lambda: self.policies["decode"],
            following=lambda: self.following,
            choose=partial(self.choose, "decode"),
            usable=partial(self.usable, "decode"),
            park_timeout_s=self.config.park_timeout_s,
            on_bound=self.metrics.pool_wait.observe,
            stages=self.stages,
        )

    def read(self, rank: Rank) -> None:
        """A decode rank has published its load."""
        assert self.balance is not None and self.pool is not None
        self.balance.read()
        self.pool.reading()

    def policy(self, role: str) -> Policy:
        # A plain worker does both; the decode policy balances it.
        return self.policies["decode" if role == "plain" else role]

    async def run(
        self,
        sub_request: SubRequest,
        relay: Relay | None,
        client: ClientStream | None,
        arrived: float,
    ) -> Answer | None:
        """Run a sub-request to its end: an answer, or None when the relay has streamed it.

        Raises:
            ApiError: what the client gets instead.
        """
        self.reruns.refuse_quarantined(sub_request)
        with self.moves.running(sub_request, relay) as live:
            return await self._run(live, sub_request, relay, client, arrived)

    async def _run(
        self,
        live: Live,
        sub_request: SubRequest,
        relay: Relay | None,
        client: ClientStream | None,
        arrived: float,
    ) -> Answer | None:
        from toolkit.router.attempt.deciding import Attempt

        attempts = busy = 0
        while True:
            number = attempts + live.moves
            try:
                answer = await Attempt(
                    self, sub_request, relay, client, number, arrived, live
                ).run()
                self.reruns.budget.succeeded()
                return answer
            except GoOn:
                assert relay is not None
                live.moves += 1
                sub_request.track.moves += 1
                sub_request.resume_ids = _ids(relay)
            except Retry as failure:
                attempts += 1
                busy += failure.kind == "busy"
                sub_request.avoid |= failure.suspects
                sub_request.track.failures.append(str(failure))
                log.warning(
                    "request %s: attempt %d failed: %s", sub_request.request_id, attempts, failure
                )
                await asyncio.sleep(RETRY_PAUSE_S * attempts)
                await self.reruns.await_outcome(failure)
                self.reruns.judge(sub_request, failure, attempts, busy)
                self._prepare_again(sub_request, relay, failure)
                live.failed(failure.worker)

    def _prepare_again(self, sub_request: SubRequest, relay: Relay | None, failure: Retry) -> None:
        if relay is None or not relay.sent.events:
            self.metrics.retries.inc()
            self.metrics.retried += 1
            return
        if relay.forgotten:
            message = f"The worker of this stream went away, and {FORGOTTEN}. Send it again."
            raise ApiError(502, message, "WorkerFailed") from failure
        try:
            sub_request.resume_ids = _ids(relay)
        except ApiError:
            raise failure.answer from failure
        unknown = not sub_request.resume_ids and relay.sent.progress().has_output
        if unknown or (sub_request.resume_ids and not self.known_workers.worker_key):
            # A plain SGLang does not tell the ids, and goes on from none: what the client has
            # cannot be continued.
            raise failure.answer from failure
        lost = resumable.why_not(sub_request) if sub_request.resume_ids else None
        if lost is not None:
            message = (
                f"The worker of this stream went away, and no other one can go on with it: {lost}. "
                "Send the request again."
            )
            raise ApiError(502, message, "WorkerFailed") from failure
        self.metrics.resumes.inc()
        self.metrics.resumed += 1

    async def pick(
        self,
        role: str,
        sub_request: SubRequest,
        view: RequestView,
        wait_s: float,
        deadline: float,
        credit: bool = False,
    ) -> Rank:
        """The policy's choice among healthy ranks (with `credit`: those that have one left).

        Waits for a credit as long as the request lives, and for a worker to come back `wait_s`, or
        as long as a start takes (`toolkit.decide.returns`), until the request's own `deadline`.
        Nobody overtakes those who wait, however often the health of workers changes meanwhile.

        Raises:
            ApiError: 503 with Retry-After when no worker of the role is healthy in time.
        """
        suspect = sub_request.record.suspect
        queue = self.known_workers.queue(role, suspect)
        if not (queue.waiting and (credit or suspect)):
            rank = self.choose(role, sub_request, view, credit)
            if rank is not None:
                return rank
        with queue.enter(view.best_effort) as place:
            entered = monotonic()
            while True:
                if place.first or suspect:
                    rank = self.choose(role, sub_request, view, credit)
                    if rank is not None:
                        return rank
                if self.known_workers.gone_at(role) is None:
                    await place.wait(self.config.request_timeout_s)
                    continue
                await self._stay(role, place, entered, wait_s, deadline)

    async def present(self, role: str, wait_s: float, deadline: float) -> None:
        """Return once some worker of the role is healthy; ApiError 503 when none is in time, which
        is as in `pick`."""
        if self.known_workers.any_healthy(role):
            return
        entered = monotonic()
        with self.known_workers.queue(role).enter() as place:
            while not self.known_workers.any_healthy(role):
                await self._stay(role, place, entered, wait_s, deadline)

    async def _stay(
        self, role: str, place: QueuePlace, entered: float, wait_s: float, deadline: float
    ) -> None:
        """Wait until something may have changed; ApiError 503 when the wait is over."""
        stay = self.known_workers.stay(role, entered, wait_s, deadline, monotonic())
        if stay.seconds <= 0:
            raise ApiError(503, f"No healthy {role} worker.", retry_after=stay.retry_after)
        await place.wait(stay.seconds)

    def usable(
        self, role: str, sub_request: SubRequest, credit: bool = False, left: int = 0
    ) -> list[bool]:
        """Which ranks of the role this request may go to now, in their order.

        Those that are up, without the ejected ones, those without more than `left` credits, and
        those that it failed on, as long as there are others; for a suspect, those that begin no
        other one. But it waits for such a one rather than going back to a worker that itself failed
        it: one that answers 500 to everything would put it in quarantine.
        """
        known_workers, ranks = self.known_workers, self.known_workers.side(role)
        records = [rank.worker.record for rank in ranks]
        up = [rank.open for rank in ranks]
        now = monotonic()
        usable = ejected_left_out(up, records, now, self.config.eject_share)
        if sub_request.record.suspect:
            usable = self._others(usable, ranks, sub_request.record.failed_by)
        if credit:
            usable = [ok and rank.credit > left for ok, rank in zip(usable, ranks, strict=True)]
        if sub_request.record.suspect:
            usable = [
                ok and known_workers.probation.free(rank.worker.name)
                for ok, rank in zip(usable, ranks, strict=True)
            ]
        return self._others(usable, ranks, sub_request.avoid) if sub_request.avoid else usable

    @staticmethod
    def _others(usable: list[bool], ranks: Sequence[Rank], failed: AbstractSet[str]) -> list[bool]:
        """Without those that it failed on. They are the last resort, not forbidden: a worker may
        be back."""
        fresh = [
            ok and rank.worker.name not in failed for ok, rank in zip(usable, ranks, strict=True)
        ]
        return fresh if any(fresh) else usable

    def choose(
        self, role: str, sub_request: SubRequest, view: RequestView, credit: bool = False
    ) -> Rank | None:
        """The policy's choice now; takes the credit, and a suspect's probation. None when nothing
        is usable."""
        ranks = self.known_workers.side(role)
        usable = self.usable(role, sub_request, credit, self._kept_back if view.best_effort else 0)
        if not any(usable):
            return None
        staged = self.stages if role == "decode" else None
        if staged is not None:
            usable = staged.narrow(view.prompt_tokens, usable)
        now = monotonic()
        stops = view.urgent and role != "decode"
        views = [rank.view(now, ok, stops) for rank, ok in zip(ranks, usable, strict=True)]
        if view.urgent and not stops and all_full(views):
            views = [rank.view(now, ok, True) for rank, ok in zip(ranks, usable, strict=True)]
        decision = self.policy(role).choose(views, view)
        if decision is None or not usable[decision.index]:
            raise ApiError(500, f"policy {self.policy(role).name} chose no usable {role} worker")
        rank = ranks[decision.index]
        if staged is not None:
            staged.note(view.prompt_tokens, decision.index)
        if sub_request.record.suspect:
            self.known_workers.probation.take(rank.worker.name, sub_request)
        if credit:
            rank.credit -= 1
        return rank

    def return_credit(self, rank: Rank) -> None:
        """Those who wait for one look again. Suspects first: they are as few as the workers."""
        rank.credit += 1
        role = rank.worker.config.role
        self.known_workers.queue(role, suspect=True).wake_all()
        self.known_workers.queue(role).wake_one()


def _ids(relay: Relay) -> list[int]:
    """What the client has. ApiError: a worker told ids that are none."""
    try:
        return relay.known_ids()
    except ValueError as error:
        raise ApiError(502, "A worker told ids of tokens that are none.", "WorkerFailed") from error
