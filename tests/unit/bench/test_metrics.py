"""Metrics, SLOs and paired ratios on outputs whose answers are known by hand."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.shared.conditions import of_conditions
from toolkit.bench.client import Sample
from toolkit.bench.metrics import Slo, summarise, tpot
from toolkit.bench.stats import mean_interval, orders, paired_ratio


def sample(ttft: float, gaps: list[float], start: float = 0.0, given: int = 10) -> Sample:
    return Sample(
        success=True,
        start_time=start,
        ttft=ttft,
        itl=gaps,
        latency=ttft + sum(gaps),
        prompt_len=given,
        output_len=1 + len(gaps),
    )


def test_latencies_and_throughputs_of_two_requests() -> None:
    samples = [sample(0.1, [0.02, 0.04]), sample(0.3, [0.05], given=30)]
    metrics = summarise(samples, duration_s=2.0)
    assert metrics["completed"] == 2
    assert metrics["mean_ttft_ms"] == pytest.approx(200)
    assert metrics["median_tpot_ms"] == pytest.approx((30 + 50) / 2)
    assert metrics["median_itl_ms"] == pytest.approx(40)
    assert metrics["p99_e2e_latency_ms"] == pytest.approx(160 + 0.99 * (350 - 160))
    assert metrics["output_throughput"] == pytest.approx(5 / 2)
    assert metrics["input_throughput"] == pytest.approx(20)
    assert metrics["concurrency"] == pytest.approx((0.16 + 0.35) / 2)
    assert metrics["max_itl_ms"] == pytest.approx(50)
    assert metrics["goodput"] is None


def test_second_tokens_and_gaps_are_those_of_requests_that_have_them() -> None:
    two, one = sample(0.1, [0.05]), sample(0.3, [])
    two.ttst, two.longest_gap = 0.15, 0.05
    metrics = summarise([two, one], 1.0)
    assert metrics["mean_ttst_ms"] == pytest.approx(150)
    assert metrics["p99_longest_gap_ms"] == pytest.approx(50)


def test_failed_requests_count_as_failed_and_nowhere_else() -> None:
    failed = Sample(error="HTTP 500", latency=99.0, ttft=99.0, output_len=7)
    metrics = summarise([sample(0.1, [0.02]), failed], 1.0, Slo(ttft_ms=200))
    assert (metrics["completed"], metrics["failed"]) == (1, 1)
    assert metrics["p99_ttft_ms"] == pytest.approx(100)
    assert metrics["total_output_tokens"] == 2
    assert metrics["goodput_fraction"] == pytest.approx(0.5)


def test_goodput_needs_both_limits() -> None:
    samples = [sample(0.1, [0.01]), sample(0.5, [0.01]), sample(0.1, [0.2]), sample(0.1, [])]
    metrics = summarise(samples, 2.0, Slo(ttft_ms=200, tpot_ms=50))
    assert metrics["goodput"] == pytest.approx(1.0)
    assert tpot(samples[3]) is None


RATES = st.floats(0.01, 100)


@given(st.lists(st.tuples(RATES, RATES), min_size=2, max_size=20))
def test_a_ratio_lies_in_its_interval_and_turns_over(pairs: list[tuple[float, float]]) -> None:
    ours, other = [p[0] for p in pairs], [p[1] for p in pairs]
    there, back = paired_ratio(ours, other), paired_ratio(other, ours)
    assert there.low <= there.value * (1 + 1e-9)
    assert there.value <= there.high * (1 + 1e-9)
    assert there.value * back.value == pytest.approx(1)
    assert there.low * back.high == pytest.approx(1)


@given(st.lists(RATES, min_size=2, max_size=10), st.floats(0.1, 10))
def test_a_constant_factor_is_found_whatever_the_rounds_do(other: list[float], f: float) -> None:
    ratio = paired_ratio([value * f for value in other], other)
    assert ratio.value == pytest.approx(f)
    assert ratio.high / ratio.low == pytest.approx(1, abs=1e-4)


def test_the_interval_covers_the_truth_19_times_in_20() -> None:
    source = random.Random(11)
    hits = 0
    for _ in range(1000):
        other = [math.exp(source.gauss(0, 1)) for _ in range(5)]
        ours = [value * 0.8 * math.exp(source.gauss(0, 0.2)) for value in other]
        ratio = paired_ratio(ours, other)
        hits += ratio.low <= 0.8 <= ratio.high
    assert 925 <= hits <= 975


@given(st.lists(st.tuples(RATES, RATES), min_size=2, max_size=6), st.integers(2, 5))
def test_parts_of_a_round_are_no_more_pairs(pairs: list[tuple[float, float]], parts: int) -> None:
    """A round cut into parts that say the same knows no more than the round."""
    ours, other = [p[0] for p in pairs], [p[1] for p in pairs]
    cut, whole = of_conditions([ours] * parts, [other] * parts), paired_ratio(ours, other)
    assert cut.pairs == whole.pairs == len(pairs)
    assert (cut.value, cut.low, cut.high) == pytest.approx((whole.value, whole.low, whole.high))


def test_conditions_of_a_round_are_averaged() -> None:
    ratio = of_conditions([[2.0, 2.0], [8.0, 8.0]], [[1.0, 1.0], [1.0, 1.0]])
    assert (ratio.value, ratio.low, ratio.pairs) == pytest.approx((4.0, 4.0, 2))
    with pytest.raises(ValueError, match="argument"):
        of_conditions([[1.0, 2.0], [1.0]], [[1.0, 2.0], [1.0]])


def test_one_pair_has_no_interval() -> None:
    ratio = paired_ratio([2.0], [1.0])
    assert ratio.value == pytest.approx(2)
    assert math.isnan(ratio.low)


@pytest.mark.parametrize(
    ("ours", "other"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([1.0], [math.nan])]
)
def test_what_does_not_pair_is_refused(ours: list[float], other: list[float]) -> None:
    with pytest.raises(ValueError, match=r"pairs|positive"):
        paired_ratio(ours, other)


@given(st.integers(2, 5), st.integers(1, 30), st.integers(0, 1000))
def test_orders_are_permutations_and_mirror_each_other(arms: int, rounds: int, seed: int) -> None:
    result = orders(arms, rounds, seed)
    assert len(result) == rounds
    assert all(sorted(order) == list(range(arms)) for order in result)
    pairs = zip(result[::2], result[1::2], strict=False)
    assert all(there == tuple(reversed(back)) for there, back in pairs)
    assert result == orders(arms, rounds, seed)


def test_means_have_students_interval() -> None:
    found = mean_interval([1.0, 2.0, 3.0])
    # t(2, 0.975) = 4.3027, standard error 1 / sqrt(3)
    assert found.value == 2.0 and found.high == pytest.approx(2 + 4.302653 / math.sqrt(3))
    assert found.value - found.low == pytest.approx(found.high - found.value)
    alone = mean_interval([5.0])
    assert alone.value == 5.0 and math.isnan(alone.low) and alone.pairs == 1
    with pytest.raises(ValueError, match="no mean"):
        mean_interval([])
