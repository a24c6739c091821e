"""What a batch trace says of requests in a hurry."""

from typing import Any

import pytest

from tests.benchmarks.shared import preempt_trace as traces

LAYERS = 6


def batch(
    began: float, ended: float, *requests: tuple[str, int, float], pauses: Any = ()
) -> dict[str, Any]:
    """A prefill of (name, prompt tokens, sent)."""
    rows = [[rid, "standard", tokens, sent, 0.0] for rid, tokens, sent in requests]
    return {
        "phase": "prefill",
        "began": began,
        "ended": ended,
        "requests": rows,
        "pauses": [list(pause) for pause in pauses],
    }


def test_a_wait_is_what_passed_without_those_before_it_and_one_slice() -> None:
    long = batch(0.0, 0.8, ("long", 3000, 0.0), pauses=[(0.3, 0.5, 3)])
    first = batch(0.3, 0.4, ("first", 50, 0.25))
    second = batch(0.4, 0.5, ("second", 60, 0.26))
    one, two = traces.waits([first, second, long], 200, LAYERS, 1)
    assert (one.waited_s, two.waited_s) == pytest.approx((0.05, 0.14))
    assert one.slice_s == pytest.approx(0.1) and one.others_s == 0
    assert two.others_s == pytest.approx(0.1)
    assert two.over_s == pytest.approx(0.14 - 0.1 - 0.1)


def test_the_longest_slice_between_two_pauses_counts() -> None:
    long = batch(0.0, 1.0, ("long", 3000, 0.0), pauses=[(0.1, 0.2, 1), (0.6, 0.7, 2)])
    short = batch(0.6, 0.7, ("short", 50, 0.3))
    (wait,) = traces.waits([short, long], 200, LAYERS, 1)
    assert wait.slice_s == pytest.approx(0.4)


def test_who_came_when_nothing_ran_met_no_slice() -> None:
    (wait,) = traces.waits([batch(1.0, 1.1, ("short", 50, 0.99))], 200, LAYERS, 1)
    assert wait.slice_s == 0 and wait.over_s == pytest.approx(0.01)


def test_a_request_in_chunks_waits_once_and_without_a_time_not_at_all() -> None:
    chunks = [batch(t, t + 0.1, ("short", 50, 0.5)) for t in (1.0, 2.0)]
    assert len(traces.waits(chunks, 200, LAYERS, 1)) == 1
    assert traces.waits([batch(1.0, 1.1, ("probe", 1, 0.0))], 200, LAYERS, 1) == []


def test_who_was_stopped_how_often_and_for_how_long() -> None:
    long = batch(0.0, 2.0, ("a", 3000, 0.0), ("b", 2000, 0.0), pauses=[(0.1, 0.2, 1), (0.6, 1, 2)])
    through = batch(2.0, 3.0, ("c", 2500, 0.0))
    assert traces.stopped([long, through]) == {"a": 2, "b": 2}
    assert traces.lengths_stopped([long, through]) == {3000, 2000}
    assert traces.longest_pause_s([long, through]) == pytest.approx(0.5)
    assert traces.longest_pause_s([]) == 0
