"""The search for the knee: it converges, and never loses it."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.bench.knee import KneeSearch, crossing

RATES = st.floats(0.01, 1e4)


@given(RATES, st.floats(1, 1e4), st.floats(0.01, 1), RATES)
def test_the_bracket_always_holds_the_knee(
    low: float, times: float, within: float, knee: float
) -> None:
    """Attainment that falls with the rate: up to the knee enough, beyond it too little."""
    high = low * times
    search = KneeSearch(low, high, within)
    asked = []
    while (rate := search.next()) is not None:
        assert low <= rate <= high
        before = search.bracket
        assert before[0] < rate < before[1], "each rate tells something"
        search.tell(rate, rate <= knee)
        asked.append(rate)
        assert search.bracket[0] <= knee < search.bracket[1] or (
            search.bracket[0] == 0 and knee < low
        )
        assert len(asked) < 100
    start, end = search.bracket
    if low <= knee < high:
        assert end <= start * (1 + within) * (1 + 1e-9), "told as closely as asked"
    elif knee < low:
        assert (start, end, asked) == (0, low, [low])
    else:
        assert (start, end) == (high, math.inf)
    doubling = math.log2(max(1.0, min(knee, high) / low)) + 2
    assert len(asked) <= doubling + math.log2(math.log(2) / math.log1p(within) + 1) + 8


@given(st.lists(st.booleans(), min_size=60, max_size=60))
def test_noise_cannot_turn_the_bracket_round(said: list[bool]) -> None:
    search = KneeSearch(1, 64, 0.01)
    for holds in said:
        if (rate := search.next()) is None:
            break
        search.tell(rate, holds)
        assert search.bracket[0] < search.bracket[1]
    assert search.next() is None


def test_rates_double_and_are_then_halved() -> None:
    search, asked = KneeSearch(0.5, 32), []
    while (rate := search.next()) is not None:
        asked.append(rate)
        search.tell(rate, rate <= 5.2)
    assert asked[:5] == [0.5, 1, 2, 4, 8]
    assert asked[5:] == [5.66, 4.76, 5.19], "short numbers"
    assert (search.held, search.failed) == (5.19, 5.66)


@pytest.mark.parametrize(
    ("low", "high", "within"),
    [(0, 1, 0.1), (2, 1, 0.1), (-1, 1, 0.1), (1, math.inf, 0.1), (math.nan, 1, 0.1), (1, 2, 0)],
)
def test_what_is_no_range_is_refused(low: float, high: float, within: float) -> None:
    with pytest.raises(ValueError, match=r"a sweep goes up|a knee is told"):
        KneeSearch(low, high, within)


@given(
    st.lists(st.tuples(RATES, st.floats(0, 1)), min_size=1, max_size=9, unique_by=lambda p: p[0])
)
def test_a_runs_crossing_lies_where_its_share_falls(points: list[tuple[float, float]]) -> None:
    rates, shares = zip(*points, strict=True)
    found = crossing(rates, shares, 0.9)
    ordered = sorted(points)
    if found is None:
        assert ordered[0][1] < 0.9 or all(share >= 0.9 for _, share in ordered)
        return
    (before, first), (after, second) = next(
        pair for pair in pairwise(ordered) if pair[0][1] >= 0.9 > pair[1][1]
    )
    assert before <= found <= after or found == pytest.approx(after)
    part = (found - before) / (after - before)
    assert first + (second - first) * part == pytest.approx(0.9, abs=1e-6)
