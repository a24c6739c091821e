"""What every assigner must keep to, whatever it is told of the ranks."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.policies.pools import (
    NAN,
    fleets,
    pools,
    rank,
)
from toolkit.policies import Load, RequestView, WorkerView, make_policy
from toolkit.policies.br0 import Br0Policy
from toolkit.policies.brh import BrHPolicy
from toolkit.policies.composed.parts import Parts
from toolkit.policies.composed.policy import ComposedPolicy
from toolkit.policies.level import LevelPolicy
from toolkit.policies.predictors import Survival
from toolkit.policies.published.br0 import PaperBr0Policy
from toolkit.policies.published.brh import PaperBrHPolicy
from toolkit.policies.rounds.assign import Assigner, Assignment
from toolkit.policies.rounds.balance_route import BalanceRoute
from toolkit.policies.rounds.pooling import PooledPolicy
from toolkit.policies.support.expert_locality import Centroids
from toolkit.policies.support.inflight_lengths import InflightLengths
from toolkit.policies.support.readings import kv_tokens, read_ranks


def tracked() -> BrHPolicy:
    """BR-H with requests in flight on some ranks."""
    inflight = InflightLengths(Survival())
    for number in range(40):
        view = RequestView(prompt_tokens=37 * number % 900, max_new_tokens=number % 7 * 20)
        inflight.sent(f"r{number}", (f"w{number % 5}", number % 2), view)
        inflight.counted(f"r{number}", number)
    return BrHPolicy(inflight=inflight)


def near() -> ComposedPolicy:
    """With centroids: ranks prefer some of those who wait."""
    rows = np.eye(6, 4, dtype=np.float32) + 0.1
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    owner = {(f"w{i}", rank): i for i in range(5) for rank in range(2)}
    parts = Parts.parse("filter+eldr+br0+user")
    return ComposedPolicy(0, parts, centroids=Centroids(rows, owner))  # type: ignore[arg-type]


MAKERS: dict[str, Callable[[], Assigner]] = {
    "br0": Br0Policy,
    "br0, stage 1": lambda: Br0Policy(s_greedy=0),
    "br0, stage 2": lambda: Br0Policy(s_greedy=10**6, wait_limit=3),
    "level": LevelPolicy,
    "level, stage 1": lambda: LevelPolicy(s_greedy=0),
    "brh": BrHPolicy,
    "brh, tracked": tracked,
    "br0@paper": PaperBr0Policy,
    "brh@paper": PaperBrHPolicy,
    "composed": ComposedPolicy,
    "composed, no barrier": lambda: ComposedPolicy(0, Parts.parse("eldr+user")),
    "composed, near": near,
    "shortest queue": lambda: PooledPolicy(make_policy("shortest_queue")),
}
POOLED = ("pooled@round_robin", "pooled@least_tokens", "pooled@eldr", "pooled@gimbal@paper")
MAKERS |= {name: partial(make_policy, name) for name in POOLED}  # type: ignore[misc]
BY_QUEUE = {"shortest queue", "composed, no barrier", *POOLED}
names = st.sampled_from(sorted(MAKERS))


@settings(deadline=None)
@given(names, fleets(), pools)
def test_slots_and_room_are_kept_and_none_is_left_free(
    name: Any, workers: Any, waiting: Any
) -> None:
    made = MAKERS[name]().assign(workers, waiting)
    assert len({a.request for a in made}) == len(made)
    assert all(0 <= a.request < len(waiting) for a in made)
    ranks = read_ranks(workers)
    at = {worker: g for g, worker in enumerate(ranks.index)}
    count: Counter[int] = Counter()
    oversized: Counter[int] = Counter()
    tokens: dict[int, float] = defaultdict(float)
    for request, worker, _ in made:
        size = kv_tokens(waiting[request])
        count[at[worker]] += 1  # KeyError: not healthy
        oversized[at[worker]] += size > ranks.pool
        tokens[at[worker]] += size if size <= ranks.pool else 0
    waits = [kv_tokens(r) for i, r in enumerate(waiting) if i not in {a.request for a in made}]
    for g in range(len(ranks.index)):
        assert count[g] <= ranks.slots[g]
        fitted = count[g] - oversized[g]
        assert not fitted or tokens[g] + (fitted - 1) * ranks.reserve[g] <= ranks.room[g]
        if ranks.slots[g] - count[g] >= 1:
            room = ranks.room[g] - tokens[g] - count[g] * ranks.reserve[g]
            assert not [size for size in waits if size <= room or size > ranks.pool]


@settings(deadline=None)
@given(names, st.lists(st.tuples(fleets(), pools), max_size=4))
def test_the_same_rounds_give_the_same_assignments(name: Any, rounds: Any) -> None:
    one, two = MAKERS[name](), MAKERS[name]()
    for workers, waiting in rounds:
        assert one.assign(workers, waiting) == two.assign(workers, waiting)


@pytest.mark.parametrize("name", sorted(MAKERS))
@pytest.mark.parametrize("healthy", [None, False])
def test_no_rank_at_all(name: Any, healthy: Any) -> None:
    workers = [] if healthy is None else [WorkerView(f"w{i}", healthy=False) for i in range(3)]
    assigner = MAKERS[name]()
    assert isinstance(assigner, Assigner)
    assert assigner.assign(workers, [RequestView(prompt_tokens=5)] * 3) == []
    if isinstance(assigner, BalanceRoute):
        assert assigner.choose(workers, RequestView(prompt_tokens=5)) is None


@settings(deadline=None)
@given(fleets(), st.integers(0, 2500))
def test_without_a_pool_a_healthy_rank_is_always_chosen(workers: Any, tokens: int) -> None:
    for policy in (Br0Policy(), tracked()):
        decision = policy.choose(workers, RequestView(prompt_tokens=tokens))
        if any(worker.healthy for worker in workers):
            assert decision is not None and workers[decision.index].healthy
        else:
            assert decision is None


def test_what_a_rank_keeps_free_for_its_requests_is_no_room() -> None:
    """Two run and 512 are kept for each of them and of who comes: 4000 - 1000 - 3 * 512."""
    kept = replace(rank(0, 1000, 2, total_tokens=4000), reserve=512)
    ranks = read_ranks([kept])
    assert (ranks.room, ranks.pool) == ([1464], 3488)
    queue = PooledPolicy(make_policy("shortest_queue"))
    for assigner in (Br0Policy(s_greedy=0), Br0Policy(s_greedy=10**6), queue):
        made = assigner.assign([kept, rank(1, 9000, 8)], [RequestView(prompt_tokens=400)] * 3)
        assert [each.worker for each in made] == [0, 0], "the third finds 2200 - 5 * 512"


@pytest.mark.parametrize("name", sorted(MAKERS.keys() - BY_QUEUE))
@pytest.mark.parametrize(
    "load",
    [None, Load(0, 0, -9, 0, 0), Load(0, 0, NAN, 0, 0), Load(0, 0, 5, 0, 0, sent_tokens=-1)],
    ids=["no reading", "negative", "NaN", "negative sent"],
)
def test_a_rank_without_a_reading_is_loaded_not_empty(name: Any, load: Any) -> None:
    """It looks empty and would draw everything; it gets what the others have no slot for."""
    hung = WorkerView("decode", dp_rank=9, load=load, slots=8)
    workers = [rank(0, 4000, 6), hung, rank(1, 3000, 6)]
    ranks = read_ranks(workers)
    assert ranks.load == [4000, 4000, 3000]
    assigner = MAKERS[name]()
    one = assigner.assign(workers, [RequestView(prompt_tokens=200)])
    assert one[0].worker == 2
    made = assigner.assign(workers, [RequestView(prompt_tokens=200)] * 6)
    assert Counter(a.worker for a in made) == {0: 2, 2: 2, 1: 2}
    assert {a.worker for a in made[4:]} == {1}, "last"


def test_where_nobody_publishes_own_counts_decide() -> None:
    workers = [WorkerView(f"w{i}", inflight=1, inflight_tokens=t) for i, t in enumerate((9, 5, 7))]
    assert not any(read_ranks(workers).silent)
    assert Br0Policy().assign(workers, [RequestView(prompt_tokens=3)])[0].worker == 1


def test_what_was_sent_since_the_reading_counts() -> None:
    workers = [rank(0, 100, sent_requests=1, sent_tokens=900), rank(1, 300)]
    ranks = read_ranks(workers)
    assert (ranks.load, ranks.slots) == ([1000, 300], [7, 8])
    workers = [rank(0, 5000, total_tokens=4000)]
    assert (read_ranks(workers).load, read_ranks(workers).room) == ([4000], [0])


def test_a_subset_must_fit_as_a_whole() -> None:
    """The other rank's load makes all three worth taking; two fit."""
    workers = [rank(0, 100, total_tokens=1000), rank(1, 9000)]
    policy = Br0Policy(s_greedy=10**6)
    full = replace(workers[1], slots=1, load=Load(1, 0, 9000, 9000, 0))
    made = policy.assign(
        [workers[0], full], [RequestView(prompt_tokens=t) for t in (500, 350, 450)]
    )
    assert {(a.request, a.worker) for a in made} == {(1, 0), (0, 0)}


