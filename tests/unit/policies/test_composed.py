"""Composed: each part alone is its own policy; together each narrows what the one before left."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.present import present
from tests.unit.policies.closed_loop import ClosedLoop, conversation
from toolkit.policies import Load, Policy, RequestView, WorkerView, follows_experts, make_policy
from toolkit.policies.br0 import Br0Policy
from toolkit.policies.brh import BrHPolicy
from toolkit.policies.composed.parts import Parts
from toolkit.policies.composed.policy import ComposedPolicy
from toolkit.policies.eldr import EldrPolicy
from toolkit.policies.rounds.assign import Assigner, Assignment
from toolkit.policies.rounds.pooling import PooledPolicy
from toolkit.policies.shortest_queue import ShortestQueuePolicy
from toolkit.policies.support.expert_locality import Centroids
from toolkit.policies.support.inflight_signatures import InflightSignatures
from toolkit.policies.support.readings import read_ranks

D = 4
COUNT = 6
vectors = st.lists(st.integers(0, 9), min_size=D, max_size=D).filter(any)
ALL = "filter+eldr+brh+user"


def unit(values: list[int]) -> np.ndarray:
    vector = np.array(values, np.float32)
    return vector / np.linalg.norm(vector)


loads = st.none() | st.builds(
    Load,
    running=st.integers(0, 8),
    waiting=st.integers(0, 2),
    used_tokens=st.integers(0, 3000),
    total_tokens=st.sampled_from([0, 2000, 4000]),
    waiting_tokens=st.integers(0, 300),
    sent_requests=st.integers(0, 2),
    sent_tokens=st.integers(0, 500),
)


@st.composite
def fleets(draw: st.DrawFn) -> list[WorkerView]:
    return [
        WorkerView(
            f"w{at}",
            healthy=draw(st.booleans() | st.just(True)),
            inflight=draw(st.integers(0, 8)),
            inflight_tokens=draw(st.integers(0, 2000)),
            load=draw(loads),
            slots=draw(st.sampled_from([0, 4, 8])),
        )
        for at in range(draw(st.integers(0, COUNT)))
    ]


requests = st.builds(
    RequestView,
    prompt_tokens=st.integers(0, 2500),
    signature=st.none() | vectors.map(unit),
    user=st.sampled_from([None, "ada", "bo", "cy"]),
    now=st.floats(0, 1000),
)
steps = st.lists(st.tuples(fleets(), requests), max_size=10)
rounds = st.lists(st.tuples(fleets(), st.lists(requests, max_size=9)), max_size=5)
centroids = st.lists(vectors.map(unit), min_size=COUNT, max_size=COUNT).map(
    lambda rows: Centroids(np.stack(rows), {(f"w{i}", 0): i for i in range(COUNT - 1)})
)


def prepared(policy: Policy, known: Centroids | None) -> Policy:
    """With centroids and something in flight, where it looks at them."""
    part = policy.locality
    if part is not None and known is not None:
        part.centroids = known
        part.inflight_signatures = InflightSignatures(D)
        part.inflight_signatures.add(("w0", 0), known.rows[-1])
        part.inflight_signatures.add(("w2", 0), known.rows[1])
    return policy


def same(one: Policy, two: Policy, played: list[tuple[list[WorkerView], RequestView]]) -> None:
    for workers, request in played:
        mine, other = one.choose(workers, request), two.choose(workers, request)
        assert (mine and mine.index) == (other and other.index)


@pytest.mark.slow
@settings(deadline=None)
@given(steps, centroids, st.sampled_from([0.0, 0.05, 0.3, 1.0]))
def test_eldr_alone_is_eldr(played: Any, known: Any, tau: float) -> None:
    ours = ComposedPolicy(0, Parts.parse(f"eldr@{tau}"))
    theirs = EldrPolicy(0, tau)
    same(prepared(ours, known), prepared(theirs, known), played)
    assert ours.locality is not None
    assert ours.locality.counters == theirs.counters


@pytest.mark.slow
@settings(deadline=None)
@given(steps, st.sampled_from(["br0", "brh"]))
def test_a_barrier_alone_is_that_policy(played: Any, name: str) -> None:
    ours, theirs = ComposedPolicy(0, Parts.parse(name)), make_policy(name)
    same(ours, theirs, played)
    assert isinstance(theirs, Br0Policy | BrHPolicy)
    assert ours.barrier is not None
    assert ours.barrier.counters == theirs.counters


@pytest.mark.slow
@settings(deadline=None)
@given(rounds, st.sampled_from(["br0", "brh"]))
def test_a_barrier_alone_plays_the_same_rounds(played: Any, name: str) -> None:
    ours, theirs = ComposedPolicy(0, Parts.parse(name)), make_policy(name)
    assert isinstance(theirs, Assigner)
    for workers, waiting in played:
        mine = [a[:2] for a in ours.assign(workers, waiting)]
        assert mine == [a[:2] for a in theirs.assign(workers, waiting)]


@pytest.mark.slow
@settings(deadline=None)
@given(steps)
def test_nothing_is_the_shortest_queue(played: Any) -> None:
    same(ComposedPolicy(0, Parts.parse("none")), ShortestQueuePolicy(0), played)


@pytest.mark.slow
@settings(deadline=None)
@given(
    steps,
    centroids,
    st.sampled_from(["none", "filter", "eldr+br0", "filter+brh", "eldr+user", ALL]),
)
def test_every_decision_counts_once_and_a_candidate_is_taken_while_there_is_one(
    played: Any, known: Any, parts: Any
) -> None:
    policy = ComposedPolicy(0, Parts.parse(parts))
    prepared(policy, known)
    made = 0
    for workers, request in played:
        decision = policy.choose(workers, request)
        healthy = [i for i, worker in enumerate(workers) if worker.healthy]
        assert (decision is None) == (not healthy)
        if decision is None:
            continue
        made += 1
        assert decision.index in healthy
        ranks = read_ranks(workers)
        size = request.prompt_tokens
        open_ = [
            i
            for g, i in enumerate(ranks.index)
            if ranks.slots[g] >= 1
            and not ranks.silent[g]
            and (size > ranks.pool or ranks.room[g] >= size)
        ]
        if "filter" in parts and open_:
            assert decision.index in open_
        silent = [i for g, i in enumerate(ranks.index) if ranks.silent[g]]
        assert "filter" not in parts or decision.index not in silent
    assert policy.counters.decided.total() == made
    assert set(policy.counters.decided) <= {*parts.split("+"), "queue", "one", "turn"}
    assert all(n <= made for n in policy.counters.changed.values())
    assert policy.counters.changed["queue"] == 0


@pytest.mark.slow
@settings(deadline=None)
@given(steps, centroids)
def test_the_barrier_chooses_inside_the_band(played: Any, known: Any) -> None:
    policy = ComposedPolicy(0, Parts.parse("eldr+br0"))
    prepared(policy, known)
    alone = prepared(EldrPolicy(0, 0.1), known)
    assert isinstance(alone, EldrPolicy)
    for workers, request in played:
        decision = policy.choose(workers, request)
        if decision is None:
            continue
        queues = {i: worker.requests for i, worker in enumerate(workers) if worker.healthy}
        band = alone.band(workers, queues, request.signature).indices
        assert decision.index in band
        ranks = read_ranks(workers)
        weighed = Br0Policy().weigh(ranks, request)
        among = [g for g, i in enumerate(ranks.index) if i in band]
        best = Br0Policy().best(ranks, weighed, among)
        assert ranks.index.index(decision.index) in best


def fleet(*tokens: int, slots: int = 8, pool: int = 10_000) -> list[WorkerView]:
    return [
        WorkerView(f"w{i}", load=Load(1, 0, used, pool, 0), slots=slots)
        for i, used in enumerate(tokens)
    ]


AXES = Centroids(np.eye(3, D, dtype=np.float32), {(f"w{i}", 0): i for i in range(3)})
TWO = unit([9, 9, 0, 0])
"""As near to w0 as to w1."""


def together(workers: list[WorkerView]) -> list[WorkerView]:
    """The same ranks as those of one server with DP attention."""
    return [
        structs.replace(worker, name="s", dp_rank=rank, shares_experts=True)
        for rank, worker in enumerate(workers)
    ]


one_server = fleets().map(together)
pairs = st.sampled_from(
    [
        ("eldr+br0", "br0"),
        ("eldr+level", "level"),
        ("eldr+brh", "brh"),
        ("eldr", "none"),
        (ALL, "filter+brh+user"),
        ("filter+eldr+level+user", "filter+level+user"),
    ]
)


def beside(parts: tuple[str, str], known: Centroids) -> tuple[ComposedPolicy, ComposedPolicy]:
    """With locality, by a centroid for the server and one for each of its ranks, and without."""
    one, two = (ComposedPolicy(0, Parts.parse(text)) for text in parts)
    owner = {("s", None): 0} | {("s", rank): rank for rank in range(COUNT)}
    prepared(one, Centroids(known.rows, owner))  # type: ignore[arg-type]
    return one, two


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(one_server, requests), max_size=10), centroids, pairs)
def test_in_one_server_that_shares_its_experts_locality_decides_nothing(
    played: Any, known: Any, parts: Any
) -> None:
    one, two = beside(parts, known)
    same(one, two, played)
    assert one.counters == two.counters
    assert one.locality is not None
    assert one.counters.decided.total() == (
        one.locality.counters.located + one.locality.counters.fallbacks.total()
    )


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(st.tuples(one_server, st.lists(requests, max_size=20)), max_size=5), centroids, pairs
)
def test_and_rounds_are_those_without_it(played: Any, known: Any, parts: Any) -> None:
    one, two = beside(parts, known)
    for workers, waiting in played:
        if sum(worker.healthy for worker in workers) == 1:
            continue  # there is nothing to choose, and locality counts as ever
        mine = [a[:2] for a in one.assign(workers, waiting)]
        assert mine == [a[:2] for a in two.assign(workers, waiting)]


SERVERS = Centroids(np.eye(2, D, dtype=np.float32), {("a", None): 0, ("b", None): 1})


def servers(*tokens: int, **more: int) -> list[WorkerView]:
    """Two servers of two ranks."""
    return [
        structs.replace(worker, name="ab"[at // 2], dp_rank=at % 2, shares_experts=True)
        for at, worker in enumerate(fleet(*tokens, **more))
    ]


def test_the_barrier_decides_inside_the_near_server() -> None:
    """Not the user's last rank, nor the lighter ranks of the other server."""
    policy = ComposedPolicy(0, Parts.parse("filter+eldr+level+user"), centroids=SERVERS)
    near_a = RequestView(prompt_tokens=400, signature=unit([9, 1, 0, 0]), user="ada")
    first = policy.choose(servers(100, 500, 900, 900), near_a)
    assert first is not None and (first.index, first.reason) == (
        0, "by level: filter 4, eldr 2, level 1, user 1"
    )  # fmt: skip
    again = policy.choose(servers(900, 100, 0, 0), near_a)
    assert again is not None and again.index == 1
    assert policy.locality is not None
    assert (policy.locality.counters.located, policy.locality.counters.band) == (2, 2)


