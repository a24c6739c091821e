"""Balanced assignment: exact against scipy, proved by its prices, never above a greedy one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.optimize import linear_sum_assignment

from tests.kernels import examples
from toolkit.signatures import balanced_assignment

shapes = st.tuples(st.integers(1, 30), st.integers(1, 7))
# Few distinct values make ties, many make none; both must be right.
entries = st.one_of(
    st.integers(0, 3).map(float), st.floats(-2, 2, allow_nan=False).map(lambda x: round(x, 6))
)
problems = shapes.flatmap(lambda shape: arrays.arrays(np.float64, shape, elements=entries))


def hungarian(costs: np.ndarray, capacity: int) -> float:
    """The optimum by scipy on `capacity` copies of each cluster."""
    copies = np.repeat(costs, capacity, axis=1)
    rows, columns = linear_sum_assignment(copies)
    return float(copies[rows, columns].sum())


def greedy(costs: np.ndarray, capacity: int) -> float:
    """Cheapest (point, cluster) first, where there is room."""
    room = np.full(costs.shape[1], capacity)
    free = np.ones(costs.shape[0], dtype=bool)
    total = 0.0
    for flat in np.argsort(costs, axis=None, kind="stable"):
        point, cluster = divmod(int(flat), costs.shape[1])
        if free[point] and room[cluster]:
            free[point], room[cluster] = False, room[cluster] - 1
            total += costs[point, cluster]
    return total


def assert_proved(costs: np.ndarray, capacity: int, result: Any) -> None:
    """Complementary slackness: with these prices nobody would rather be elsewhere."""
    paid = costs + result.prices
    own = paid[np.arange(len(costs)), result.labels]
    assert (own <= paid.min(axis=1) + 1e-9).all()
    sizes = np.bincount(result.labels, minlength=costs.shape[1])
    assert (sizes <= capacity).all()
    assert (result.prices >= 0).all()
    assert np.allclose(result.prices[sizes < capacity], 0, atol=1e-9)


@settings(max_examples=examples(300), deadline=None)
@given(problems, st.integers(0, 4))
def test_equals_the_hungarian_method_and_is_never_above_a_greedy_one(
    costs: Any, extra: int
) -> None:
    capacity = -(-costs.shape[0] // costs.shape[1]) + extra
    result = balanced_assignment(costs, capacity)
    assert result.cost == pytest.approx(hungarian(costs, capacity), abs=1e-9)
    assert result.cost <= greedy(costs, capacity) + 1e-9
    assert result.cost == pytest.approx(costs[np.arange(len(costs)), result.labels].sum())
    assert_proved(costs, capacity, result)


@settings(max_examples=examples(100), deadline=None)
@given(problems, st.data())
def test_prices_of_another_problem_change_nothing_but_the_time(
    costs: Any, data: st.DataObject
) -> None:
    clusters = costs.shape[1]
    prices = np.array(data.draw(st.lists(st.floats(0, 9), min_size=clusters, max_size=clusters)))
    warm = balanced_assignment(costs, prices=prices)
    assert warm.cost == pytest.approx(balanced_assignment(costs).cost, abs=1e-9)


@pytest.mark.parametrize(("points", "clusters"), [(1000, 16), (997, 16), (10_000, 24)])
def test_exact_at_full_size(points: int, clusters: int) -> None:
    rng = np.random.default_rng(0)
    costs = rng.random((points, clusters)) ** 2 * np.linspace(0.2, 1, clusters)
    capacity = -(-points // clusters)
    result = balanced_assignment(costs)
    assert_proved(costs, capacity, result)
    if points <= 1000:
        assert result.cost == pytest.approx(hungarian(costs, capacity), abs=1e-7)


def test_thousands_of_equal_points_are_moved_together() -> None:
    result = balanced_assignment(np.zeros((10_000, 16)))
    assert set(np.bincount(result.labels)) == {625}
    crowd = np.tile([0.0, 0.25, 0.5, 0.75], (8_000, 1))
    assert balanced_assignment(crowd).cost == pytest.approx(8_000 * 0.375)


def test_ties_are_broken_the_same_way() -> None:
    costs = np.random.default_rng(3).integers(0, 3, size=(60, 5)).astype(float)
    first = balanced_assignment(costs)
    assert (balanced_assignment(costs.copy()).labels == first.labels).all()


@pytest.mark.parametrize(
    ("costs", "capacity", "words"),
    [
        (np.zeros((0, 3)), None, "not empty"),
        (np.zeros(3), None, r"\[points, clusters\]"),
        (np.array([[0.0, np.nan]]), None, "finite"),
        (np.zeros((5, 2)), 2, "cannot hold 5"),
    ],
)
def test_bad_input(costs: Any, capacity: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        balanced_assignment(costs, capacity)