def test_a_request_larger_than_every_pool_goes_out_for_the_worker_to_refuse() -> None:
    workers = [rank(0, 100, total_tokens=1000), rank(1, 900, total_tokens=1000)]
    for pool in ([5000, 500], [5000]):
        made = Br0Policy().assign(workers, [RequestView(prompt_tokens=t) for t in pool])
        assert made[0] == Assignment(0, 0, "larger than every pool")
        assert len(made) == len(pool)
    waits = Br0Policy().assign(workers, [RequestView(prompt_tokens=950)])
    assert waits == [], "room for it will come"


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_what_no_pool_could_hold_takes_a_slot_and_no_room_from_the_others(name: Any) -> None:
    """1000 - 200 - 2 * 50 are free after it: 700 fit, and then 0 more."""
    workers = [replace(rank(0, 200, total_tokens=1000), reserve=50)]
    pool = [RequestView(prompt_tokens=tokens) for tokens in (5000, 700, 1)]
    made = MAKERS[name]().assign(workers, pool)
    assert [each.request for each in made] == [0, 1]


@pytest.mark.parametrize("s_greedy", [0, 10**6])
def test_the_head_of_the_pool_is_passed_by_a_bounded_number(s_greedy: Any) -> None:
    """A request that never has the best F, while better ones keep coming."""
    policy = Br0Policy(s_greedy=s_greedy, wait_limit=10)
    pool = [RequestView(prompt_tokens=5000), *SMALL]
    workers = [rank(0, 9000, 7), rank(1, 9400, 8), rank(2, 9500, 8)]
    made = [policy.assign(workers, pool) for _ in range(20)]
    assert {len(one) for one in made} == {1}, "one slot is free"
    assert [one[0].request for one in made].index(0) == 10
    assert policy.counters.overdue == 1


