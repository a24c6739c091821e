"""ELDR's locality band."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies import Load, RequestView, ShortestQueuePolicy, WorkerView
from toolkit.policies.eldr import Centroids, EldrPolicy

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
    return workers, Centroids(rows, owner), unit(draw(vectors))


def cosines(case: tuple[list[WorkerView], Centroids, np.ndarray]) -> dict[int, float]:
    workers, centroids, signature = case
    return {
        i: float(centroids.rows[centroids.owner[w.key]] @ signature)
        for i, w in enumerate(workers)
        if w.healthy
    }


@given(cases(), st.floats(0, 1))
def test_the_choice_is_in_the_band_and_nobody_there_has_fewer_requests(case, tau) -> None:
    workers, centroids, signature = case
    policy = EldrPolicy(0, tau, centroids, overload=math.inf)
    decision = policy.choose(workers, RequestView(signature=signature))
    near = cosines(case)
    if not near:
        assert decision is None
        return
    edge = max(near.values()) - tau
    # Float32 cosines on the band's very edge may fall on either side of it.
    assert near[decision.index] >= edge - 1e-6
    surely = [workers[i].requests for i, s in near.items() if s >= edge + 1e-6]
    assert not surely or workers[decision.index].requests <= min(surely)
    assert policy.counters.located == 1
    assert 1 <= policy.counters.band <= len(near)


@given(cases())
def test_tau_0_is_locality_only(case) -> None:
    workers, centroids, signature = case
    decision = EldrPolicy(0, 0.0, centroids).choose(workers, RequestView(signature=signature))
    near = cosines(case)
    if near:
        assert near[decision.index] == pytest.approx(max(near.values()), abs=1e-6)


@given(st.lists(cases(), min_size=1, max_size=6))
def test_tau_1_is_the_shortest_queue(steps) -> None:
    ours, theirs = EldrPolicy(0, 1.0), ShortestQueuePolicy()
    for workers, centroids, signature in steps:
        ours.centroids = centroids
        request = RequestView(signature=signature)
        mine, other = ours.choose(workers, request), theirs.choose(workers, request)
        assert (mine is None) == (other is None)
        if mine is not None:
            assert mine.index == other.index


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
def test_fallbacks_go_by_load_and_are_counted(centroids, signature, reason) -> None:
    policy = EldrPolicy(0, 0.1, centroids)
    decision = policy.choose(fleet(4, 1), RequestView(signature=signature))
    assert decision.index == 1
    assert reason in decision.reason
    assert policy.counters.fallbacks == {reason: 1}
    assert policy.counters.located == 0


def test_a_request_leaves_its_first_choice_inside_the_band_only() -> None:
    nearly = np.array([0.70, 0.66, 0, 0, 0, 0], np.float32)
    policy = EldrPolicy(0, 0.1, AXES, overload=math.inf)
    assert policy.choose(fleet(3, 0), RequestView(signature=nearly)).index == 1
    assert policy.counters.moved == 1
    clear = np.array([0.9, 0.1, 0, 0, 0, 0], np.float32)
    assert policy.choose(fleet(30, 0), RequestView(signature=clear)).index == 0
    assert (policy.counters.located, policy.counters.moved, policy.counters.band) == (2, 1, 3)


@pytest.mark.parametrize("tau", [-0.1, 1.1, float("nan")])
def test_tau_out_of_range_is_refused(tau) -> None:
    with pytest.raises(ValueError, match="tau"):
        EldrPolicy(0, tau)


def test_centroids_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        Centroids(np.zeros(3, np.float32), {})
    with pytest.raises(ValueError, match="no such centroid"):
        Centroids(np.eye(2, dtype=np.float32), {("w0", 0): 2})


def flood(policy: EldrPolicy, requests: int, slots: int = 0) -> list[int]:
    """Queue lengths of four workers after a flood of requests that are all like the first one's."""
    policy.centroids = Centroids(
        np.eye(4, D, dtype=np.float32), {(f"w{i}", 0): i for i in range(4)}
    )
    queues = [0, 0, 0, 0]
    for _ in range(requests):
        workers = [WorkerView(f"w{i}", inflight=n, slots=slots) for i, n in enumerate(queues)]
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


def test_a_full_worker_is_passed_over_unless_all_are() -> None:
    assert flood(EldrPolicy(0, 0.1, overload=math.inf), 8, slots=6) == [6, 2, 0, 0]
    assert sum(flood(EldrPolicy(0, 0.1), 30, slots=6)) == 30


@given(cases(), st.floats(0.01, 1), st.floats(1.01, 3))
def test_more_than_overload_times_the_mean_goes_to_nobody(case, tau, overload) -> None:
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
        assert policy.choose(fleet(5, 3), RequestView(signature=signature)).index == expected
    assert (policy.counters.crowded, policy.counters.moved) == (1, 0)


@pytest.mark.parametrize("overload", [1, 0.9, float("nan")])
def test_overload_of_one_or_less_is_refused(overload) -> None:
    with pytest.raises(ValueError, match="above 1"):
        EldrPolicy(0, overload=overload)


def read(running: int, waiting: int = 0, sent: int = 0) -> Load:
    return Load(running, waiting, 100 * running, 1000, 0, sent_requests=sent)


@pytest.mark.parametrize(
    ("full", "free"),
    [
        # Filled by us: a reading may be older than what was sent and forgotten since.
        ((2, read(0)), (1, read(0))),
        # Filled by others.
        ((0, read(1, waiting=1)), (0, read(0))),
        # For a moment after it was posted a request is in the reading and among those sent since.
        ((2, read(2)), (1, read(1, sent=1))),
    ],
)
def test_a_full_worker_is_told_from_one_that_is_not(
    full: tuple[int, Load], free: tuple[int, Load]
) -> None:
    """Two slots each, and the full one is nearer."""
    workers = [
        WorkerView(f"w{i}", load=load, inflight=inflight, slots=2)
        for i, (inflight, load) in enumerate((full, free))
    ]
    near = np.eye(D, dtype=np.float32)[0]
    decision = EldrPolicy(0, 0.1, AXES).choose(workers, RequestView(signature=near))
    assert decision is not None and decision.index == 1
