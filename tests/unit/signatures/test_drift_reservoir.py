"""The reservoir: bounded, biased towards the latest, true to the counts, the same for a seed."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.present import present
from toolkit.signatures.reservoir import Recent, Reservoir
from toolkit.signatures.wire import pack, unpack


def filled(size: int, arrivals: int, seed: int = 0) -> Reservoir:
    """Requests are told apart by their tokens: the first has 1, the next 2, ..."""
    reservoir = Reservoir(1, size, seed)
    for number in range(arrivals):
        reservoir.add(np.zeros(1, dtype=np.float32), number + 1)
    return reservoir


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(0, 80), st.integers(0, 3))
def test_bounded_and_without_duplicates_and_the_newest_is_there(
    size: int, arrivals: int, seed: int
) -> None:
    reservoir = filled(size, arrivals, seed)
    recent = reservoir.recent()
    assert len(recent) == len(reservoir) == min(size, arrivals)
    assert len(set(recent.tokens.tolist())) == len(recent)
    assert (np.diff(recent.tokens) > 0).all(), "oldest first"
    assert (recent.ages == arrivals - recent.tokens).all()  # type: ignore[union-attr]
    if arrivals:
        assert recent.tokens[-1] == arrivals
    if arrivals <= size:
        assert recent.tokens.tolist() == list(range(1, arrivals + 1))


def test_ages_are_exponential_with_the_size_as_their_mean() -> None:
    size = 200
    ages = np.concatenate([filled(size, 12 * size, seed).recent().ages for seed in range(25)])
    # 5,000 dependent draws: the standard error of the mean is near 200 / sqrt(5000) = 2.8.
    assert ages.mean() == pytest.approx(size, rel=0.06)
    for share in (0.25, 0.5, 0.75, 0.95):
        assert np.quantile(ages, share) == pytest.approx(-size * np.log(1 - share), rel=0.1)


def test_uniform_sampling_would_not_pass_as_recent() -> None:
    recent = filled(100, 3000).recent()
    assert present(recent.ages).mean() < 200  # uniform: 1,500


def test_the_same_seed_keeps_the_same_requests() -> None:
    first, again, other = (filled(20, 300, seed).recent().tokens for seed in (5, 5, 6))
    assert (first == again).all()
    assert (first != other).any()


@given(
    arrays.arrays(np.int64, (3, 9), elements=st.integers(0, 300) | st.integers(0, 2**24)),
    st.sampled_from([np.float32, np.int64]),
)
def test_counts_come_back_as_they_were(counts: Any, dtype: Any) -> None:
    reservoir = Reservoir(9, 3)
    for row in counts:
        reservoir.add(row.astype(dtype), 10)
    assert (reservoir.recent().values() == counts).all()


@given(arrays.arrays(np.int64, 9, elements=st.integers(0, 2**32 - 1)))
def test_counts_off_the_wire_lose_nothing_more(counts: Any) -> None:
    received, _ = unpack(msgspec.to_builtins(pack(counts, 10, True)))
    reservoir = Reservoir(9, 1)
    reservoir.add(received, 10)
    assert (reservoir.recent().values()[0] == received).all()


def test_two_bytes_a_count_until_one_needs_more() -> None:
    reservoir = Reservoir(2, 2)
    reservoir.add(np.array([1, 65_535]), 70_000)
    assert reservoir.recent().counts.dtype == np.uint16
    reservoir.add(np.array([2, 65_536]), 70_000)
    assert reservoir.recent().values().tolist() == [[1, 65_535], [2, 65_536]]


def test_recent_is_a_copy() -> None:
    reservoir = Reservoir(2, 3)
    reservoir.add(np.array([1.0, 2.0]), 5)
    recent = reservoir.recent()
    for _ in range(9):
        reservoir.add(np.array([7.0, 7.0]), 6)
    assert recent.counts.tolist() == [[1, 2]]
    assert recent.tokens.tolist() == [5]


@pytest.mark.parametrize(
    ("counts", "tokens", "words"),
    [
        (np.zeros(3), 5, r"expected \(4,\)"),
        (np.zeros((2, 4)), 5, r"expected \(4,\)"),
        (np.full(4, -1.0), 5, "negative"),
        (np.array([0, 1, 2, np.nan]), 5, "NaN"),
        (np.array([0, 1, 2, np.inf]), 5, "infinite"),
        (np.zeros(4), 0, "tokens = 0"),
    ],
)
def test_what_is_refused_leaves_no_trace(counts: Any, tokens: int, words: str) -> None:
    reservoir = Reservoir(4, 2)
    with pytest.raises(ValueError, match=words):
        reservoir.add(counts, tokens)
    assert len(reservoir) == 0


@pytest.mark.parametrize("arguments", [(0, 5), (5, 0), (-1, 5)])
def test_a_reservoir_of_nothing(arguments: Any) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Reservoir(*arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((np.zeros(4), np.ones(4)), r"\[n, D\]"),
        ((np.zeros((4, 2)), np.ones(3)), "tokens"),
        ((np.zeros((4, 2)), np.ones(4), np.ones(5)), "ages"),
    ],
)
def test_recent_requests_that_do_not_fit_together(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Recent(*arguments)


def test_oldest_first() -> None:
    counts = np.arange(4)[:, None]
    recent = Recent(counts, np.arange(4), np.array([3, 9, 0, 5])).oldest_first()
    for column in (recent.counts[:, 0], recent.tokens):
        assert column.tolist() == [1, 3, 0, 2]
    assert present(recent.ages).tolist() == [9, 5, 3, 0]
    assert Recent(counts, np.arange(4)).oldest_first().tokens.tolist() == [0, 1, 2, 3]
