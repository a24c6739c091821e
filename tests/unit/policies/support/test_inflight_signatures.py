"""What is in flight on a worker, and what that does to a flood."""

import math
import random
from collections import Counter, deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies import RequestView, WorkerView
from toolkit.policies.eldr import EldrPolicy
from toolkit.policies.support.expert_locality import Centroids
from toolkit.policies.support.inflight_signatures import InflightSignatures

D = 8
KEYS = [(f"w{i}", 0) for i in range(4)]


def unit(values: np.ndarray) -> np.ndarray:
    return (values / np.linalg.norm(values)).astype(np.float32)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=20, max_size=60),
    st.integers(0, 99),
)
def test_the_cosine_is_that_of_the_mean_of_what_is_there(
    steps: list[tuple[int, bool]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    inflight_signatures, there = InflightSignatures(D), {key: [] for key in KEYS}  # type: ignore[var-annotated]
    for number, leaves in steps:
        key = KEYS[number]
        if leaves and there[key]:
            inflight_signatures.remove(key, there[key].pop(0))
        else:
            vector = unit(rng.random(D))
            inflight_signatures.add(key, vector)
            there[key].append(vector)
    probe = unit(rng.random(D))
    found = inflight_signatures.cosines(probe)
    assert set(found) == {key for key in KEYS if there[key]}
    for key, cosine in found.items():  # type: ignore[assignment]
        assert cosine == pytest.approx(float(unit(np.sum(there[key], axis=0)) @ probe), abs=1e-5)
        assert inflight_signatures.count(key) == len(there[key])


def test_more_cannot_leave_than_came() -> None:
    inflight_signatures = InflightSignatures(D)
    with pytest.raises(ValueError, match="no request"):
        inflight_signatures.remove(KEYS[0], np.ones(D, np.float32))


TWO = Centroids(np.eye(2, D, dtype=np.float32), {key: row for row, key in enumerate(KEYS[:2])})


@pytest.mark.parametrize(
    ("overload", "slots", "queues", "moved", "crowded"),
    [(math.inf, 0, (3, 0), 1, 0), (1.5, 0, (6, 0), 0, 1), (1.5, 2, (2, 0), 0, 1),
     (1.5, 0, (0, 3), 0, 0)],
)  # fmt: skip
def test_who_goes_to_its_own_kind_on_another_worker_is_counted(
    overload: Any, slots: int, queues: Any, moved: int, crowded: int
) -> None:
    """What runs there makes that worker as near as the centroid's; it is another one still."""
    policy = EldrPolicy(0, 0.1, TWO, overload)
    policy.inflight_signatures = InflightSignatures(D)
    vector = unit(np.array([0.9, 0.1] + [0.0] * (D - 2)))
    for key in KEYS[:2]:
        policy.inflight_signatures.add(key, vector)
    workers = [WorkerView(f"w{i}", inflight=n, slots=slots) for i, n in enumerate(queues)]
    decision = policy.choose(workers, RequestView(signature=vector))
    assert decision is not None and decision.index == moved + crowded
    assert (policy.counters.moved, policy.counters.crowded) == (moved, crowded)


def test_a_worker_that_is_nearer_by_what_runs_there_is_no_sign_of_a_crowd() -> None:
    policy = EldrPolicy(0, 0.1, TWO)
    policy.inflight_signatures = InflightSignatures(D)
    vector = unit(np.array([0.7, 0.6, 0.6] + [0.0] * (D - 3)))
    policy.inflight_signatures.add(KEYS[1], vector)
    decision = policy.choose([WorkerView("w0"), WorkerView("w1")], RequestView(signature=vector))
    assert decision is not None and decision.index == 1
    assert (policy.counters.moved, policy.counters.crowded) == (0, 0)


def test_ranks_that_share_their_experts_are_near_by_what_runs_on_any_of_them() -> None:
    workers = [WorkerView(name, dp_rank=g, shares_experts=True) for name in "ab" for g in range(2)]
    owner = {("a", None): 0, ("b", None): 1}
    policy = EldrPolicy(0, 0.1, Centroids(np.eye(2, D, dtype=np.float32), owner))  # type: ignore[arg-type]
    policy.inflight_signatures = InflightSignatures(D)
    vector = unit(np.array([0.5, 0.3, 0.6] + [0.0] * (D - 3)))
    policy.inflight_signatures.add(workers[2].group, vector)
    found = policy.cosines(workers, range(4), vector)
    assert not isinstance(found, str)
    _, near = found
    assert near[2] == near[3] == pytest.approx(1.0)
    assert near[0] == near[1] < 0.7


class Fleet:
    """Four workers in a closed loop of forty requests under ELDR, the oldest ends first."""

    def __init__(self) -> None:
        owner = {key: row for row, key in enumerate(KEYS)}
        self.policy = EldrPolicy(0, 0.1, Centroids(np.eye(4, D, dtype=np.float32), owner))  # type: ignore[arg-type]
        self.policy.inflight_signatures = self.inflight_signatures = InflightSignatures(D)
        self.flying: deque[tuple[int, np.ndarray]] = deque()
        self.random = np.random.default_rng(1)

    def request(self, kind: int) -> int:
        if len(self.flying) == 40:
            index, vector = self.flying.popleft()
            self.inflight_signatures.remove(KEYS[index], vector)
        signature = 0.15 * self.random.random(D)
        signature[kind] = 1.0
        vector = unit(signature)
        queues = self.queues()
        workers = [WorkerView(f"w{i}", inflight=queues[i], slots=16) for i in range(4)]
        decision = self.policy.choose(workers, RequestView(signature=vector))
        assert decision is not None
        self.inflight_signatures.add(KEYS[decision.index], vector)
        self.flying.append((decision.index, vector))
        return decision.index

    def queues(self) -> Counter[int]:
        return Counter(index for index, _ in self.flying)


def test_a_flood_ends_up_level_and_what_comes_after_it_is_sorted_again() -> None:
    fleet, source = Fleet(), random.Random(3)
    mixed = [source.randrange(4) for _ in range(200)]
    assert sum(fleet.request(kind) == kind for kind in mixed) >= 160, "locality before"
    for _ in range(160):
        fleet.request(0)
    queues = fleet.queues()
    assert max(queues.values()) - min(queues.values()) <= 2, queues
    for kind in mixed:
        fleet.request(kind)
    homes = [fleet.request(kind) == kind for kind in mixed]
    assert sum(homes) >= 160, "and after it"
