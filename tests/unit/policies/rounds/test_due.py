"""When a round is due: soon enough for whoever waits, and never while nobody does."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies.rounds.due import READING_PAUSE_S, TICK_S, Rounds

notified = st.tuples(st.sampled_from(["news", "reading"]), st.floats(0.0, 1.0), st.integers(0, 3))


def test_news_at_once_a_reading_soon_and_a_tick_in_between() -> None:
    rounds = Rounds()
    assert rounds.reading(1.0, 2) and rounds.due == 1.0 + READING_PAUSE_S
    assert not rounds.reading(1.005, 2), "one round for several readings"
    assert rounds.notified(1.006, 2) and rounds.due == 1.006
    assert not rounds.notified(1.007, 2)
    rounds.begun()
    assert rounds.due is None
    assert rounds.over(1.01, 1) and rounds.due == 1.01 + TICK_S
    rounds.begun()
    assert not rounds.over(2.0, 0) and rounds.due is None


@given(st.lists(notified, min_size=13, max_size=40))
def test_whoever_waits_has_a_round_in_time_and_rounds_end_with_the_pool(steps: Any) -> None:
    """A home with a perfect timer: a round is never later than the last telling allows."""
    rounds, now, deadline = Rounds(), 0.0, None
    for kind, pause, waiting in steps:
        now += pause
        while rounds.due is not None and rounds.due <= now:
            at = rounds.due
            assert deadline is not None and at <= deadline
            rounds.begun()
            rounds.over(at, waiting)
            deadline = at + TICK_S if waiting else None
        armed = rounds.notified(now, waiting) if kind == "news" else rounds.reading(now, waiting)
        assert not (armed and not waiting)
        if waiting:
            allowed = now if kind == "news" else now + READING_PAUSE_S
            deadline = allowed if deadline is None else min(deadline, allowed)
            assert rounds.due is not None and rounds.due <= deadline
