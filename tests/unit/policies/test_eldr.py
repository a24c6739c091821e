"""ELDR's locality band."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.present import present
from toolkit.policies import RequestView, WorkerView
from toolkit.policies.eldr import SHARED, EldrPolicy
from toolkit.policies.shortest_queue import ShortestQueuePolicy
from toolkit.policies.support.expert_locality import Centroids

D = 6
vectors = st.lists(st.integers(0, 9), min_size=D, max_size=D).filter(any)


def unit(values: list[int]) -> np.ndarray:
    vector = np.array(values, np.float32)
    return vector / np.linalg.norm(vector)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[WorkerView], Centroids, np.ndarray]:
    count = draw(st.integers(1, 6))
    workers = [
        WorkerView(f"w{i}", healthy=draw(st.booleans()), inflight=draw(st.integers(0, 5)))
        for i in range(count)
    ]
    rows = np.stack([unit(draw(vectors)) for _ in range(count)])
    order = draw(st.permutations(range(count)))
    owner = {worker.key: row for worker, row in zip(workers, order, strict=True)}
    return workers, Centroids(rows, owner), unit(draw(vectors))  # type: ignore[arg-type]


def cosines(case: tuple[list[WorkerView], Centroids, np.ndarray]) -> dict[int, float]:
    workers, centroids, signature = case
    return {
        i: float(centroids.rows[centroids.owner[w.key]] @ signature)
        for i, w in enumerate(workers)
        if w.healthy
    }


@given(cases(), st.floats(0, 1))
def test_the_choice_is_in_the_band_and_nobody_there_has_fewer_requests(
    case: Any, tau: float
) -> None:
    workers, centroids, signature = case
    policy = EldrPolicy(0, tau, centroids, overload=math.inf)
    decision = policy.choose(workers, RequestView(signature=signature))
    near = cosines(case)
    if not near:
        assert decision is None
        return
    edge = max(near.values()) - tau
    # Float32 cosines on the band's very edge may fall on either side of it.
    assert near[present(decision).index] >= edge - 1e-6
    surely = [workers[i].requests for i, s in near.items() if s >= edge + 1e-6]
    assert not surely or workers[present(decision).index].requests <= min(surely)
    assert policy.counters.located == 1
    assert 1 <= policy.counters.band <= len(near)


@given(cases())
def test_tau_0_is_locality_only(case: Any) -> None:
    workers, centroids, signature = case
    decision = EldrPolicy(0, 0.0, centroids).choose(workers, RequestView(signature=signature))
    near = cosines(case)
    if near:
        assert near[present(decision).index] == pytest.approx(max(near.values()), abs=1e-6)


@given(st.lists(cases(), min_size=1, max_size=6))
def test_tau_1_is_the_shortest_queue(steps: Any) -> None:
    ours, theirs = EldrPolicy(0, 1.0), ShortestQueuePolicy()
    for workers, centroids, signature in steps:
        ours.centroids = centroids
        request = RequestView(signature=signature)
        mine, other = ours.choose(workers, request), theirs.choose(workers, request)
        assert (mine is None) == (other is None)
        if mine is not None:
            assert mine.index == present(other).index


def fleet(*inflight: int) -> list[WorkerView]:
    return [WorkerView(f"w{i}", inflight=n) for i, n in enumerate(inflight)]


AXES = Centroids(np.eye(D, dtype=np.float32)[:2], {("w0", 0): 0, ("w1", 0): 1})


@pytest.mark.parametrize(
    ("centroids", "signature", "reason"),
    [
        (None, np.ones(D, np.float32), "no centroids"),
        (AXES, None, "no signature"),
        (AXES, [1.0] * D, "no signature"),
        (AXES, "", "no signature"),
        (AXES, "incomplete signature", "incomplete signature"),
        (None, "other layers", "no centroids"),
        (AXES, np.ones(3, np.float32), "signature of another length"),
        (AXES, np.zeros(D, np.float32), "empty signature"),
        (Centroids(AXES.rows, {("x", 0): 0}), np.ones(D, np.float32), "no worker with a centroid"),
    ],
)
def test_fallbacks_go_by_load_and_are_counted(centroids: Any, signature: Any, reason: str) -> None:
    policy = EldrPolicy(0, 0.1, centroids)
    decision = policy.choose(fleet(4, 1), RequestView(signature=signature))
    assert present(decision).index == 1
    assert reason in present(decision).reason
    assert policy.counters.fallbacks == {reason: 1}
    assert policy.counters.located == 0


def test_a_request_leaves_its_first_choice_inside_the_band_only() -> None:
    nearly = np.array([0.70, 0.66, 0, 0, 0, 0], np.float32)
    policy = EldrPolicy(0, 0.1, AXES, overload=math.inf)
    assert present(policy.choose(fleet(3, 0), RequestView(signature=nearly))).index == 1
    assert policy.counters.moved == 1
    clear = np.array([0.9, 0.1, 0, 0, 0, 0], np.float32)
    assert present(policy.choose(fleet(30, 0), RequestView(signature=clear))).index == 0
    assert (policy.counters.located, policy.counters.moved, policy.counters.band) == (2, 1, 3)


@pytest.mark.parametrize("tau", [-0.1, 1.1, float("nan")])
def test_tau_out_of_range_is_refused(tau: Any) -> None:
    with pytest.raises(ValueError, match="tau"):
        EldrPolicy(0, tau)


def test_centroids_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        Centroids(np.zeros(3, np.float32), {})
    with pytest.raises(ValueError, match="no such centroid"):
        Centroids(np.eye(2, dtype=np.float32), {("w0", 0): 2})


def flood(policy: EldrPolicy, requests: int) -> list[int]:
    """Queue lengths of four workers after a flood of requests that are all like the first one's."""
    policy.centroids = Centroids(
        np.eye(4, D, dtype=np.float32), {(f"w{i}", 0): i for i in range(4)}
    )
    queues = [0, 0, 0, 0]
    for _ in range(requests):
        workers = [WorkerView(f"w{i}", inflight=n) for i, n in enumerate(queues)]
        signature = unit([90, 60, 40, 20, 0, 0])
        decision = policy.choose(workers, RequestView(signature=signature))
        assert decision is not None
        queues[decision.index] += 1
    return queues


