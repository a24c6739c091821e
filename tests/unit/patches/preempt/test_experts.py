"""Looks between the experts of a layer: how many, and that they change nothing."""

from collections.abc import Iterator

import pytest

from patches.preempt import boundary, experts
from patches.preempt.boundary_state import BoundaryState
from patches.scheduler_state import current


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    found: list[int] = []
    monkeypatch.setattr(boundary, "look", lambda scheduler: found.append(1))
    yield found
    current().get(BoundaryState).experts = 0


def layer(count: int) -> list[int]:
    """A layer that calls its activation once for each expert."""

    def original(_layer: object) -> list[int]:
        return [experts._expert(lambda _act, x: 2 * x, None, n) for n in range(count)]

    return experts._layer(original, object())


@pytest.mark.parametrize(("every", "expected"), [(0, 0), (1, 7), (3, 2), (8, 0)])
def test_one_look_after_so_many_experts(looks: list[int], every: int, expected: int) -> None:
    current().get(BoundaryState).experts = every
    assert layer(7) == [0, 2, 4, 6, 8, 10, 12]
    assert len(looks) == expected


def test_a_nested_layer_counts_its_own_and_a_dense_one_none(
    looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    current().get(BoundaryState).experts = 2

    def nested(_scheduler: object) -> None:
        looks.append(1)
        if len(looks) == 1:
            layer(1)

    monkeypatch.setattr(boundary, "look", nested)
    layer(4)
    assert len(looks) == 2
    assert experts._expert(lambda _act, x: x, None, 5) == 5 and len(looks) == 2
    assert current().get(BoundaryState).experts_left == []