def test_in_a_round_both_ranks_of_a_server_take_those_who_are_near_to_it() -> None:
    """One free slot on each rank of a, none on b: both pass over the first who waits."""
    policy = ComposedPolicy(0, Parts.parse("eldr+level"), tau=0.1, centroids=SERVERS)
    workers = servers(500, 520, 540, 560, slots=2)
    full = [
        structs.replace(worker, slots=1) if worker.name == "b" else worker for worker in workers
    ]
    waiting = [
        RequestView(prompt_tokens=20, signature=unit(kind), user=f"u{n}")
        for n, kind in enumerate([[0, 9, 0, 0], [9, 0, 0, 0], [9, 1, 0, 0]])
    ]
    assert {a.request for a in policy.assign(full, waiting)} == {1, 2}


def test_who_decided() -> None:
    policy = ComposedPolicy(0, Parts.parse("filter+eldr+br0+user"), centroids=AXES)
    ask = RequestView(prompt_tokens=100, signature=TWO)
    first = policy.choose(fleet(900, 500, 0), ask)
    assert first is not None
    assert first.index == 1, "w2 is the lightest, but not in the band; F is best on w1"
    assert first.reason == "by br0: filter 3, eldr 2, br0 1, user 1"
    assert policy.counters.decided == {"br0": 1}
    full = fleet(900, 0, 0)
    full[1] = structs.replace(full[1], slots=1)
    second = policy.choose(full, replace(ask, signature=unit([1, 9, 0, 0])))
    assert second is not None
    assert second.index != 1, "no slot"
    alone = [structs.replace(w, healthy=i == 1) for i, w in enumerate(fleet(5, 5, 5))]
    assert policy.choose(alone, ask) is not None
    assert policy.counters.decided["one"] == 1


