"""The rotation that breaks ties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies import WorkerView
from toolkit.policies.support.rotation import Rotation, seed_of


def test_the_least_recently_chosen_comes_first_and_those_that_left_are_forgotten() -> None:
    rotation = Rotation()
    three = [WorkerView(f"w{index}") for index in range(3)]
    assert [rotation.take(three, [0, 1, 2]) for _ in range(4)] == [0, 1, 2, 0]
    for number in range(200):  # a fleet whose workers come and go
        rotation.take([*three, WorkerView(f"new{number}")], [3])
    assert len(rotation._last) < 100
    assert rotation.take(three, [0, 1, 2]) == 1, "of those that stayed all is known"


def order(seed: int, workers: int) -> list[int]:
    rotation, there = Rotation(seed), [WorkerView(f"w{index}") for index in range(workers)]
    return [rotation.take(there, range(workers)) for _ in range(2 * workers)]


@given(st.integers(), st.integers(1, 50))
def test_the_seed_says_where_it_begins_and_nothing_else(seed: int, workers: int) -> None:
    begins = order(seed, workers)[0]
    assert order(seed, workers) == [(begins + n) % workers for n in range(2 * workers)]
    assert order(0, workers)[0] == 0


@given(st.integers(), st.integers(1, 8), st.integers(1, 30))
def test_routers_over_the_same_workers_never_meet(seed: int, routers: int, spare: int) -> None:
    """Of requests that come to them in turn, those of one turn go to different workers."""
    workers = 2 * routers + spare
    turns = zip(*(order(seed_of(seed, number), workers) for number in range(routers)), strict=True)
    assert all(len(set(at_once)) == routers for at_once in turns)
