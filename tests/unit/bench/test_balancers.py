"""Ours beside the best balancer of each column; what the simulator's bias is read from."""

import json
import math
from pathlib import Path

import pytest

from tests.benchmarks.shared.balancers import (
    BALANCERS,
    COLUMNS,
    POOLED,
    PUBLISHED,
    all_against,
    best,
    is_balancer,
    times,
)
from tests.benchmarks.shared.bias import bias
from toolkit.bench.stats import Ratio
from toolkit.policies import check_policy


def rounds(**spreads: list[float]) -> dict[str, list[dict[str, float]]]:
    """Arms by name, `pooled_` for `pooled@`; 10 tokens/s for each token of spread."""
    return {
        name.replace("pooled_", "pooled@"): [{"kv": x, "tokens": 10 * x} for x in values]
        for name, values in spreads.items()
    }


def test_every_arm_of_a_column_is_a_policy() -> None:
    for name in (*BALANCERS, *POOLED, *PUBLISHED):
        check_policy(name, "decode")
    assert not any(is_balancer(name) for name in PUBLISHED)


def test_the_best_is_found_on_the_rounds_that_are_compared() -> None:
    made = rounds(
        random=[9, 1], shortest_queue=[4, 4], pooled_random=[2, 2], level=[1, 2], other=[1, 1]
    )
    assert best(made, "unpooled", "kv") == "shortest_queue"
    assert best(made, "unpooled", "kv", most=True) == "random"
    assert best(made, "published", "kv") is None
    found = all_against(made, "kv", ["tokens"])
    assert set(found) == {"level", "other"}
    assert {column: one.best for column, one in found["level"].items()} == {
        "unpooled": "shortest_queue",
        "pooled": "pooled@random",
    }
    ratio = found["level"]["unpooled"].ratios["kv"]
    assert ratio.value == pytest.approx(math.sqrt(1 / 4 * 2 / 4)) and ratio.pairs == 2
    assert found["level"]["unpooled"].keys()["best"] == "shortest_queue"


def test_a_published_rule_is_compared_and_is_what_ours_is_compared_with() -> None:
    made = {"br0@paper": [{"kv": 2.0}], "shortest_queue": [{"kv": 4.0}], "level": [{"kv": 1.0}]}
    found = all_against(made, "kv", [])
    assert set(found["br0@paper"]) == {"unpooled"}
    assert found["level"]["published"].best == "br0@paper"
    assert set(COLUMNS) == {"unpooled", "pooled", "published"}


def test_a_figure_that_is_no_positive_number_has_no_ratio() -> None:
    made = {"shortest_queue": [{"kv": 0.0}, {"kv": 2.0}], "level": [{"kv": 1.0}, {"kv": 1.0}]}
    ratio = all_against(made, "kv", [])["level"]["unpooled"].ratios["kv"]
    assert math.isnan(ratio.value) and times(ratio) == "-"


def test_times_below_is_the_inverse_with_its_ends() -> None:
    assert times(Ratio(0.5, 0.4, 0.8, 3)) == "2.00 (1.25 to 2.50)"
    assert times(Ratio(0.5, math.nan, math.nan, 1)) == "2.00"


def test_the_bias_is_the_last_recorded_one_of_pd_workers_in_full_loops(tmp_path: Path) -> None:
    def line(command: str, **ratios: float) -> str:
        pairs = {name.replace("__", " "): {"ratio": {"kv": x}} for name, x in ratios.items()}
        return json.dumps({"command": command, "figures": {"pairs": pairs}})

    assert bias("kv", tmp_path) == {}
    lines = [
        line("tests.benchmarks.validation", mix__level=9.0),
        line("tests.benchmarks.validation", mix__level=0.5, chat__level=2.0, open__level=7.0),
        line("tests.benchmarks.validation --set plain", mix__level=3.0),
    ]
    (tmp_path / "validation.jsonl").write_text("\n".join(lines))
    assert bias("kv", tmp_path) == {"level": pytest.approx(1.0)}