def test_a_user_goes_home_only_where_f_is_the_same() -> None:
    policy = ComposedPolicy(0, Parts.parse("br0+user"))
    ask = RequestView(prompt_tokens=100, user="ada")
    level = fleet(5000, 1000, 1200)
    first = policy.choose(level, ask)
    assert first is not None
    assert (first.index, policy.counters.decided) == (1, {"turn": 1}), "F is 100 on w1 and on w2"
    again = policy.choose(fleet(5000, 1300, 1200), ask)
    assert again is not None
    assert again.index == 1, "w2 has less, but the user was on w1 and w0 is waited for anyway"
    assert policy.counters.decided["user"] == 1
    tight = policy.choose(fleet(5000, 4950, 1200), ask)
    assert tight is not None
    assert tight.index == 2, "on w1 everybody would wait"
    assert policy.counters.decided["br0"] == 1
    assert policy.users is not None
    assert policy.users.find("ada", 0.0) == ("w2", 0)


def test_changed_is_against_the_shortest_queue() -> None:
    policy = ComposedPolicy(0, Parts.parse("br0"))
    workers = [
        WorkerView("w0", load=Load(1, 0, 4000, 0, 0), slots=8),
        WorkerView("w1", load=Load(3, 0, 100, 0, 0), slots=8),
    ]
    assert present(policy.choose(workers, RequestView(prompt_tokens=10))).index == 1
    assert policy.counters.changed == {"br0": 1}
    assert present(policy.choose(workers[::-1], RequestView(prompt_tokens=10))).index == 0
    workers[1] = structs.replace(workers[1], load=Load(0, 0, 100, 0, 0))
    assert present(policy.choose(workers, RequestView(prompt_tokens=10))).index == 1
    assert policy.counters.changed == {"br0": 2}


