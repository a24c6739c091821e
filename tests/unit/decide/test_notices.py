"""Notices between routers: each counts once, no flood costs another one, and each gets there."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.decide import notices
from toolkit.decide.notices import (
    BURST,
    BYTES_BURST,
    COPIES,
    IDS,
    PER_SECOND,
    REMEMBERED_S,
    SENDERS,
    Bucket,
    NoticeAllowance,
    SeenNotices,
    ways,
)

TIMES = st.lists(st.floats(0, 20), min_size=1, max_size=60).map(sorted)


@given(TIMES, st.integers(1, 5), st.floats(0.1, 3), st.integers(1, 7))
def test_a_bucket_gives_no_more_than_it_says(
    times: list[float], burst: int, per_second: float, amount: int
) -> None:
    bucket, taken = Bucket(burst, per_second), []
    if amount > burst:
        with pytest.raises(ValueError, match="more than"):
            bucket.wait(amount, 0.0)
        return
    for now in times:
        if not bucket.wait(amount, now):
            bucket.take(amount)
            taken.append(now)
    for first, begin in enumerate(taken):
        for number, now in enumerate(taken[first:], 1):
            assert number * amount <= burst + (now - begin) * per_second + 1e-6


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 5)), max_size=40))
def test_a_flood_costs_another_router_nothing(theirs: list[tuple[str, float]]) -> None:
    """Who sends with `c` beside them passes as if it were alone."""
    beside, alone = NoticeAllowance(3, 1.0), NoticeAllowance(3, 1.0)
    for sender, now in sorted(theirs, key=lambda each: each[1]):
        for _ in range(4):
            beside.take(sender, 1000, now)
        assert beside.take("c", 1000, now) == alone.take("c", 1000, now)


def test_a_router_that_floods_waits() -> None:
    allowance = NoticeAllowance()
    passed = sum(not allowance.take("a", 10, 0.0) for _ in range(2 * BURST))
    assert passed == BURST
    assert allowance.take("a", 10, 0.0) == pytest.approx(1 / PER_SECOND)
    assert not allowance.take("a", 10, 1.5 / PER_SECOND)
    allowance = NoticeAllowance()
    size = BYTES_BURST // 4
    assert [not allowance.take("b", size, 0.0) for _ in range(6)] == [True] * 4 + [False] * 2


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.floats(0, 100))))
def test_a_notice_counts_once_while_it_is_remembered(
    come: list[tuple[str, int, float]],
) -> None:
    seen, counted = SeenNotices(), Counter[tuple[str, int]]()
    for sender, number, now in sorted(come, key=lambda each: each[2]):
        counted[sender, number] += seen.first(sender, str(number), now)
    assert all(count == 1 for count in counted.values())


def test_what_is_remembered_is_bounded_in_time_and_number() -> None:
    seen = SeenNotices()
    assert seen.first("a", "x", 0.0) and not seen.first("a", "x", REMEMBERED_S - 1)
    assert seen.first("a", "x", REMEMBERED_S)
    for number in range(3 * IDS):
        seen.first("a", str(number), 1.0)
    for number in range(3 * SENDERS):
        seen.first(f"s{number}", "x", 1.0)
    assert len(seen._senders) == SENDERS
    assert max(len(ids) for ids in seen._senders.values()) <= IDS
    allowance = NoticeAllowance()
    for number in range(3 * SENDERS):
        allowance.take(f"s{number}", 1, 0.0)
    assert len(allowance._senders) == SENDERS


NAMES = st.frozensets(st.sampled_from("abcdef"))


@given(st.dictionaries(st.sampled_from([f"w{n}" for n in range(6)]), NAMES), NAMES)
def test_a_notice_goes_through_two_workers_to_each_router_where_there_are_two(
    heard_at: dict[str, frozenset[str]], to: frozenset[str]
) -> None:
    chosen = ways(heard_at, to)
    assert len(set(chosen)) == len(chosen)
    for name in to:
        there = sum(name in listeners for listeners in heard_at.values())
        assert sum(name in heard_at[each] for each in chosen) >= min(COPIES, there)
    for worker in chosen:
        assert heard_at[worker] & to


def test_where_all_listen_everywhere_two_workers_do() -> None:
    everywhere = {f"w{n}": frozenset("abc") for n in range(24)}
    assert len(ways(everywhere, "abc")) == notices.COPIES
