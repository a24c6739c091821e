"""The rotation that breaks ties."""

from __future__ import annotations

from toolkit.policies import WorkerView
from toolkit.policies.support.rotation import Rotation


def test_the_least_recently_chosen_comes_first_and_those_that_left_are_forgotten() -> None:
    rotation = Rotation()
    three = [WorkerView(f"w{index}") for index in range(3)]
    assert [rotation.take(three, [0, 1, 2]) for _ in range(4)] == [0, 1, 2, 0]
    for number in range(200):  # a fleet whose workers come and go
        rotation.take([*three, WorkerView(f"new{number}")], [3])
    assert len(rotation._last) < 100
    assert rotation.take(three, [0, 1, 2]) == 1, "of those that stayed all is known"
