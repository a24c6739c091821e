"""Gimbal's Algorithm 3, line by line."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.kernels import examples
from tests.unit.placement.cases import Case, cases
from toolkit.placement import Topology, Traffic, check_placement, gimbal, place
from toolkit.placement.gimbal import gimbal_knobs
from toolkit.placement.online import RelocationSettings


def gpu_of(placement: Any) -> list[int]:
    """GPU of each expert in layer 0."""
    return placement.held()[0].argmax(axis=1).tolist()


def linked(one: int, other: int, weight: float = 100.0) -> np.ndarray:
    pairs = np.ones((1, 8, 8))
    pairs[0, one, other] = weight
    return pairs


LOAD = np.array([[8.0, 7, 6, 5, 4, 3, 2, 1]] * 2)


@pytest.mark.parametrize("anchor", [0, 1])
def test_linked_experts_go_to_the_anchor_and_the_rest_to_the_least_loaded(anchor: int) -> None:
    placement = gimbal(Traffic(LOAD, linked(6, 3)), Topology(2), anchor=anchor)
    # Anchored 3 and 6 (load 14); then 0 -> other (16), 1 -> anchor (28), 2 -> other (28),
    # 4 -> GPU 0 (tie), 5 -> the lighter one, 7 -> the last slot.
    gpu = gpu_of(placement)
    assert gpu[3] == gpu[6] == anchor
    assert [gpu[0], gpu[1], gpu[2]] == [1 - anchor, anchor, 1 - anchor]
    assert placement.slots == 4


@pytest.mark.parametrize("name", ["gimbal@1:0.5", "gimbal@1", "gimbal", "gimbal@:0.5"])
def test_anchor_and_threshold_can_be_said_with_the_name(name: str) -> None:
    traffic, topology = Traffic(LOAD, linked(6, 3)), Topology(2)
    anchor, sigmas = gimbal_knobs(name.partition("@")[2])
    assert anchor == (1 if "1" in name else 0) and sigmas == (0.5 if "0.5" in name else 3.0)
    wanted = gimbal(traffic, topology, anchor=anchor, sigmas=sigmas)
    assert gpu_of(place(name, traffic, topology)) == gpu_of(wanted)
    assert check_placement(name) == "gimbal"
    settings = RelocationSettings(kind=f"gimbal@paper:{anchor}:{sigmas}")
    assert settings.paper and settings.gimbal_knobs == (anchor, sigmas)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("gimbal@x", "no ANCHOR:SIGMAS"), ("gimbal@-1", "no ANCHOR:SIGMAS"),
        ("gimbal@0:nan", "no ANCHOR:SIGMAS"), ("gimbal@0:-1", "no ANCHOR:SIGMAS"),
        ("joint@1", "unknown placement"), ("nobody", "unknown placement"),
        ("gimbal@7", "anchor GPU 7 is not one of 0 to 1"),
    ],
)  # fmt: skip
def test_what_is_no_anchor_is_said(name: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        place(name, Traffic(LOAD, linked(6, 3)), Topology(2))


@pytest.mark.parametrize("kind", ["gimbal@paper:x", "gimbal@paper:0:-1", "best", "eplb@2"])
def test_nothing_is_moved_by_what_is_no_placement(kind: str) -> None:
    with pytest.raises(ValueError, match=r"no ANCHOR:SIGMAS|unknown placement"):
        RelocationSettings(kind=kind)


def test_both_directions_of_a_pair_count() -> None:
    both = (linked(6, 3, 60.0) + linked(3, 6, 60.0)) / 2
    one = linked(1, 0, 50.0)
    # 61 in both directions together stands out, 51 in one does not; alone 30.5 would not either.
    placement = gimbal(Traffic(LOAD, np.maximum(both, one)), Topology(4), sigmas=3.5)
    gpu = gpu_of(placement)
    assert gpu[3] == gpu[6] == 0


def test_no_outstanding_pair_leaves_the_greedy_balance() -> None:
    placement = gimbal(Traffic(LOAD, np.ones((1, 8, 8))), Topology(2))
    assert gpu_of(placement) == [0, 1, 1, 0, 0, 1, 1, 0]


def test_anchored_experts_always_fit() -> None:
    pairs = np.ones((1, 8, 8))
    pairs[0, 0, 1:] = 50  # seven experts linked to one, two slots
    placement = gimbal(Traffic(LOAD, pairs), Topology(4), sigmas=0.5)
    gpu = gpu_of(placement)
    assert gpu.count(0) == 2
    assert gpu[0] == 0


def test_the_anchor_must_exist() -> None:
    with pytest.raises(ValueError, match="anchor GPU 2 is not one of 0 to 1"):
        gimbal(Traffic(LOAD, linked(1, 2)), Topology(2), anchor=2)


@settings(max_examples=examples(40), deadline=None)
@given(cases(replicas=False))
def test_valid_and_the_same_in_every_layer(case: Case) -> None:
    placement = gimbal(case.traffic, case.topology)
    assert (placement.replicas() == 1).all()
    assert (placement.physical_to_logical == placement.physical_to_logical[0]).all()
