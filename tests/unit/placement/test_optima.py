"""The gap to optima is that of what users get, and no case is dropped."""

import math

import pytest

from tests.benchmarks.shared.optima import Case, gap_keys, instance_traffic, solved
from toolkit.placement import Topology, place
from toolkit.placement.milp import objective

SMALL = (3, 6, 3, 2)


def case(best: float, bound: float, proven: bool, joint: float) -> Case:
    return Case(SMALL, 0, 1.0, best, bound, proven, {"joint": joint, "gimbal": 3 * joint,
                                                     "unguarded": joint})  # fmt: skip


def test_the_gap_is_of_the_placement_that_a_user_gets() -> None:
    found = solved(SMALL, 0, 1.0, limit_s=20)
    traffic = instance_traffic(SMALL, 0)
    for kind in ("joint", "gimbal"):
        placed = place(kind, traffic, Topology(SMALL[2]), 0, 0)
        assert found.objectives[kind] == objective(placed, traffic, 1.0, 1.0)
    assert found.proven and found.gap("joint") > 1  # type: ignore[operator]


def test_a_case_without_a_proof_stays_with_its_bound() -> None:
    keys = gap_keys([case(100, 100, True, 110), case(100, 50, False, 110), case(9, 0, False, 9)])
    assert (keys["milp_proven"], keys["milp_tried"]) == (1, 3)
    assert keys["milp_gap_percent"] == pytest.approx(10)
    assert keys["milp_gap_gimbal_percent"] == pytest.approx(230)
    assert keys["milp_gap_at_most_percent"] == pytest.approx((10 + 120) / 2)
    open_case, unbounded = keys["milp_cases"][1:]
    assert (open_case["bound"], open_case["proven"]) == (50, False)
    assert open_case["gap_at_most_percent"]["joint"] == pytest.approx(120)
    assert unbounded["gap_at_most_percent"]["joint"] is None


def test_nothing_proven_is_no_gap() -> None:
    keys = gap_keys([case(100, 50, False, 110)])
    assert math.isnan(keys["milp_gap_percent"]) and math.isnan(keys["milp_gap_worst_percent"])
    assert len(keys["milp_cases"]) == 1
