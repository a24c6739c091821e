"""Ratios of runs under several conditions at once."""

import math
from collections.abc import Sequence

from toolkit.bench.stats import Ratio, paired_ratio


def of_conditions(ours: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> Ratio:
    """`paired_ratio` of runs `[condition][round]`, the mean ratio of each round over conditions.

    Conditions of one round (rates, parts of it, shapes of traffic) share its requests, its machine
    or its seed, so they are no pairs of their own: taken as such they make an interval too narrow.

    Raises ValueError as `paired_ratio`, and where the conditions differ in their rounds.
    """
    logs = [
        [math.log(paired_ratio([a], [b]).value) for a, b in zip(one, two, strict=True)]
        for one, two in zip(ours, other, strict=True)
    ]
    rounds = [math.exp(math.fsum(each) / len(each)) for each in zip(*logs, strict=True)]
    return paired_ratio(rounds, [1.0] * len(rounds))
