"""What a comparison showed, in words that follow from its intervals.

A ratio's interval comes from the paired rounds (`stats.paired_ratio`): one value a round, never one
a request, since requests of a round share its queues and its machine. Where the interval lies on
one side of 1 the difference is a gain or a loss; where it holds 1 none was seen, and the interval
says how large one could still be.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from toolkit.bench.compare import Comparison
from toolkit.bench.stats import Ratio

Word = Literal["gain", "loss", "no difference seen", "no interval"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a round, and how to speak of it: `{percent} {less} {what}`."""

    key: str
    title: str
    what: str
    less: str = "less"
    lower_is_better: bool = True


_EXPERTS = "distinct experts a decode step"
METRICS = (
    Metric("distinct_experts", "distinct experts a step", _EXPERTS, "fewer"),
    Metric("median_worker_tpot_ms", "TPOT in the worker p50, ms", "time a token in the workers"),
    Metric(
        "p99_worker_tpot_ms", "TPOT in the worker p99, ms", "time a token in the workers at p99"
    ),
    Metric("median_ttft_ms", "TTFT p50, ms", "time to the first token"),
    Metric("p99_ttft_ms", "TTFT p99, ms", "time to the first token at p99"),
    Metric(
        "median_later_turn_ttft_ms",
        "TTFT of later turns p50, ms",
        "time to the first token of later turns",
    ),
    Metric("median_tpot_ms", "TPOT p50, ms", "time a token at the client"),
    Metric("p99_tpot_ms", "TPOT p99, ms", "time a token at the client at p99"),
    Metric("median_e2e_latency_ms", "whole answer p50, ms", "time for a whole answer"),
    Metric("output_throughput", "tokens a second", "tokens a second", "fewer", False),
    Metric("kv_spread", "KV max - min over ranks", "difference in KV tokens between the ranks"),
    Metric("barrier_share", "share at the barrier", "waiting at the barrier"),
)
"""Each has one direction that is better, and one value a round."""
SHOWN = (
    "distinct_experts",
    "median_worker_tpot_ms",
    "median_ttft_ms",
    "median_e2e_latency_ms",
    "output_throughput",
)
"""For a screen; a page has all."""


@dataclass(frozen=True, slots=True)
class BenchFinding:
    """What `ours` is to `other` in one metric; medians over the rounds, and the paired ratio."""

    metric: Metric
    ours: float
    other: float
    ratio: Ratio

    @property
    def word(self) -> Word:
        if math.isnan(self.ratio.low):
            return "no interval"
        if self.ratio.low <= 1 <= self.ratio.high:
            return "no difference seen"
        return "gain" if (self.ratio.high < 1) == self.metric.lower_is_better else "loss"

    @property
    def change(self) -> str:
        """Signed percent of the other one, with its interval."""
        value = _signed(self.ratio.value)
        if self.word == "no interval":
            return f"{value} %"
        return f"{value} % ({_signed(self.ratio.low)} to {_signed(self.ratio.high)})"

    @property
    def sentence(self) -> str:
        """In plain words, with the 95 % interval."""
        metric, ratio = self.metric, self.ratio
        sides = [self._side(value) for value in (ratio.low, ratio.high)]
        if self.word == "no interval":
            return f"no interval, one round: {self._side(ratio.value)} {metric.what}"
        if self.word == "no difference seen":
            return f"no difference seen: {metric.what} ({sides[0]} to {sides[1]})"
        low, high = sorted((abs(ratio.low - 1), abs(ratio.high - 1)))
        text = f"{self.word}: {self._side(ratio.value)} {metric.what}"
        return f"{text} ({_percent(low)} to {_percent(high)} %)"

    def _side(self, ratio: float) -> str:
        if abs(ratio - 1) < 0.0005:
            return "0 %"
        return f"{_percent(abs(ratio - 1))} % {self.metric.less if ratio < 1 else 'more'}"


def findings(comparison: Comparison, other: int = 1) -> list[BenchFinding]:
    """The first arm against arm number `other`, in every metric that both have."""
    pair = f"{comparison.arms[0].text} / {comparison.arms[other].text}"
    ratios = comparison.ratios.get(pair, {})
    found = []
    for metric in METRICS:
        ours, theirs = (comparison.median(arm, metric.key) for arm in (0, other))
        if metric.key in ratios and ours is not None and theirs is not None:
            found.append(BenchFinding(metric, ours, theirs, ratios[metric.key]))
    return found


def shown(found: Sequence[BenchFinding]) -> list[BenchFinding]:
    """The few of them that a screen has room for."""
    return [each for each in found if each.metric.key in SHOWN]


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if abs(share) >= 0.0995 else f"{100 * share:.1f}"


def _signed(ratio: float) -> str:
    sign = "+" if ratio > 1 else "-" if ratio < 1 else ""
    return sign + _percent(abs(ratio - 1))
