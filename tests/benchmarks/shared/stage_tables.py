"""What `stages` prints: its tables, and its figures beside the published ones."""

from collections.abc import Mapping
from math import isnan
from typing import Any

PUBLISHED = {
    "ttft": ("mean TTFT", 0.22, 0.33),
    "tpot": ("mean TPOT", 0.36, 0.70),
    "throughput": ("tokens a second", 1.99, 1.99),
    "tail": ("tail", 0.31, 0.31),
    "cv": ("CV of output tokens", 0.60, 0.60),
}
"""Ours / round robin under heavy load, the best and the least of CascadeInfer's paper (6.2, 6.3,
6.5, abstract). The tail is its best; the CV is against its own stages without load balancing inside
(against round robin inside them: 0.53)."""
CLAIMS = """published under heavy load, against vLLM behind round robin:
  mean TTFT -67 to -78 %, mean TPOT -30 to -64 %, throughput 1.99 times, tail up to -69 %,
  CV of output tokens over a stage's instances -40 %"""
SHOWN = (
    ("ttft", "mean TTFT, s", 1, 3),
    ("tpot", "mean TPOT, ms", 1e3, 2),
    ("throughput", "tokens/s", 1, 0),
    ("tail", "p95 normalized, ms/token", 1e3, 1),
    ("tpot_p95", "p95 TPOT, ms", 1e3, 1),
    ("e2e_p99", "p99 whole answer, s", 1, 1),
    ("cv", "CV of output tokens", 1, 3),
    ("moves", "moves", 1, 0),
)


def show(mode: str, penalty: float, found: Mapping[str, Any]) -> None:
    """Figures by rate, then ratios at the heavy rates, with the penalty and without."""
    for title, part in ((f"penalty {penalty:g}", found), ("without penalty", found["none"])):
        rates = part["rates"]
        print(f"\n{mode}, {title}; heavy: {', '.join(f'{x:g}' for x in part['heavy'])} requests/s")
        for key, words, by, digits in SHOWN:
            print(f"{words:26}" + "".join(f"{rate:>10g}" for rate in rates) + "  requests/s")
            for arm, figures in part["arms"].items():
                cells = "".join(f"{value * by:10.{digits}f}" for value in figures[key])
                print(f"  {arm:24}{cells}")
        for arm, others in part["ratios"].items():
            for rate, shown in part["layouts"][arm].items():
                print(f"  {arm} at {rate}: {shown}")
            for other, ratios in others.items():
                cells = ", ".join(
                    f"{key} {_shown(ratio)}{_published(key) if other == 'rr' else ''}"
                    for key, ratio in ratios.items()
                )
                print(f"  {arm} / {other}: {cells}")


def verdicts(ratios: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """By figure: whether at least half of the least published gain against round robin is seen."""
    return {key: _verdict(key, ratios[key]) for key in PUBLISHED}


def _verdict(key: str, ratio: Mapping[str, float]) -> str:
    what, _, least = PUBLISHED[key]
    half = 1 + (least - 1) / 2
    value, low, high = ratio["value"], ratio["low"], ratio["high"]
    better = value <= half if half < 1 else value >= half
    sure = not isnan(low) and (high <= half if half < 1 else low >= half)
    unsure = "" if sure or not better else ", the interval reaches past it"
    said = "at least half of the published gain" if better else "less than half of it"
    return f"{what}: {_shown(ratio)}, published {least:g}; half is {half:.3f}: {said}{unsure}"


def _shown(ratio: Mapping[str, float]) -> str:
    if isnan(ratio["low"]):
        return f"{ratio['value']:.3f}"
    return f"{ratio['value']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"


def _published(key: str) -> str:
    _, best, least = PUBLISHED[key]
    return f" [published {best:g}{f' to {least:g}' if least != best else ''}]"
