"""Which workers run a request, and what happens when one of them fails.

`Dispatcher.run` repeats `Attempt`s: each has its own bootstrap room and rid, since the room of a
failed transfer is dead and a decode posted to it hangs (`late_binding.md`, "Faults").
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from toolkit.policies import make_policy
from toolkit.policies.assign import Assigner
from toolkit.policies.base import Policy, RequestView
from toolkit.router.balance import Balance
from toolkit.router.config import Dispatch, RouterConfig
from toolkit.router.errors import ApiError, Retry
from toolkit.router.metrics import Metrics
from toolkit.router.pool import Pool
from toolkit.router.request import NOTHING, Single, Wanted
from toolkit.router.worker import Fleet, Rank

if TYPE_CHECKING:
    from toolkit.router.attempt import Answer
    from toolkit.router.client import ClientStream
    from toolkit.router.locality import Locality
    from toolkit.router.relay import Relay

log = logging.getLogger("toolkit.router")

RETRY_PAUSE_S = 0.02


class Dispatcher:
    """Chooses workers for single requests and runs them to the end."""

    def __init__(
        self,
        config: RouterConfig,
        fleet: Fleet,
        metrics: Metrics,
        locality: Locality | None = None,
    ) -> None:
        self.config = config
        self.fleet = fleet
        self.metrics = metrics
        self.locality = locality
        self.dispatch: Dispatch = config.dispatch
        self.parked = 0
        self.policies: dict[str, Policy] = {}
        self.wanted = NOTHING
        self.pooling = False
        """Whether finished prefills wait in the pool: the decode policy assigns in rounds."""
        self.balance = Balance(fleet.side("decode")) if config.disaggregated else None
        self.pool = self._make_pool() if config.disaggregated else None
        for rank in fleet.side("decode") if config.disaggregated else ():
            rank.worker.on_reading = self.read
        self.set_policy("prefill", config.prefill_policy)
        self.set_policy("decode", config.decode_policy)

    def set_policy(self, side: str, name: str) -> None:
        """A fresh policy for `side`. ValueError names the known ones."""
        policy = make_policy(name, self.config.seed, side, self.config.tau)
        self.policies[side] = policy
        both = self.policies.values()
        self.wanted = Wanted(
            blocks=self.config.record is not None or any(each.needs_blocks for each in both),
            users=any(getattr(each, "needs_user", False) for each in both),
            hashes=any(getattr(each, "needs_hash", False) for each in both),
        )
        if side != "decode":
            return
        self.pooling = self.pool is not None and isinstance(policy, Assigner)
        if self.locality is not None:
            self.locality.attach(policy)
        if self.pool is not None:
            self.pool.news()

    def _make_pool(self) -> Pool:
        return Pool(
            self.fleet,
            policy=lambda: self.policies["decode"],
            choose=partial(self.choose, "decode"),
            park_timeout_s=self.config.park_timeout_s,
            on_bound=self.metrics.pool_wait.observe,
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
        self, single: Single, relay: Relay | None, client: ClientStream | None, arrived: float
    ) -> Answer | None:
        """Run a single to its end: an answer, or None when the relay has streamed it.

        Raises:
            ApiError: what the client gets instead.
        """
        from toolkit.router.attempt import Attempt

        failures = 0
        while True:
            try:
                return await Attempt(self, single, relay, client, failures, arrived).run()
            except Retry as failure:
                failures += 1
                single.avoid |= failure.suspects
                log.warning("attempt %d failed: %s", failures, failure)
                if failures > self.config.max_retries:
                    raise failure.answer from failure
                self._prepare_again(single, relay, failure)
                await asyncio.sleep(RETRY_PAUSE_S * failures)

    def _prepare_again(self, single: Single, relay: Relay | None, failure: Retry) -> None:
        if relay is None or not relay.sent.events:
            self.metrics.retries.inc()
            self.metrics.retried += 1
            return
        single.resume_ids = [int(token) for token in relay.ids.split()]
        if not single.resume_ids and relay.sent.progress().has_output:
            # A plain SGLang does not tell the ids: what the client has cannot be continued.
            raise failure.answer from failure
        self.metrics.resumes.inc()
        self.metrics.resumed += 1

    async def pick(
        self, role: str, single: Single, view: RequestView, wait_s: float, credit: bool = False
    ) -> Rank:
        """The policy's choice among healthy ranks (with `credit`: those that have one left).

        Waits for a credit as long as the request lives, and `wait_s` for a worker to come back.

        Raises:
            ApiError: 503 with Retry-After when no worker of the role is healthy in time.
        """
        queue = self.fleet.queue(role)
        gone_at: float | None = None
        again = False
        while True:
            if again or not (credit and queue.waiting):  # nobody overtakes those who wait
                rank = self.choose(role, single, view, credit)
                if rank is not None:
                    return rank
            if self.fleet.any_healthy(role):
                gone_at = None
                await queue.wait(self.config.request_timeout_s, again)
            else:
                now = monotonic()
                gone_at = now if gone_at is None else gone_at
                left = gone_at + wait_s - now
                if left <= 0:
                    raise ApiError(503, f"No healthy {role} worker.", retry_after=2)
                await queue.wait(left, again)
            again = True

    async def present(self, role: str, wait_s: float) -> None:
        """Return once some worker of the role is healthy; ApiError 503 after `wait_s`."""
        deadline = monotonic() + wait_s
        while not self.fleet.any_healthy(role):
            left = deadline - monotonic()
            if left <= 0:
                raise ApiError(503, f"No healthy {role} worker.", retry_after=2)
            await self.fleet.queue(role).wait(left)

    def choose(
        self, role: str, single: Single, view: RequestView, credit: bool = False
    ) -> Rank | None:
        """The policy's choice now; takes the credit. None when nothing is usable."""
        ranks = self.fleet.side(role)
        usable = [r.worker.healthy and (not credit or r.credit > 0) for r in ranks]
        # A worker that failed this request is the last resort, not forbidden: it may be back.
        if single.avoid:
            fresh = [
                ok and rank.worker.name not in single.avoid
                for ok, rank in zip(usable, ranks, strict=True)
            ]
            usable = fresh if any(fresh) else usable
        if not any(usable):
            return None
        now = monotonic()
        views = [rank.view(now, ok) for rank, ok in zip(ranks, usable, strict=True)]
        decision = self.policy(role).choose(views, view)
        if decision is None or not usable[decision.index]:
            raise ApiError(500, f"policy {self.policy(role).name} chose no usable {role} worker")
        rank = ranks[decision.index]
        if credit:
            rank.credit -= 1
            if any(r.credit > 0 for r in ranks):
                self.fleet.queue(role).wake_one()
        return rank

    def return_credit(self, rank: Rank) -> None:
        rank.credit += 1
        self.fleet.queue(rank.worker.config.role).wake_one()