SMALL = [RequestView(prompt_tokens=500)] * 5


def test_equal_idle_ranks_take_turns() -> None:
    """Loads of 0 between requests: without turns the first rank would get them all."""
    policy = Br0Policy()
    workers = [rank(at, 0) for at in range(5)]
    chosen = [policy.assign(workers, SMALL[:1])[0].worker for _ in range(20)]
    assert Counter(chosen) == dict.fromkeys(range(5), 4)
    pairs = Counter(a.worker for _ in range(20) for a in policy.assign(workers, SMALL[:2]))
    assert set(pairs) == set(range(5))


@pytest.mark.parametrize(
    "knobs",
    [{"r_max": 0}, {"r_max": 9}, {"s_greedy": -1}, {"wait_limit": 0}, {"wait_limit": math.nan}],
)
def test_knobs_that_make_no_sense(knobs: Any) -> None:
    with pytest.raises(ValueError):
        Br0Policy(**knobs)


@pytest.mark.parametrize(
    "knobs",
    [{"horizon": -1}, {"gamma": 0.0}, {"gamma": 1.1}, {"alpha": 0.0}, {"beta": -1.0}],
)
def test_knobs_of_the_horizon_that_make_no_sense(knobs: Any) -> None:
    with pytest.raises(ValueError):
        BrHPolicy(**knobs)
