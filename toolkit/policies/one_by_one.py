"""Any policy as an assigner: those who wait are given to it one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from toolkit.policies.assign import Assignment
from toolkit.policies.base import Load, Policy, RequestView, WorkerView
from toolkit.policies.readings import kv_tokens, possible, read_ranks


class OneByOne:
    """An `Assigner` that asks a `Policy` about each request in order of arrival, over the ranks
    that have a slot and room for it, and counts what it has given out since. The baselines of
    BalanceRoute (random, round robin, power of two, shortest queue) in the same place as BR-0."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self._policy = policy

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


def readable(worker: WorkerView) -> WorkerView:
    """Without a reading that cannot be true: policies take numbers as they are."""
    if worker.load is None or possible(worker.load):
        return worker
    return replace(worker, load=None)


def with_sent(worker: WorkerView, size: float, pool: float) -> WorkerView:
    """The worker after one more request of `size` KV tokens was sent to it; as `Ranks.take`."""
    tokens = int(size) if size <= pool else 0
    load: Load | None = worker.load
    if load is not None:
        load = replace(
            load,
            sent_requests=load.sent_requests + 1,
            sent_tokens=load.sent_tokens + tokens,
        )
    return replace(
        worker,
        inflight=worker.inflight + 1,
        inflight_tokens=worker.inflight_tokens + tokens,
        load=load,
    )
