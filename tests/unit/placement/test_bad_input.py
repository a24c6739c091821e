"""Everything that a user can get wrong: what is said, and that it says how to mend it."""

import numpy as np
import pytest

from tests.unit.placement.cases import counted
from toolkit.placement import (
    PLACEMENTS,
    Topology,
    Traffic,
    Weights,
    count,
    judge,
    linear,
    place,
)

LOAD = np.ones((2, 4))
PAIRS = np.ones((1, 4, 4))


@pytest.mark.parametrize(
    ("gpus", "per_node", "message"),
    [
        (0, 0, "EP size 0"),
        (8, 3, "do not divide into nodes of 3"),
        (4, -1, "-1 GPUs a node"),
        (4, 8, "do not divide into nodes of 8"),
    ],
)
def test_topologies(gpus: int, per_node: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Topology(gpus, per_node)


@pytest.mark.parametrize(
    ("experts", "gpus", "redundant", "message"),
    [
        (256, 64, 32, "use 0 or 64 redundant"),
        (256, 48, 0, "use 32 redundant experts, or an EP size that divides 256"),
        (256, 64, 96, "use 64 or 128 redundant"),
        (256, 64, -64, "give 0 or more"),
        (4, 2, 6, "use at most 4"),
        (4, 1, 1, "use at most 0"),
    ],
)
def test_sizes_that_do_not_fit(experts: int, gpus: int, redundant: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Topology(gpus).slots(experts, redundant)


@pytest.mark.parametrize("name", sorted(PLACEMENTS))
def test_every_placement_refuses_sizes_that_do_not_divide(name: str) -> None:
    traffic = counted(2, 6, 2, 0)
    with pytest.raises(ValueError, match=r"do not divide|no redundant"):
        place(name, traffic, Topology(4), 1)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'jont'.*joint"):
        place("jont", Traffic(LOAD, PAIRS), Topology(2))


@pytest.mark.parametrize(
    ("load", "pairs", "message"),
    [
        (np.ones((0, 4)), PAIRS, "dense model"),
        (np.ones((2, 1)), np.ones((1, 1, 1)), "dense model"),
        (np.ones(4), PAIRS, "load has 1 dimensions"),
        (np.where(np.eye(2, 4), np.nan, 1), PAIRS, r"load\[0, 0\] is nan"),
        (np.where(np.eye(2, 4), np.inf, 1), PAIRS, "must be finite"),
        (LOAD - np.eye(2, 4) * 3, PAIRS, r"load\[0, 0\] is -2.0; counts cannot be negative"),
        (LOAD * [[1], [0]], PAIRS, "no expert ever fires at MoE layer 1: calibrate"),
        (LOAD, np.ones((2, 4, 4)), r"need \(1, 4, 4\)"),
        (LOAD, np.ones((1, 4, 3)), r"need \(1, 4, 4\)"),
        (LOAD, -PAIRS, "cannot be negative"),
    ],
)
def test_counts(load: np.ndarray, pairs: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Traffic(load, pairs)


def test_windows_and_groups() -> None:
    with pytest.raises(ValueError, match=r"2 or more, 2, 4"):
        Traffic(LOAD, PAIRS, np.ones((1, 2, 4)))
    with pytest.raises(ValueError, match="3 groups"):
        Traffic(LOAD, PAIRS, groups=3)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.zeros((3, 2, 2)), "integers"),
        (np.zeros((3, 2), int), r"tokens, layers"),
        (np.zeros((0, 2, 2), int), "nothing was routed"),
        (np.full((3, 2, 2), 4), "from 4 to 4"),
        (np.full((3, 2, 2), -1), "from -1"),
        (np.zeros((3, 0, 2), int), "dense model"),
    ],
)
def test_ids(ids: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        count(ids, 4)


@pytest.mark.parametrize(
    "wrong",
    [{"gpu": 5}, {"gpu": -1}, {"node": 0, "gpu": 0}, {"slack": -0.1}, {"drift": -1},
     {"drift": float("nan")}],
)  # fmt: skip
def test_weights(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"give|cannot"):
        Weights(**wrong)


def test_judging_against_something_else() -> None:
    placement = linear(2, 4, Topology(2))
    with pytest.raises(ValueError, match="3 of 4"):
        judge(placement, Topology(2), Traffic(np.ones((3, 4)), np.ones((2, 4, 4))))
    with pytest.raises(ValueError, match="topology has 4"):
        judge(placement, Topology(4), Traffic(LOAD, PAIRS))
    with pytest.raises(ValueError, match="known: random, row, nearest"):
        judge(placement, Topology(2), Traffic(LOAD, PAIRS), dispatch="static")  # type: ignore[arg-type]
