"""Verdicts of simulated tables follow from the numbers, whichever way these turn out."""

from math import nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.shared.simulated import told
from tests.benchmarks.shared.verdicts import (
    beside,
    by_branch,
    changed,
    gimbal_reasons,
    larger_part,
    within,
)
from toolkit.bench.stats import paired_ratio

NAMES = ("engine selection", "shortest first")
SERIES = st.lists(st.floats(0.1, 10), min_size=2, max_size=5)


def of(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}


@pytest.mark.parametrize(
    ("ratio", "says"),
    [
        (of(0.8, 0.7, 0.9), "TTFT falls to 0.800 (0.700 to 0.900)"),
        (of(1.2, 1.1, 1.3), "TTFT rises to 1.200 (1.100 to 1.300)"),
        (of(0.9, 0.7, 1.1), "no change of TTFT seen (0.700 to 1.100)"),
        (of(0.9, nan, nan), "TTFT x 0.900 (one seed: no interval)"),
    ],
)
def test_a_change(ratio: dict[str, float], says: str) -> None:
    assert changed("TTFT", ratio) == says


@pytest.mark.parametrize(
    ("ratio", "says"),
    [
        (of(0.8, 0.7, 0.9), "TTFT is not told apart from the paper's 0.822"),
        (of(0.5, 0.4, 0.6), "falls by more than in the paper (0.822)"),
        (of(0.95, 0.9, 0.99), "falls by less than in the paper (0.822)"),
        (of(0.8, nan, nan), "one seed cannot be held against the paper's 0.822"),
    ],
)
def test_beside_the_paper(ratio: dict[str, float], says: str) -> None:
    assert beside("TTFT", ratio, 0.8224).endswith(says)


@given(SERIES.flatmap(lambda one: st.tuples(st.just(one), st.lists(
    st.floats(0.1, 10), min_size=len(one), max_size=len(one)))))  # fmt: skip
def test_the_larger_part_is_the_one_beyond_its_interval(parts: Any) -> None:
    said = larger_part(NAMES, parts)
    ratio = paired_ratio(*parts)
    if ratio.high < 1:
        assert said == "engine selection is a larger part than shortest first"
    elif ratio.low > 1:
        assert said == "shortest first is a larger part than engine selection"
    else:
        assert "not told apart" in said


def reasons(engine: list[float], first: list[float]) -> dict[str, str]:
    base = [1.0] * len(engine)
    others = ("expert_placement", "all", "even", "worst")
    ttft = {"engine_selection": engine, "shortest_first": first} | dict.fromkeys(others, first)
    figures = {
        part: {key: told(paired_ratio(values, base)) for key in ("ttft", "tpot")}
        for part, values in ttft.items()
    }
    paper = {"ttft": 0.8224, "tpot": 0.8666, "second": 0.667}
    return gimbal_reasons(figures, ttft, {"round_robin": 30, "affinity": 10, "kv": 0}, paper)


def test_gimbals_words_turn_with_the_result() -> None:
    few, much = [0.5, 0.51, 0.49], [0.9, 0.91, 0.92]
    assert "engine selection is a larger part" in reasons(few, much)["engine_selection"]
    assert "shortest first is a larger part" in reasons(much, few)["engine_selection"]
    alike = reasons(few, few[::-1])
    assert "not told apart" in alike["shortest_first"]
    assert "TTFT falls by more than in the paper" in alike["all"]
    assert "round_robin 75%, affinity 25%" in alike["engine_selection"]


def test_what_placement_can_do_at_most() -> None:
    paper = {"A's": 0.95, "B's": 0.6}
    said = within(of(0.9, 0.88, 0.92), of(1.3, 1.2, 1.4), paper)
    assert "below 0.900 (the worst one: 1.300)" in said
    assert "A's 0.950 is within" in said
    assert "B's 0.600 is more than placement can do here" in said
    assert said.endswith("unless the order before took 1.500 times as long")
    assert "A's" not in within(of(0.9, nan, nan), of(1.3, nan, nan), paper)


def test_every_part_of_gimbal_has_its_words() -> None:
    found = reasons([0.9, 0.901], [0.95, 0.951])
    assert "affinity between layers saves nothing" in found["expert_placement"]
    assert found["even"].startswith("TTFT falls to")


def test_no_decision_has_no_shares() -> None:
    assert by_branch({}) == ""
