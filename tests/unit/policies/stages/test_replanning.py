"""Stages that are planned anew for what decodes."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.partition import exact
from toolkit.policies.stages.population import of_live
from toolkit.policies.stages.problem import StageProblem
from toolkit.policies.stages.qoe import Qoe
from toolkit.policies.stages.replanning import GAIN, LEAST, Replanner

QOE = Qoe((5e-3, 1e-4, 0.0, 0.0, 1e-7), 1e-5)
"""With a penalty for mixed lengths: stages pay."""
HALF = Layout.of([(512, 2), (None, 2)])


def lengths(seed: int, short: int, long: int) -> list[tuple[int, int]]:
    source = random.Random(seed)
    made = [(source.randint(20, 100), source.randint(101, 400)) for _ in range(short)]
    return made + [(source.randint(1000, 2000), source.randint(2001, 8000)) for _ in range(long)]


def test_ranks_follow_where_requests_are() -> None:
    planner = Replanner(QOE, 2)
    few = planner.plan(lengths(1, 100, 8), HALF)
    many = planner.plan(lengths(1, 8, 100), HALF)
    assert many is not None and many.stages[-1].replicas == 3
    assert few is None or few.stages[-1].replicas <= 2


def test_what_is_as_good_stays() -> None:
    planner = Replanner(QOE, 2)
    live = lengths(2, 10, 100)
    found = planner.plan(live, HALF)
    assert found is not None and planner.plan(live, found) is None


def test_few_requests_plan_nothing() -> None:
    live = lengths(3, 0, LEAST * HALF.ranks - 1)
    assert Replanner(QOE, 2).plan(live, HALF) is None


def test_a_move_s_price_keeps_a_cut_away() -> None:
    """Requests that outgrow a bound at every step: to move each of them costs more than it wins."""
    spread = (*range(300, 500, 4), *range(600, 4000, 200), *range(4000, 8000, 80))
    live = [(1, length) for length in spread]
    one = Layout.of([(None, 4)])
    assert Replanner(QOE, 4).plan(live, one) is not None
    assert Replanner(QOE, 4).plan(live, one, move_s=100.0) is None


@given(
    st.lists(
        st.tuples(st.integers(1, 3000), st.integers(1, 6000)).map(lambda p: (p[0], sum(p))),
        min_size=40,
        max_size=120,
    ),
    st.lists(st.integers(1, 8000), max_size=3, unique=True).map(sorted),
    st.lists(st.integers(1, 3), min_size=4, max_size=4),
)
def test_what_is_taken_is_better_for_the_same_ranks(
    live: list[tuple[int, int]], bounds: list[int], replicas: list[int]
) -> None:
    layout = Layout.of(list(zip([*bounds, None], replicas, strict=False)))
    most = len(layout.stages)
    found = Replanner(QOE, most).plan(live, layout)
    if found is None:
        return
    problem = StageProblem(of_live(live), layout.ranks, QOE, most_stages=most)
    assert found.ranks == layout.ranks and len(found.stages) <= most
    assert all(low < high for low, high in pairwise(found.bounds))
    assert problem.quality_of(found) < (1 - GAIN) * problem.quality_of(layout)
    best = exact(problem).layout
    assert problem.quality_of(best) <= problem.quality_of(found) * (1 + 1e-9)


@pytest.mark.parametrize("bound", [400, 700])
def test_bounds_between_buckets_count_as_the_nearest(bound: int) -> None:
    problem = StageProblem(of_live(lengths(4, 60, 60)), 4, QOE)
    near, other = (Layout.of([(each, 2), (None, 2)]) for each in (512, bound))
    assert problem.quality_of(near) == problem.quality_of(other)