def test_in_a_round_a_rank_takes_those_who_are_near_to_it_first() -> None:
    """One free slot on w0, one on w1: both pass over the first who waits."""
    policy = ComposedPolicy(0, Parts.parse("eldr+br0"), tau=0.1, centroids=AXES)
    workers = fleet(500, 520, 540, slots=2)
    workers[2] = structs.replace(workers[2], load=Load(2, 0, 540, 10_000, 0))
    axis = {i: unit([9 * (k == i) for k in range(D)]) for i in range(3)}
    waiting = [
        RequestView(prompt_tokens=20, signature=axis[i], user=f"u{n}")
        for n, i in enumerate([2, 1, 0, 0])
    ]
    made = {a.request: a.worker for a in policy.assign(workers, waiting)}
    assert made == {1: 1, 2: 0} or made == {1: 1, 3: 0}
    assert policy.counters.decided == {"br0": 2}
    assert policy.locality is not None
    assert policy.locality.counters.located == 2
    only_far = [waiting[0], waiting[0], waiting[0]]
    assert len(policy.assign(workers, only_far)) == 2, "no slot is kept free for those who come"


def test_nobody_waits_for_ever_for_being_far() -> None:
    policy = ComposedPolicy(0, Parts.parse("eldr+br0"), tau=0.1, centroids=AXES)
    workers = fleet(500, 520, slots=2)
    workers[1] = structs.replace(workers[1], load=Load(2, 0, 520, 10_000, 0))
    far = RequestView(prompt_tokens=20, signature=unit([0, 9, 0, 0]))
    near = RequestView(prompt_tokens=20, signature=unit([9, 0, 0, 0]))
    made = [policy.assign(workers, [far] + [near] * 8)[0].request for _ in range(70)]
    assert made.index(0) == 64, "`wait_limit` others have gone before"


