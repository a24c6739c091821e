"""What benchmarks take as independent: rounds and seeds, never parts of one."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.benchmarks import eldr, eldr_kmeans, eldr_simulated
from tests.benchmarks.placement import Comparison
from tests.benchmarks.shared.eldr_replay import Played, by_round, tpot
from tests.benchmarks.shared.simulated import told
from toolkit.bench.stats import paired_ratio

SLOWER = (1.0, 1.1, 1.3)
"""Of three rounds."""


def moments(rounds: int, each: int) -> list[list[list[list[Played]]]]:
    """`[round][moment][arm]`: ours takes 9 ms, the other 10 and more, alike in a whole round."""
    return [
        [[[Played(8, 9.0, 20.0)], [Played(8, 10.0 * slow, 30.0)]] for _ in range(each)]
        for slow in SLOWER[:rounds]
    ]


@pytest.mark.parametrize("each", [1, 4, 12])
def test_more_moments_of_a_round_make_no_narrower_interval(each: int) -> None:
    found = by_round(moments(3, each))
    assert [len(tpot(arm, 50)) for arm in found] == [3, 3]
    keys = eldr.replay_keys(found, ["eldr", "round_robin"])
    ratios = [9 / (10 * slow) for slow in SLOWER]
    wanted = paired_ratio(ratios, [1.0] * 3)
    assert keys["tpot_p50_ratio_high"] == pytest.approx(wanted.high)
    assert keys["replays"] == 3 * each * 2


def test_every_batch_of_a_round_counts_in_its_percentile() -> None:
    found = by_round([[[[Played(1, 1.0, 9)]], [[Played(3, 5.0, 9), Played(4, 7.0, 9)]]]])
    assert [[one.step_ms for one in each] for each in found[0]] == [[1.0, 5.0, 7.0]]


def test_rounds_of_one_calibration_are_one_pair() -> None:
    """Three seeds of two rounds, one after the other."""
    ours = [1.0, 1.2, 2.0, 2.2, 3.0, 3.2]
    ratio = eldr_kmeans.over_seeds(ours, [1.0] * 6, 3)
    assert ratio.pairs == 3
    assert ratio.value == pytest.approx(math.prod(ours) ** (1 / 6))


def test_rates_of_a_seed_are_one_pair() -> None:
    """Three rates on two seeds, the same ratio at every rate of a seed."""
    ours = [[{"p50": 0.9}, {"p50": 0.8}]] * 3
    found: Any = {"eldr": ours, "other": [[{"p50": 1.0}] * 2] * 3}
    ratio = eldr_simulated.ratio(found, "p50", "eldr", "other")
    wanted = paired_ratio([0.9, 0.8], [1.0, 1.0])
    assert (ratio.low, ratio.pairs) == (pytest.approx(wanted.low), 2)  # type: ignore[comparison-overlap]
    assert told(ratio)["pairs"] == 2


def test_layers_of_one_seed_are_no_pairs() -> None:
    """Five layers each; only the two seeds differ."""
    sides = [
        [SimpleNamespace(cut=np.full(5, value)) for value in side] for side in ((1, 2), (2, 2))
    ]
    found: Any = Comparison(*sides)  # type: ignore[arg-type]
    value, low, high = found.ratios("cut")
    wanted = paired_ratio([1, 2], [2, 2])
    assert (value, low, high) == pytest.approx((wanted.value, wanted.low, wanted.high))
