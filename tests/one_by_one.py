"""Any policy as an assigner: those who wait are given to it one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.policies.assign import Assigner, Assignment
from toolkit.policies.base import Decision, Needs, Policy, RequestView, WorkerView
from toolkit.policies.given_out import readable, with_sent
from toolkit.policies.readings import kv_tokens, read_ranks


class OneByOne(Assigner):
    """An `Assigner` that asks a `Policy` about each request in order of arrival, over the ranks
    that have a slot and room for it, and counts what it has given out since. The baselines of
    BalanceRoute (random, round robin, power of two, shortest queue) in the same place as BR-0."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.needs = policy.needs | Needs(pool=True)
        self.inflight, self.locality = policy.inflight, policy.locality
        self._policy = policy

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        return self._policy.choose(workers, request)

    def assign(
        self, workers: Sequence[WorkerView], waiting: Sequence[RequestView]
    ) -> list[Assignment]:
        """One round; see `Assigner`."""
        now = [readable(worker) for worker in workers]
        ranks = read_ranks(now)
        made = []
        for at, request in enumerate(waiting):
            size = kv_tokens(request)
            open_ = [
                g
                for g, free in enumerate(ranks.slots)
                if free >= 1 and (ranks.room[g] >= size or size > ranks.pool)
            ]
            decision = self._policy.choose([now[ranks.index[g]] for g in open_], request)
            if decision is None:
                continue
            g = open_[decision.index]
            made.append(Assignment(at, ranks.index[g], decision.reason))
            now[ranks.index[g]] = with_sent(now[ranks.index[g]], size, ranks.pool)
            ranks.take(g, size)
        return made
