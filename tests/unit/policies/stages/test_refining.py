"""Bounds follow the live lengths, smoothly, and stand still where hardly anybody runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.qoe import Qoe
from toolkit.policies.stages.refining import Refiner, best_split, mean_batch

QOE = Qoe((1e-3, 1e-5, 0, 0, 1e-6))
TWO = Layout.of([(100, 2), (None, 1)])
BATCH = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 2000)), min_size=1, max_size=12)


@given(BATCH, st.sampled_from([0.0, 1e-6]))
def test_the_split_is_the_best_of_all(batch: list[tuple[int, int]], mixed: float) -> None:
    qoe = QOE.with_mixed(mixed)
    ordered = sorted(batch, key=lambda each: each[1])
    every = [qoe.batch(ordered[:i]) + qoe.batch(ordered[i:]) for i in range(len(ordered))]
    at = best_split(batch, qoe)
    ways = [i for i, (_, length) in enumerate(ordered) if length == at]
    assert min(every[i] for i in ways) == pytest.approx(min(every))


def test_the_mean_instance_has_every_kth_request_by_length() -> None:
    assert mean_batch([[(0, 5), (0, 1)], [(0, 4)], [(0, 2), (0, 3)]]) == [(0, 2), (0, 5)]
    assert mean_batch([[(0, 5), (0, 1)]]) == [(0, 1), (0, 5)]


SHORT = [(10, 40)] * 6
LONG = [(10, 900)] * 2


def test_a_bound_goes_a_part_of_the_way_to_where_the_lengths_part() -> None:
    refiner = Refiner(Layout.of([(100, 1), (None, 1)]), QOE, weight=0.5)
    for bound in (500, 699, 799):
        assert refiner.refine([[SHORT], [LONG]]).bounds == (bound,)
    for _ in range(20):
        layout = refiner.refine([[SHORT], [LONG]])
    assert layout.bounds == (899,)
    assert layout.stage_of(40) == 0 and layout.stage_of(900) == 1


def test_it_is_the_mean_over_the_instances_of_a_stage() -> None:
    refiner = Refiner(TWO, QOE, weight=1.0)
    other = [(10, 30)] * 6
    found = refiner.refine([[SHORT, other], [[(10, 40)] * 2]]).bounds
    alone = [
        Refiner(TWO, QOE, weight=1.0).refine([[each], [[(10, 40)] * 2]]).bounds[0]
        for each in (SHORT, other)
    ]
    assert found == (round(sum(alone) / 2),)


def test_fewer_than_five_requests_move_nothing() -> None:
    refiner = Refiner(TWO, QOE, weight=1.0)
    assert refiner.refine([[[(1, 9)] * 2, [(1, 9)]], [[(1, 900)] * 2]]).bounds == (100,)
    assert refiner.refine([[], [LONG]]).bounds == (100,)
    assert refiner.refine([[[(1, 9)] * 3], [[(1, 900)] * 2]]).bounds != (100,)


@given(st.lists(st.lists(BATCH, max_size=3), min_size=4, max_size=4), st.integers(1, 5))
def test_bounds_stay_in_their_order(batches: list[list[list[tuple[int, int]]]], times: int) -> None:
    layout = Layout.of([(64, 1), (256, 1), (1024, 1), (None, 1)])
    refiner = Refiner(layout, QOE, weight=1.0)
    for _ in range(times):
        refined = refiner.refine(batches)
    assert refined.ranks == layout.ranks


def test_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="weight"):
        Refiner(TWO, QOE, weight=0.0)
    with pytest.raises(ValueError, match="batches of 1 stages; the layout has 2"):
        Refiner(TWO, QOE).refine([[]])
    with pytest.raises(ValueError, match="nobody"):
        best_split([], QOE)
