"""How near requests are to centroids, and how many workers are in use."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.signatures.nearness import Nearness, nearness, workers_in_use
from toolkit.signatures.rules import DriftRules


@given(st.lists(st.integers(0, 6), min_size=2, max_size=40))
def test_workers_in_use_is_one_over_the_chance_of_meeting(nearest: list[int]) -> None:
    pairs = [a == b for i, a in enumerate(nearest) for b in nearest[:i]]
    found = workers_in_use(np.array(nearest))
    chance = sum(pairs) / len(pairs)
    assert found == pytest.approx(min(1 / chance, len(nearest)) if chance else len(nearest))
    assert 1 <= found <= len(nearest)  # type: ignore[operator]


def test_workers_in_use_hardly_depends_on_how_many_requests_are_counted() -> None:
    rng = np.random.default_rng(0)
    for workers in (4, 24):
        small = [1 / workers_in_use(rng.integers(workers, size=64)) for _ in range(400)]  # type: ignore[operator]
        assert 1 / np.mean(small) == pytest.approx(workers, rel=0.03)
    assert workers_in_use(np.zeros(50, dtype=int)) == 1
    assert workers_in_use(np.array([3])) is None
    assert workers_in_use(np.zeros(0, dtype=int)) is None


def test_nearness_of_known_vectors() -> None:
    centroids = np.eye(3, dtype=np.float32)
    signatures = np.array([[1, 0, 0], [0.8, 0.6, 0], [0, 1, 0], [0, 0, 0]], dtype=np.float32)
    found = nearness(signatures, centroids)
    assert found.cosine == pytest.approx((1 + 0.8 + 1 + 0) / 4)
    assert found.workers == 3  # one pair in three meets; the zero signature belongs to nobody
    assert nearness(signatures[3:], centroids) == Nearness(0.0, None)
    assert nearness(signatures[:0], centroids) == Nearness(0.0, None)


@pytest.mark.parametrize(
    ("signatures", "centroids", "words"),
    [
        ((3, 4), (2, 5), "different profiles"),
        ((4,), (2, 4), r"\[N, D\]"),
        ((3, 4), (4,), r"\[K, D\]"),
        ((3, 4), (0, 4), "at least one centroid"),
    ],
)
def test_shapes_that_do_not_fit(signatures: Any, centroids: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        nearness(np.zeros(signatures), np.zeros(centroids))


def test_crowded() -> None:
    rules = DriftRules(crowding=1.5)
    assert rules.crowded(2.0, 3.1)
    assert not rules.crowded(2.0, 3.0)
    assert not rules.crowded(1.0, 1.0)
    assert not rules.crowded(None, 8.0)
    assert not rules.crowded(1.0, None)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"recent": 0}, "recent = 0"),
        ({"window": 1}, "window = 1"),
        ({"wait_limit": -1}, "wait_limit = -1"),
        ({"tolerance": -0.1}, "tolerance"),
        ({"min_gain": float("nan")}, "min_gain"),
        ({"crowding": 1.0}, "crowding"),
    ],
)
def test_rules_that_make_no_sense(changed: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DriftRules(**changed)
