"""One decision of four parts: candidates, locality band, barrier score, the user's last rank."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from toolkit.policies.base import Decision, Needs, RequestView, WorkerView
from toolkit.policies.composed.near_ranks import NearRanks
from toolkit.policies.composed.parts import BARRIERS, Parts
from toolkit.policies.eldr import Band, EldrPolicy
from toolkit.policies.rounds.assign import Assigner, Assignment
from toolkit.policies.rounds.balance_route import BalanceRoute, Weighed
from toolkit.policies.support.expert_locality import Centroids
from toolkit.policies.support.given_out import readable, with_sent
from toolkit.policies.support.readings import Ranks, kv_sizes, kv_tokens, read_ranks
from toolkit.policies.support.rotation import Rotation
from toolkit.policies.support.user_map import UserMap

TURN = "turn"
ONE = "one"


@dataclass
class ComposedCounters:
    """`decided` counts every decision once, by the part after which one worker was left where there
    had been several: "one" if there never were, "turn" if there still were at the end (the
    barrier's own order or the rotation chose). `changed` counts a part's decisions in which it left
    none of the shortest queues that it had been given: load alone would have chosen another. A part
    can change a decision that a later one makes. Where a round of several (`assign`) let the
    barrier choose among requests, all of them count as decided by it."""

    decided: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)


@dataclass
class Case:
    """A request before the healthy workers; everything by index into `workers`."""

    workers: Sequence[WorkerView]
    request: RequestView
    ranks: Ranks
    queues: dict[int, int]
    band: Band | None = None
    weighed: Weighed | None = None

    @cached_property
    def place(self) -> dict[int, int]:
        """Where a worker stands in `ranks`."""
        return {i: g for g, i in enumerate(self.ranks.index)}


Part = Callable[[Case, list[int]], list[int]]
"""Which of some workers (by index, at least one) it leaves, at least one."""


class ComposedPolicy(Assigner):
    """What a decode step costs, in the order in which it can be bought: KV room, then distinct
    experts, then the wait at the barrier, then a user's prefix.

    Each part narrows what the one before it left, and is one of the policies that stand alone:

    1. `filter`: ranks with a free slot and KV room for the request that are not silent (see
       `read_ranks`); where there are none those that are not silent, else all.
    2. `eldr`: those in the locality band, s_k >= s* - tau (`EldrPolicy`). Ranks that share their
       experts are in it together or not at all, so among the ranks of one server with DP attention
       the parts below decide alone; but where a map says what lies where (`EldrPolicy.maps`), only
       those of its ranks are in it that are near enough to the request's experts.
    3. `br0`, `brh` or `level`: those with the best F (`Br0Policy`, `BrHPolicy`, `LevelPolicy`), of
       all healthy ranks, in the band or not: all of them wait. Without one: the shortest queues,
       of equal ones the nearest.
    4. `user`: the rank of the user's last request, if it is still among them. F is the same on all
       ranks whose margin holds the request, so ties are common until ranks are level.

    What is left then is ordered by the barrier's own rule (least load, most slots), without one by
    who was chosen least recently. With `eldr` or a barrier score alone this is that policy, with
    none the shortest queue, decision by decision.

    A round (`assign`) with `eldr` and a slot for everybody is these decisions one after the other,
    and so is one without a barrier part. In every other round the barrier decides, whom and where,
    as that policy alone; with `eldr` a rank first looks at those who wait whose band it is in,
    crowding aside, since they wait for it and not it for them (*ours*). Users then are only
    remembered: the rank is given, so there is no tie to break. Where all ranks share their experts
    and no map tells them apart every round is one without `eldr`.

    Degraded: as the parts. Knobs: `parts` (`composed@filter+eldr+level+user`, the default; any of
    them can be left out, `composed@none`), those of `EldrPolicy` (`tau`, or `eldr@TAU`) and of the
    barriers (`br0@S_GREEDY`, `level@S_GREEDY`, `brh@PREDICTOR[:S_GREEDY][:KEY=VALUE]..`), `expiry`
    and `capacity` of `UserMap`.
    `locality`, `barrier`, `users` are the parts, None where off; `inflight` BR-H's, kept by whoever
    sends the requests. Cost: that of the parts; a round asks `eldr` about 64 requests a rank at
    most. Source: *ours*; the parts name theirs.
    """

    name = "composed"

    def __init__(
        self,
        seed: int = 0,
        parts: Parts | None = None,
        tau: float = 0.1,
        centroids: Centroids | None = None,
        expiry: float = 300.0,
        capacity: int = 100_000,
    ) -> None:
        self.parts = parts = parts or Parts()
        tau = tau if parts.tau is None else parts.tau
        self.locality: EldrPolicy | None
        self.locality = EldrPolicy(seed, tau, centroids) if parts.eldr else None
        self.barrier = _barrier(seed, parts)
        self.users = UserMap(capacity, expiry) if parts.user else None
        self.needs = Needs(pool=True, user=parts.user)
        for part in (self.locality, self.barrier):
            self.needs |= Needs() if part is None else part.needs
        self.inflight = None if self.barrier is None else self.barrier.inflight
        self.counters = ComposedCounters()
        self._rotation = Rotation(seed)
        steps: list[tuple[str, bool, Part]] = [
            ("filter", parts.filter, _candidates),
            ("eldr", parts.eldr, self._near),
            (parts.barrier, bool(parts.barrier), self._level),
            ("queue", not parts.barrier, self._shortest),
            ("user", parts.user, self._home),
        ]
        self._steps = [(name, narrow) for name, on, narrow in steps if on]

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        ranks = read_ranks(workers)
        return self._decide(workers, request, ranks, ranks.index) if ranks.index else None

    def assign(
        self, workers: Sequence[WorkerView], waiting: Sequence[RequestView]
    ) -> list[Assignment]:
        """One round; see `Assigner`."""
        ranks = read_ranks(workers)
        open_ = [free for free in ranks.slots if free >= 1]
        if not waiting or not open_:
            return []
        if self.barrier is None or len(waiting) == 1:
            return self._one_by_one(workers, waiting)
        if self.locality is None:
            return self._round(self.barrier, workers, waiting, None)
        near = NearRanks(self.locality, workers, ranks.index, waiting)
        if len(waiting) <= sum(open_) and not near.indifferent:
            return self._one_by_one(workers, waiting)
        return self._round(self.barrier, workers, waiting, near)

    def _round(
        self,
        barrier: BalanceRoute,
        workers: Sequence[WorkerView],
        waiting: Sequence[RequestView],
        near: NearRanks | None,
    ) -> list[Assignment]:
        preferred = None if near is None or near.indifferent else near
        made = barrier.assign(workers, waiting, preferred)
        self.counters.decided[self.parts.barrier] += len(made)
        for at, worker, _ in made:
            self._remember(waiting[at], workers[worker])
            if near is not None:
                near.note(at, worker)
        return made

    def _one_by_one(
        self, workers: Sequence[WorkerView], waiting: Sequence[RequestView]
    ) -> list[Assignment]:
        now = [readable(worker) for worker in workers]
        sizes = kv_sizes(waiting)
        made = []
        for at, (request, size) in enumerate(zip(waiting, sizes, strict=True)):
            ranks = read_ranks(now)
            if not any(free >= 1 for free in ranks.slots):
                break
            left = ranks.surely_open(size)
            if not left:
                continue
            decision = self._decide(now, request, ranks, [ranks.index[g] for g in left])
            made.append(Assignment(at, decision.index, decision.reason))
            now[decision.index] = with_sent(now[decision.index], size, ranks.pool)
        return made

    def _decide(
        self, workers: Sequence[WorkerView], request: RequestView, ranks: Ranks, left: list[int]
    ) -> Decision:
        """Among those `left`, by index."""
        queues = {i: workers[i].requests for i in ranks.index}
        case = Case(workers, request, ranks, queues)
        by = TURN if len(left) > 1 else ONE
        said = []
        for name, narrow in self._steps:
            kept = narrow(case, left)
            if len(kept) < len(left):
                least = min([queues[i] for i in left])
                if min([queues[i] for i in kept]) > least:
                    self.counters.changed[name] += 1
                by = name if len(kept) == 1 else by
            said.append(f"{name} {len(kept)}")
            left = kept
        index = self._last(case, left)
        self.counters.decided[by] += 1
        if self.locality is not None and case.band is not None:
            self.locality.note(case.band, index)
        self._remember(request, workers[index])
        return Decision(index, f"by {by}: {', '.join(said)}")

    def _near(self, case: Case, left: list[int]) -> list[int]:
        assert self.locality is not None
        queues = {i: case.queues[i] for i in left}
        case.band = self.locality.band(case.workers, queues, case.request.signature)
        return case.band.indices

    def _level(self, case: Case, left: list[int]) -> list[int]:
        assert self.barrier is not None
        case.weighed = self.barrier.weigh(case.ranks, case.request)
        among = [case.place[i] for i in left]
        return [case.ranks.index[g] for g in self.barrier.best(case.ranks, case.weighed, among)]

    def _shortest(self, case: Case, left: list[int]) -> list[int]:
        if self.locality is not None and case.band is not None:
            return self.locality.shortest(case.queues, case.band, left)
        least = min([case.queues[i] for i in left])
        return [i for i in left if case.queues[i] == least]

    def _home(self, case: Case, left: list[int]) -> list[int]:
        user = case.request.user
        if self.users is None or not user:
            return left
        home = self.users.find(user, case.request.now)
        return [i for i in left if case.workers[i].key == home] or left

    def _last(self, case: Case, left: list[int]) -> int:
        """Of those that all parts hold for equally good."""
        if self.barrier is None or case.weighed is None:
            return self._rotation.take(case.workers, left)
        among = [case.place[i] for i in left]
        return self.barrier.place(case.ranks, case.weighed, among).index

    def _remember(self, request: RequestView, worker: WorkerView) -> None:
        if self.users is not None and request.user:
            self.users.store(request.user, worker.key, request.now)


def _barrier(seed: int, parts: Parts) -> BalanceRoute | None:
    made = BARRIERS.get(parts.barrier)
    return made(seed, **dict(parts.options)) if made else None


def _candidates(case: Case, left: list[int]) -> list[int]:
    ranks = case.ranks
    open_ = set(ranks.open(kv_tokens(case.request)))
    among = [g for g in (case.place[i] for i in left) if not ranks.silent[g]]
    kept = [g for g in among if g in open_] or among
    return [ranks.index[g] for g in kept] or left