def test_a_full_closed_loop_is_as_level_as_with_the_barrier_alone() -> None:
    """`-s` prints it: mean max - min of 8 ranks x 16 slots, 24 waiting."""
    spreads = {}
    for name in ("shortest_queue", "br0", "composed@br0", "composed@filter+eldr+br0+user"):
        policy = make_policy(name)
        assigner = policy if isinstance(policy, Assigner) else PooledPolicy(policy)
        loop = ClosedLoop(assigner, conversation)
        loop.run(400, 100)
        spreads[name] = float(np.mean(loop.spreads))
    print(spreads)
    assert spreads["composed@br0"] == spreads["br0"]
    assert spreads["composed@filter+eldr+br0+user"] < 0.5 * spreads["shortest_queue"]


class Watched:
    """Notes which requests went to the rank of their own kind, where they are kept."""

    name = "watched"

    def __init__(self, policy: Policy) -> None:
        self.assigner = policy if isinstance(policy, Assigner) else PooledPolicy(policy)
        self.near: list[bool] = []

    def assign(
        self, workers: Sequence[WorkerView], waiting: Sequence[RequestView]
    ) -> list[Assignment]:
        made = self.assigner.assign(workers, waiting)
        for request, worker, _ in made:
            signature = waiting[request].signature
            assert isinstance(signature, np.ndarray)
            self.near.append(int(signature[:4].argmax()) == worker)
        return made


def kinds(rng: np.random.Generator) -> tuple[RequestView, int]:
    """Four kinds of requests, one for each rank."""
    request, length = conversation(rng)
    signature = np.eye(4, 6, dtype=np.float32)[rng.integers(4)] + rng.random(6) * 0.3
    return replace(request, signature=(signature / np.linalg.norm(signature))), length


def test_with_a_pool_ranks_keep_their_kinds_and_are_level() -> None:
    """`-s` prints it: the share of requests near to their rank, and the mean max - min."""
    known = Centroids(np.eye(4, 6, dtype=np.float32), {("decode", g): g for g in range(4)})
    near, spread = {}, {}
    for name in ("shortest_queue", "eldr", "br0", "composed@eldr+br0"):
        policy = make_policy(name)
        part = policy.locality
        if part is not None:
            part.centroids = known
        watched = Watched(policy)
        loop = ClosedLoop(watched, kinds, ranks=4)  # type: ignore[arg-type]
        loop.run(400, 100)
        near[name], spread[name] = np.mean(watched.near), np.mean(loop.spreads)
    print({name: (round(near[name], 2), round(spread[name])) for name in near})
    both = "composed@eldr+br0"
    assert near[both] > 0.9 > 2 * near["br0"]
    assert near[both] > 1.5 * near["eldr"], "who waits for a near rank gets it"
    assert spread[both] < 0.5 * spread["eldr"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("fitler", "unknown part 'fitler'"),
        ("", "unknown part ''"),
        ("br0+brh", "keep one of them"),
        ("eldr+eldr", "stands twice"),
        ("user@5", "takes no parameter"),
        ("eldr@2", "must lie in"),
        ("eldr@", "ends in @"),
        ("brh@guess", "unknown predictor"),
        ("brh@learned:few", "must be a number of slots"),
        ("br0@-1", "must not be negative"),
        ("none+br0", "unknown part 'none'"),
    ],
)
def test_wrong_parts_are_refused(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        make_policy(f"composed@{text}", side="decode")


def test_names() -> None:
    assert present(make_policy("composed", tau=0.2).locality).tau == 0.2
    assert present(make_policy("composed@eldr@0.3+br0", tau=0.2).locality).tau == 0.3
    assert present(make_policy("composed@brh@oracle").inflight).predictor.name == "oracle"
    assert make_policy("composed@br0").inflight is None
    for name in ("composed@br0@0+user", "composed@brh@survival:0", "br0@0", "brh@survival:0"):
        policy = make_policy(name)
        barrier = policy.barrier if isinstance(policy, ComposedPolicy) else policy
        assert present(barrier)._stages.s_greedy == 0  # type: ignore[attr-defined]
    assert present(make_policy("brh@survival:0").inflight).predictor.name == "survival"
    follow = {"eldr@0.3", "composed", "composed@eldr+br0"}
    others = {"br0", "composed@br0", "composed@none", "composed@what", "nobody"}
    assert {name for name in follow | others if follows_experts(name)} == follow
    with pytest.raises(ValueError, match="unknown prefill policy"):
        make_policy("composed", side="prefill")
