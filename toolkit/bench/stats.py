"""Ratios of paired rounds, with confidence intervals."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio and its 95 % confidence interval. `low` and `high` are NaN with one pair only."""

    value: float
    low: float
    high: float
    pairs: int

    def keys(self, name: str) -> dict[str, float]:
        """`name`, `name_low`, `name_high`, as the project's benchmarks report ratios."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def paired_ratio(ours: Sequence[float], other: Sequence[float]) -> Ratio:
    """Geometric mean of ours/other over pairs, with Student's interval on the log ratios.

    Rounds are few (four to twenty), where a bootstrap interval is too narrow (its spread is
    sqrt((n-1)/n) of the right one and it knows no heavy tails): Student's t is honest there. The
    logarithm makes A/B and B/A say the same. Pairs are taken as independent of each other.

    Raises ValueError for series that do not pair up or hold anything but positive numbers.
    """
    if len(ours) != len(other) or not ours:
        raise ValueError(f"{len(ours)} and {len(other)} values do not make pairs")
    if min(*ours, *other) <= 0 or not all(map(math.isfinite, (*ours, *other))):
        raise ValueError("ratios need positive, finite values")
    logs = [math.log(mine / theirs) for mine, theirs in zip(ours, other, strict=True)]
    count = len(logs)
    mean = math.fsum(logs) / count
    if count == 1:
        return Ratio(math.exp(mean), math.nan, math.nan, 1)
    half = _half(logs, mean)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), count)


def mean_interval(values: Sequence[float]) -> Ratio:
    """Arithmetic mean with Student's 95 % interval, as a `Ratio` to 1. ValueError: no value."""
    if not values:
        raise ValueError("no values have no mean")
    count, mean = len(values), math.fsum(values) / len(values)
    if count == 1:
        return Ratio(mean, math.nan, math.nan, 1)
    half = _half(values, mean)
    return Ratio(mean, mean - half, mean + half, count)


def _half(values: Sequence[float], mean: float) -> float:
    from scipy.special import stdtrit

    count = len(values)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return float(stdtrit(count - 1, 0.975)) * spread / math.sqrt(count)


def orders(arms: int, rounds: int, seed: int) -> list[tuple[int, ...]]:
    """In which order each round runs its arms: a shuffle and then its mirror image (ABBA).

    The mirror cancels a linear drift of the machine over a pair of rounds; the shuffle keeps any
    arm from always following the same one.
    """
    source = random.Random(f"orders-{seed}")
    result: list[tuple[int, ...]] = []
    while len(result) < rounds:
        order = source.sample(range(arms), arms)
        result += [tuple(order), tuple(reversed(order))]
    return result[:rounds]
