"""What policies do to each class of requests: ratios over the paired rounds of a comparison.

A class's figures in a round are in its metrics under CLASSES, as `groups.by_class` gives them.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from toolkit.bench.stats import Ratio, paired_ratio

CLASSES = "classes"
FIGURES = ("mean_ttft_ms", "mean_e2e_latency_ms", "slo_attainment")
"""What is compared of each class; `mean_e2e_latency_ms` of best-effort ones is their slowdown. Not
throughput: all policies play the same requests, so a class's ratio is that of the whole run."""
Rounds = Sequence[dict[str, Any]]
"""The metrics of each round of one arm."""


def names(*arms: Rounds) -> list[str]:
    """The classes that any round of any arm has."""
    return sorted({name for rounds in arms for metrics in rounds for name in _of(metrics)})


def values(rounds: Rounds, name: str, key: str) -> list[float]:
    """A figure of a class in each round that has it."""
    found = [_of(metrics).get(name, {}).get(key) for metrics in rounds]
    return [value for value in found if value is not None]


def median(rounds: Rounds, name: str, key: str) -> float | None:
    """Over the rounds; None where one has no such request, or not this figure."""
    found = values(rounds, name, key)
    return statistics.median(found) if found and len(found) == len(rounds) else None


def class_ratios(ours: Rounds, other: Rounds) -> dict[str, dict[str, Ratio]]:
    """{"best_effort": {"mean_ttft_ms": ours / other, ...}, ...} with intervals over the rounds.

    A figure has a ratio where every round of both has it above 0: `doubts` says which have none.
    """
    found: dict[str, dict[str, Ratio]] = {}
    for name in names(ours, other):
        found[name] = {}
        for key in FIGURES:
            pair = values(ours, name, key), values(other, name, key)
            if [len(each) for each in pair] == [len(ours)] * 2 and min(map(min, pair)) > 0:
                found[name][key] = paired_ratio(*pair)
    return found


def doubts(arms: Sequence[Rounds]) -> list[str]:
    """Which classes lack a ratio between arms, why, and how to get it."""
    said = []
    for name in names(*arms):
        word, first = name or "none", arms[0]
        missing = sum(name not in _of(metrics) for metrics in first)
        if missing:
            said.append(
                f"class {word}: {missing} of {len(first)} rounds have no such request, so it has "
                "no ratios; ask for more --num-requests, or fewer --rounds"
            )
            continue
        kept = [value for arm in arms for value in values(arm, name, "slo_attainment")]
        if kept and min(kept) <= 0:
            said.append(
                f"class {word}: in some round no request kept to the SLO, so that share has no "
                "ratio; ask for more --num-requests, or a wider SLO"
            )
    return said


def _of(metrics: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = metrics.get(CLASSES) or {}
    return found
