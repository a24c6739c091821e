"""Ranges and ranks of stages, and what is wrong with a layout in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies.stages.layout import Layout, LengthStage

THREE = Layout.of([(512, 2), (2048, 1), (None, 3)])


@pytest.mark.parametrize(
    ("length", "stage"), [(0, 0), (1, 0), (512, 0), (513, 1), (2048, 1), (2049, 2), (10**6, 2)]
)
def test_a_length_has_the_first_stage_whose_bound_holds_it(length: int, stage: int) -> None:
    assert THREE.stage_of(length) == stage


def test_ranks_stand_in_the_order_of_the_stages() -> None:
    assert [THREE.stage_of_rank(i) for i in range(THREE.ranks)] == [0, 0, 1, 2, 2, 2]
    for index in (-1, 6):
        with pytest.raises(IndexError, match="the stages have 6"):
            THREE.stage_of_rank(index)


def test_ranges_are_shown_from_the_first_length_to_the_last() -> None:
    assert [THREE.shown(i) for i in range(3)] == ["1-512", "513-2048", "2049-"]
    assert Layout.of([(None, 2)]).shown(0) == "1-"


def test_other_bounds_leave_the_ranks_where_they_are() -> None:
    other = THREE.bounded((100, 200))
    assert other.bounds == (100, 200)
    assert [stage.replicas for stage in other.stages] == [2, 1, 3]
    with pytest.raises(ValueError, match="one bound less, not 1"):
        THREE.bounded((100,))
    with pytest.raises(ValueError, match="upto must rise"):
        THREE.bounded((200, 200))


def test_the_nearest_stages_come_first_and_of_two_the_later() -> None:
    assert THREE.nearest(0) == [0, 1, 2]
    assert THREE.nearest(1) == [1, 2, 0]


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([], "at least one stage"),
        ([(512, 1)], "the last stage ends at 512"),
        ([(None, 1), (None, 1)], "stage 0 has no upto"),
        ([(512, 1), (512, 1), (None, 1)], "stage 1 ends at 512, not above the 512"),
        ([(0, 1), (None, 1)], "upto 0 serves nobody"),
        ([(5, 0), (None, 1)], "0 replicas serves nobody"),
    ],
)
def test_a_layout_that_cannot_be_says_why(stages: list[tuple[int | None, int]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Layout.of(stages)


@given(
    st.sets(st.integers(1, 1 << 20), max_size=6),
    st.lists(st.integers(1, 5), min_size=7, max_size=7),
    st.integers(0, 1 << 21),
)
def test_a_length_is_in_the_range_of_its_stage(
    bounds: set[int], replicas: list[int], length: int
) -> None:
    uptos = [*sorted(bounds), None]
    layout = Layout(tuple(LengthStage(u, r) for u, r in zip(uptos, replicas, strict=False)))
    low, high = layout.range_of(layout.stage_of(length))
    assert low <= max(1, length) and (high is None or length <= high)
    counted = [layout.stage_of_rank(i) for i in range(layout.ranks)]
    assert [counted.count(i) for i in range(len(uptos))] == replicas[: len(uptos)]
