"""The stage filter: own stage, the nearest, never nobody where somebody is usable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.narrowing import StageFilter

THREE = Layout.of([(100, 2), (200, 1), (None, 2)])


@pytest.mark.parametrize(
    ("length", "usable", "left"),
    [
        (100, "11111", "11000"),
        (101, "11111", "00100"),
        (999, "11111", "00011"),
        (50, "01111", "01000"),
        (50, "00111", "00100"),
        (150, "11011", "00011"),
        (150, "11000", "11000"),
        (999, "11000", "11000"),
        (50, "00001", "00001"),
        (50, "00000", "00000"),
    ],
)
def test_the_stage_or_the_nearest_that_is_up(length: int, usable: str, left: str) -> None:
    found = StageFilter(THREE).narrow(length, [bit == "1" for bit in usable])
    assert "".join("01"[ok] for ok in found) == left


@given(st.integers(0, 400), st.lists(st.booleans(), min_size=5, max_size=5))
def test_it_only_narrows_and_leaves_somebody(length: int, usable: list[bool]) -> None:
    stages = StageFilter(THREE)
    left = stages.narrow(length, usable)
    assert any(left) == any(usable)
    assert all(was or not ok for was, ok in zip(usable, left, strict=True))
    assert len({stages.stages[g] for g, ok in enumerate(left) if ok}) <= 1


def test_decisions_are_counted_by_the_stage_of_the_length() -> None:
    stages = StageFilter(THREE)
    for length, rank in ((50, 0), (50, 1), (50, 2), (150, 4), (999, 3)):
        stages.note(length, rank)
    assert stages.counters.own == {0: 2, 2: 1}
    assert stages.counters.widened == {0: 1, 1: 1}
    stages.layout = THREE.bounded((10, 200))
    assert stages.narrow(50, [True] * 5) == [False, False, True, False, False]


def test_another_number_of_ranks_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 ranks; the stages have 5"):
        StageFilter(THREE).narrow(1, [True, True])
