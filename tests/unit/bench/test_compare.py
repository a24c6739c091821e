"""Comparisons: arms with parameters, ratios of what happens inside the workers, the tables."""

import asyncio
import io
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from toolkit.bench.client import Sample
from toolkit.bench.compare import Arm, Comparison, compare
from toolkit.bench.errors import BenchError
from toolkit.bench.metrics import Slo, summarise
from toolkit.bench.ratios import arms_table, ratio_tables
from toolkit.bench.runner import BenchLoad
from toolkit.bench.session import Settings, _rounds
from toolkit.bench.source import Source
from toolkit.bench.target import Target
from toolkit.bench.workload import Item, Workload


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("eldr", {"decode": "eldr"}),
        ("eldr@0.05", {"decode": "eldr@0.05"}),
        ("label_oracle", {"decode": "label_oracle"}),
        ("late:eldr@1", {"dispatch": "late", "decode": "eldr@1"}),
        (
            "concurrent:round_robin+eldr@0.2",
            {"dispatch": "concurrent", "prefill": "round_robin", "decode": "eldr@0.2"},
        ),
        ("composed@eldr@0.2+brh", {"decode": "composed@eldr@0.2+brh"}),
        (
            "late:gimbal@0.9:0.1+composed@eldr+br0+user",
            {
                "dispatch": "late",
                "prefill": "gimbal@0.9:0.1",
                "decode": "composed@eldr+br0+user",
            },
        ),
        ("random+gimbal@0.8:0.2", {"prefill": "random", "decode": "gimbal@0.8:0.2"}),
    ],
)
def test_an_arm_may_carry_a_parameter(text: str, body: dict[str, str]) -> None:
    assert Arm.parse(text) == Arm(text, body)


@pytest.mark.parametrize("text", ["", "late:", "soon:eldr", "+eldr", "late:a+"])
def test_a_wrong_arm_is_refused(text: str) -> None:
    with pytest.raises(BenchError):
        Arm.parse(text)


def test_the_oracle_needs_labels() -> None:
    arms = [Arm.parse("eldr"), Arm.parse("label_oracle")]

    async def main() -> Comparison:
        target = Target("http://127.0.0.1:9", "m", None, None)
        rounds = [Workload("w", (Item("a", 1),))]
        return await compare(None, target, rounds, BenchLoad(), arms, 0)  # type: ignore[arg-type]

    with pytest.raises(BenchError, match="--label domain, language, cell or class"):
        asyncio.run(main())


def test_rounds_that_cannot_be_filled_are_an_error_in_plain_words() -> None:
    settings = Settings(Source(), BenchLoad(), Slo(), rounds=3)
    with pytest.raises(BenchError, match="2 requests cannot fill 3 rounds; ask for more"):
        _rounds(Workload("w", (Item("a", 1), Item("b", 1))), settings)


def metrics(factor: float, inside: bool = True, clock: str = "cpu") -> dict[str, Any]:
    sample = Sample(
        success=True, ttft=0.1 * factor, itl=[0.02 * factor], latency=0.12 * factor, output_len=2
    )
    found = summarise([sample], 1.0)
    if inside:
        found |= {"worker_clock": clock, "distinct_experts": 10.0 * factor, "mean_batch": 8.0}
        for name in ("worker_tpot", "worker_tpot_wall", "step", "step_wall"):
            for stat in ("mean", "median", "p90", "p99"):
                found[f"{stat}_{name}_ms"] = 5.0 * factor
    return found


def comparison(inside: bool = True, clock: str = "cpu") -> Comparison:
    arms = [Arm.parse(text) for text in ("eldr@0.05", "round_robin", "label_oracle")]
    rounds = [
        [metrics(factor * noise, inside, clock) for noise in (1.0, 1.1, 1.2)]
        for factor in (0.8, 1.0, 0.5)
    ]
    found = Comparison(arms, rounds)
    found.conclude()
    return found


def text_of(*tables: Table) -> str:
    console = Console(width=140, record=True, file=io.StringIO())
    for table in tables:
        console.print(table)
    return console.export_text()


def test_distinct_experts_and_the_workers_tpot_are_compared() -> None:
    ratios = comparison().ratios["eldr@0.05 / round_robin"]
    assert ratios["distinct_experts"].value == pytest.approx(0.8)
    assert ratios["p99_worker_tpot_ms"].value == pytest.approx(0.8)
    assert ratios["mean_batch"].value == pytest.approx(1)
    assert comparison().as_json()["ratios"]["eldr@0.05 / label_oracle"]["median_step_ms"][
        "value"
    ] == pytest.approx(1.6)


def test_a_round_without_the_workers_numbers_has_no_ratio_of_them() -> None:
    found = comparison()
    del found.rounds[1][2]["distinct_experts"]
    found.conclude()
    assert "distinct_experts" not in found.ratios["eldr@0.05 / round_robin"]
    assert "distinct_experts" in found.ratios["eldr@0.05 / label_oracle"]
    assert found.median(1, "distinct_experts") is None
    assert found.median(0, "distinct_experts") == pytest.approx(8.8)


def test_one_table_has_every_arm_and_what_the_first_is_to_it() -> None:
    text = text_of(arms_table(comparison()))
    for words in ("eldr@0.05", "round_robin", "label_oracle", "distinct experts", "8.8"):
        assert words in text
    assert "TPOT in the worker, own core p99" in text
    assert "0.800 (0.800-0.800) *" in text
    assert "1.600 (1.600-1.600) *" in text


@pytest.mark.parametrize("clock", ["cpu", "wall"])
def test_a_pair_has_rows_for_what_was_measured(clock: str) -> None:
    text = text_of(*ratio_tables(comparison(clock=clock)))
    assert ("own core" in text) == (clock == "cpu")
    assert "distinct experts" in text
    plain = text_of(*ratio_tables(comparison(inside=False)), arms_table(comparison(inside=False)))
    assert "distinct" not in plain and "worker" not in plain
    assert "TTFT" in plain