def test_a_flood_of_one_kind_does_not_melt_its_worker() -> None:
    assert flood(EldrPolicy(0, 0.1, overload=math.inf), 40) == [40, 0, 0, 0], "the paper's rule"
    assert flood(EldrPolicy(0, 0.0), 40) == [40, 0, 0, 0], "locality only"
    queues = flood(EldrPolicy(0, 0.1), 40)
    assert max(queues) <= 1.5 * 10
    assert queues == sorted(queues, reverse=True), "what overflows goes where it fits next best"


@given(cases(), st.floats(0.01, 1), st.floats(1.01, 3))
def test_more_than_overload_times_the_mean_goes_to_nobody(
    case: Any, tau: float, overload: float
) -> None:
    workers, centroids, signature = case
    policy = EldrPolicy(0, tau, centroids, overload=overload)
    decision = policy.choose(workers, RequestView(signature=signature))
    if decision is None:
        return
    queues = [w.requests for w in workers if w.healthy]
    mean = sum(queues) / len(queues)
    # Such a one scores below 0, and somebody is not above the mean and scores 0 at least.
    edge = mean + (1 + tau) * (overload - 1) * max(mean, 1)
    assert workers[decision.index].requests <= edge + 1e-6


def test_crowding_counts_by_degrees() -> None:
    """Queues 5 and 3: 1.25 times the mean, half of what `overload` 1.5 takes away whole."""
    policy = EldrPolicy(0, 0.01, AXES, overload=1.5)
    for first, expected in ((0.8, 0), (0.6, 1)):
        signature = np.array([first, 0.2, 0, 0, 0, 0], np.float32)
        assert (
            present(policy.choose(fleet(5, 3), RequestView(signature=signature))).index == expected
        )
    assert (policy.counters.crowded, policy.counters.moved) == (1, 0)


@pytest.mark.parametrize("overload", [1, 0.9, float("nan")])
def test_overload_of_one_or_less_is_refused(overload: Any) -> None:
    with pytest.raises(ValueError, match="above 1"):
        EldrPolicy(0, overload=overload)


def server(name: str, *inflight: int) -> list[WorkerView]:
    """The ranks of one server with DP attention."""
    return [
        WorkerView(name, dp_rank=rank, inflight=n, shares_experts=True)
        for rank, n in enumerate(inflight)
    ]


PAIR = Centroids(np.eye(D, dtype=np.float32)[:2], {("a", None): 0, ("b", None): 1})
NEAR_A = unit([9, 1, 0, 0, 0, 0])


