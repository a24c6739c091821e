"""How evenly ranks were loaded: integrals over steps against counting moment by moment."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches.steps.step_log import FIELDS
from tests.unit.bench.steps import decode, rank, step
from toolkit.bench.balance import Levels, RankTrack, balance

# (gap before it, how long it takes, KV tokens): whole seconds, so that a second is a moment.
logs = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 50)), max_size=8)
ranks = st.lists(logs, min_size=2, max_size=4)


def track(log: list[tuple[int, int, int]], offset: int = 0) -> RankTrack:
    end, ends = offset, []
    for gap, took, _ in log:
        end += gap + took
        ends.append(float(end))
    took = np.array([float(t) for _, t, _ in log])  # type: ignore[assignment]
    return RankTrack.of(np.array(ends), took, np.array([float(v) for *_, v in log]))  # type: ignore[arg-type]


def by_second(log: list[tuple[int, int, int]], seconds: int) -> list[int]:
    held: list[int] = []
    for gap, took, value in log:
        held += [0] * gap + [value] * took
    return (held + [0] * seconds)[:seconds]


@given(ranks, st.integers(0, 10), st.integers(0, 40))
def test_the_integral_is_the_sum_over_moments(logs: Any, since: int, length: int) -> None:
    until = since + length
    levels = Levels.of([track(log) for log in logs], since, until)
    all_seconds = np.array([by_second(log, 80) for log in logs])
    busy = [log for log in logs if log]
    first = max(since, min((log[0][0] for log in busy), default=0))
    last = min(until, max((sum(g + t for g, t, _ in log) for log in busy), default=0))
    window = all_seconds[:, first:last]
    assert levels.seconds.sum() == pytest.approx(window.shape[1])
    if not window.shape[1]:
        assert math.isnan(levels.spread())
        return
    spread = window.max(axis=0) - window.min(axis=0)
    assert levels.spread() == pytest.approx(spread.mean())
    most = window.max(axis=0)
    shares = [1 - w.mean() / m for w, m in zip(window.T, most, strict=True) if m]
    if shares:
        assert levels.waiting() == pytest.approx(np.mean(shares))
        assert -1e-9 <= levels.waiting() <= 1 - 1 / len(logs) + 1e-9
    else:
        assert math.isnan(levels.waiting())


@given(ranks, st.permutations(range(4)))
def test_the_order_of_ranks_and_of_steps_does_not_matter(logs: Any, order: Any) -> None:
    tracks = [track(log) for log in logs]
    shuffled = [
        RankTrack.of(t.end[::-1], (t.end - t.start)[::-1], t.value[::-1])
        for t in (tracks[i] for i in order if i < len(tracks))
    ]
    one, two = Levels.of(tracks), Levels.of(shuffled)
    assert one.spread() == pytest.approx(two.spread(), nan_ok=True)
    assert one.waiting() == pytest.approx(two.waiting(), nan_ok=True)


@given(logs, st.integers(2, 4))
def test_equal_ranks_are_level(log: Any, count: int) -> None:
    levels = Levels.of([track(log)] * count)
    if log:
        assert levels.spread() == 0
        assert levels.waiting() == pytest.approx(0) or math.isnan(levels.waiting())


def test_an_idle_rank_holds_nothing_from_its_last_step_on() -> None:
    """Two steps of one second each; the other rank goes on for two more."""
    short = [step(2, end=1.0, seconds=1.0), step(2, end=2.0, seconds=1.0)]
    long = [step(4, end=float(n), seconds=1.0) for n in (1, 2, 3, 4)]
    found = balance([np.array(short), np.array(long)], FIELDS)
    assert found["kv_spread"] == pytest.approx((100 + 100 + 200 + 200) / 4)
    assert (found["kv_max"], found["kv_min"]) == (pytest.approx(200), pytest.approx(50))  # type: ignore[comparison-overlap]
    assert found["kv_mean"] == pytest.approx((150 + 150 + 100 + 100) / 4)
    assert found["barrier_share"] == pytest.approx((0.25 + 0.25 + 0.5 + 0.5) / 4)
    assert "barrier_share_cpu" not in found
    never = balance([np.array(long), np.zeros((0, len(FIELDS)))], FIELDS)
    assert never["kv_spread"] == pytest.approx(200)
    assert never["barrier_share"] == pytest.approx(0.5)


def test_steps_follow_each_other_although_clocks_are_rounded() -> None:
    """Gaps and overlaps of microseconds are no idle time."""
    ends = np.array([1.0, 2.00001, 3.0])
    found = RankTrack.of(ends, np.array([1.0, 1.00003, 0.99995]), np.array([5.0, 6.0, 7.0]))
    assert found.start.tolist() == [0.0, 1.0, 2.00001]
    assert found.at(np.array([0.5, 1.0, 2.00001, 2.9, 3.0])).tolist() == [5, 6, 7, 7, 0]


def test_what_threads_computed_is_a_share_of_its_own() -> None:
    """Equal KV tokens, yet one rank computes three times as long."""
    rows = [np.array([step(2, end=1.0, seconds=1.0, cpu_seconds=cpu)]) for cpu in (0.1, 0.3)]
    found = balance(rows, FIELDS, own_clock="cpu")
    assert found["barrier_share"] == pytest.approx(0)
    assert found["barrier_share_cpu"] == pytest.approx(1 - 0.2 / 0.3)


def test_decode_has_it_for_two_ranks_and_not_for_one() -> None:
    one = rank("decode-0", [step(2, end=1.0, seconds=1.0)], [])
    two = rank("decode-0/1", [step(6, end=1.0, seconds=1.0)], [])
    both = decode(one, two)
    assert both.metrics()["kv_spread"] == pytest.approx(200)
    assert "kv_spread" not in decode(one).metrics()
    assert all("kv_spread" not in worker for worker in both.by_worker().values())
    nothing = decode(rank("a", [], []), rank("b", [], []))
    assert "kv_spread" not in nothing.metrics()


def test_a_window_cuts_through_steps() -> None:
    """Also through one that ends after it, which is not counted as a step of it."""
    first = rank("a", [step(1, end=4.0, seconds=4.0), step(5, end=8.0, seconds=4.0)], [])
    second = rank("b", [step(3, end=8.0, seconds=8.0)], [])
    part = decode(first, second).between(2.0, 6.0)
    assert part.metrics()["decode_steps"] == 1
    assert part.metrics()["kv_spread"] == pytest.approx((2 * 100 + 2 * 100) / 4)
    assert part.metrics()["kv_max"] == pytest.approx((2 * 150 + 2 * 250) / 4)
