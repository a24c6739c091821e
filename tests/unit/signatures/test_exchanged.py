"""Rows handed out by costs: the least in all, and nothing for little."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from toolkit.signatures.matching import exchanged

SQUARES = st.integers(1, 5).flatmap(
    lambda size: arrays(np.float64, (size, size), elements=st.integers(1, 9).map(float))
)


@given(SQUARES, st.sampled_from([0.0, 0.05, 0.3]))
def test_the_cheapest_way_or_none_that_gains_enough(costs: np.ndarray, least: float) -> None:
    size = len(costs)
    ways = [np.array(way) for way in permutations(range(size))]
    sums = [costs[np.arange(size), way].sum() for way in ways]
    now, best = sums[0], min(sums)
    found = exchanged(costs, least)
    if found is None:
        assert best == now or now - best < least * now
        return
    assert costs[np.arange(size), found].sum() == best <= now * (1 - least)
    assert sorted(found) == list(range(size))
    # Of equal ways none changes fewer workers.
    equal = [way for way, total in zip(ways, sums, strict=True) if total == best]
    changes = min((way != np.arange(size)).sum() for way in equal)
    assert (found != np.arange(size)).sum() == changes > 0


@pytest.mark.parametrize("costs", [np.ones((2, 3)), np.ones(2), np.full((2, 2), np.nan)])
def test_costs_of_another_shape_or_none_are_refused(costs: np.ndarray) -> None:
    with pytest.raises(ValueError, match="costs"):
        exchanged(costs, 0.05)