def test_ranks_that_share_their_experts_are_in_the_band_together() -> None:
    """Two servers of two ranks: K = 2, and the queue alone decides inside the near one."""
    policy = EldrPolicy(0, 0.1, PAIR, overload=math.inf)
    workers = server("a", 4, 3) + server("b", 0, 0)
    queues = {i: worker.requests for i, worker in enumerate(workers)}
    band = policy.band(workers, queues, NEAR_A)
    assert (band.indices, band.width, band.reason) == ([0, 1], 1, "band of 1")
    decision = policy.choose(workers, RequestView(signature=NEAR_A))
    assert decision is not None and decision.index == 1
    assert (policy.counters.located, policy.counters.band, policy.counters.moved) == (1, 1, 0)
    both = unit([5, 5, 0, 0, 0, 0])
    assert policy.band(workers, queues, both).width == 2


def test_plain_ranks_of_one_server_are_each_their_own() -> None:
    workers = [replace(each, shares_experts=False) for each in server("a", 0, 5)]
    known = Centroids(PAIR.rows, {("a", 0): 1, ("a", 1): 0})
    decision = EldrPolicy(0, 0.1, known, math.inf).choose(workers, RequestView(signature=NEAR_A))
    assert decision is not None and decision.index == 1


@pytest.mark.parametrize(
    ("workers", "index"),
    [
        # The near server's mean queue is no longer than the other's.
        (server("a", 8, 0) + server("b", 4, 4), 1),
        # It is twice the mean: as far as one with which the request has nothing in common.
        (server("a", 8, 8) + server("b", 0, 0), 2),
    ],
)
def test_a_server_is_crowded_as_a_whole(workers: list[WorkerView], index: int) -> None:
    decision = EldrPolicy(0, 0.1, PAIR).choose(workers, RequestView(signature=NEAR_A))
    assert decision is not None and decision.index == index


def test_among_ranks_that_all_share_their_experts_the_shortest_queue_decides() -> None:
    """Whatever the centroids are; a rank by itself is no such case."""
    known = Centroids(PAIR.rows, {("a", 0): 0, ("a", None): 1})
    policy = EldrPolicy(0, 0.1, known)
    decision = policy.choose(server("a", 5, 2, 3), RequestView(signature=NEAR_A))
    assert decision is not None and decision.index == 1 and SHARED in decision.reason
    assert policy.counters.fallbacks == {SHARED: 1} and policy.counters.located == 0
    alone = [replace(each, healthy=each.dp_rank == 0) for each in server("a", 5, 2)]
    assert policy.choose(alone, RequestView(signature=NEAR_A)) is not None
    assert policy.counters.located == 1


@given(st.lists(cases(), min_size=1, max_size=5), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_servers_of_one_rank_are_chosen_as_ever(steps: Any, tau: float) -> None:
    """Whether they say that their one rank shares its experts or not."""
    plain, shared = EldrPolicy(0, tau), EldrPolicy(0, tau)
    for workers, centroids, signature in steps:
        plain.centroids = centroids
        owner = {(name, None): row for (name, _), row in centroids.owner.items()}
        shared.centroids = Centroids(centroids.rows, owner)  # type: ignore[arg-type]
        told = [replace(worker, shares_experts=True) for worker in workers]
        request = RequestView(signature=signature)
        assert plain.choose(workers, request) == shared.choose(told, request)
    assert plain.counters == shared.counters


@given(st.data(), st.floats(0, 1), st.lists(vectors, min_size=3, max_size=3), vectors)
def test_a_band_holds_all_ranks_of_a_server_or_none(
    data: st.DataObject, tau: float, rows: Any, wanted: Any
) -> None:
    sizes = st.lists(st.integers(0, 9), min_size=1, max_size=4)
    workers = [worker for name in "abc" for worker in server(name, *data.draw(sizes))]
    owner = {(name, None): row for row, name in enumerate("abc")}
    policy = EldrPolicy(0, tau, Centroids(np.stack([unit(row) for row in rows]), owner))  # type: ignore[arg-type]
    queues = {i: worker.requests for i, worker in enumerate(workers)}
    band = policy.band(workers, queues, unit(wanted))
    inside = {workers[i].name for i in band.indices}
    assert band.indices == [i for i, worker in enumerate(workers) if worker.name in inside]
    assert band.width == len(inside)
