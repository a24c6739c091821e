"""The pool of finished prefills as a feature of its own: any policy with it, or without it.

BalanceRoute's gain has two sources: finished prefills wait until a rank has a slot and room, and a
score decides who goes where. `pooled@POLICY` is the first without the second, `unpooled@POLICY` the
second without the first, so that each can be measured by itself.
"""

from collections.abc import Sequence
from dataclasses import replace

from toolkit.policies.base import Decision, Needs, Policy, RequestView, WorkerView
from toolkit.policies.following import Following
from toolkit.policies.rounds.assign import Assigner, Assignment
from toolkit.policies.support.given_out import readable, with_sent
from toolkit.policies.support.readings import kv_tokens, read_ranks

POOLED = "pooled"
UNPOOLED = "unpooled"


def bare(name: str) -> str:
    """The policy's name without the word that says whether it has the pool."""
    rule, _, policy = name.partition("@")
    return policy if rule in (POOLED, UNPOOLED) else name


def is_pooled(name: str) -> bool:
    """Whether the name asks for the pool in words: `pooled@shortest_queue`."""
    return name.partition("@")[0] == POOLED


def no_pool(disaggregated: bool, dispatch: str) -> str:
    """Why no finished prefill could ever wait in a pool, and what to do; empty: they can."""
    if not disaggregated:
        return "plain workers have no finished prefills: use prefill and decode workers"
    if dispatch != "late":
        return f"dispatch {dispatch} binds before the prefill is done: set dispatch to late"
    return ""


class PooledPolicy(Assigner):
    """Any policy, with the pool: who waits is given to it one after the other, in order of arrival,
    over the ranks that have a slot and KV room for him now (`read_ranks`; a silent one, whose room
    nobody knows, only where there is no other).

    Who fits nowhere stays in the pool, and those behind him go first where they fit. What was given
    out in the same round counts as sent. A request that no pool could hold goes to any rank with a
    slot, which answers it as the engine does. `pooled@POLICY`; refused for a policy that assigns in
    rounds by itself. Source: *ours*, to tell what the pool gains from what a score gains.
    """

    def __init__(self, policy: Policy) -> None:
        """ValueError: the policy has the pool already."""
        if policy.needs.pool:
            raise ValueError(f"{policy.name} has the pool already: write {policy.name} alone")
        self._policy = policy
        self.name = f"{POOLED}@{policy.name}"
        self.needs = policy.needs | Needs(pool=True)
        self.counters = policy.counters
        self.inflight, self.locality = policy.inflight, policy.locality

    def follow(self) -> Following:
        return self._policy.follow()

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        """Who has waited too long goes where the policy alone would send him."""
        return self._policy.choose(workers, request)

    def assign(
        self, workers: Sequence[WorkerView], waiting: Sequence[RequestView]
    ) -> list[Assignment]:
        """One round; see `Assigner`."""
        now = [readable(worker) for worker in workers]
        ranks = read_ranks(now)
        made: list[Assignment] = []
        for at, request in enumerate(waiting):
            size = kv_tokens(request)
            if not any(free >= 1 for free in ranks.slots):
                break
            open_ = ranks.surely_open(size)
            if not open_:
                continue
            decision = self._policy.choose([now[ranks.index[g]] for g in open_], request)
            if decision is None:
                continue
            g = open_[decision.index]
            index = ranks.index[g]
            made.append(Assignment(at, index, decision.reason))
            now[index] = with_sent(now[index], size, ranks.pool)
            ranks.take(g, size)
        return made


class UnpooledPolicy(Policy):
    """A policy that assigns in rounds, without the pool: each finished prefill is bound at once, to
    a full rank too, as it would be inside SGLang's DP controller. `unpooled@POLICY`; refused for a
    policy that has no pool. Source: *ours*, as `PooledPolicy`.
    """

    def __init__(self, policy: Policy) -> None:
        """ValueError: the policy has no pool to take away."""
        if not policy.needs.pool:
            raise ValueError(f"{policy.name} has no pool to leave out: write {policy.name} alone")
        self._policy = policy
        self.name = f"{UNPOOLED}@{policy.name}"
        self.needs = replace(policy.needs, pool=False)
        self.counters = policy.counters
        self.inflight, self.locality = policy.inflight, policy.locality

    def follow(self) -> Following:
        return self._policy.follow()

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        return self._policy.choose(workers, request)
