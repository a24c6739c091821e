"""When a request waits for a worker that is gone, and what it is told when it does not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.decide.returns import UNKNOWN_AFTER_S, Return, Returns, first, stay
from toolkit.router.return_reports import read

NOW = 1000.0
SECONDS = st.floats(0.0, 1e4)


def gone(usual_s: float | None = None, at: float = NOW) -> Returns:
    """A worker `w` whose start usually takes so long, gone since then."""
    returns = Returns()
    returns.told("w", usual_s, 0.0, at - 100)
    returns.went("w", at)
    return returns


def test_a_worker_that_has_just_gone_is_expected_after_its_usual_start() -> None:
    assert gone(7.0).of("w") == Return(NOW + 7, 7.0)
    assert gone().of("w") is None, "nobody knows how long it takes"


def test_the_launcher_knows_better_than_that() -> None:
    returns = gone(7.0)
    returns.told("w", 7.0, 12.5, NOW + 1)
    assert returns.of("w") == Return(NOW + 13.5, 7.0)
    returns.told("w", 7.0, None, NOW + 2)
    assert returns.of("w") is None, "it is not started again"
    returns.told("w", 9.0, 9.0, NOW + 3)
    assert returns.of("w") == Return(NOW + 12, 9.0)


def test_what_was_told_of_a_former_life_does_not_count() -> None:
    returns = gone(7.0)
    returns.told("w", 7.0, 60.0, NOW)
    returns.came("w", NOW + 60)
    assert returns.of("w") is None
    returns.went("w", NOW + 100)
    assert returns.of("w") == Return(NOW + 107, 7.0)


def test_without_a_launcher_it_goes_by_how_long_it_was_away() -> None:
    returns = Returns()
    for went, came in ((0.0, 8.0), (100.0, 100.5)):
        returns.went("w", went)
        returns.came("w", came)
    returns.went("w", 200.0)
    assert returns.of("w") == Return(204.0, 4.0), "a short absence does not make it a quick one"


def test_it_stays_gone_since_the_first_time() -> None:
    returns = gone(7.0)
    returns.went("w", NOW + 5)
    assert returns.of("w") == Return(NOW + 7, 7.0)


def test_the_first_that_comes_counts() -> None:
    assert first([None, Return(9, 1), Return(4, 50), None]) == Return(4, 50)
    assert first([None]) is None


@given(wait_s=SECONDS, passed=SECONDS)
def test_where_nothing_is_known_it_waits_as_configured(wait_s: float, passed: float) -> None:
    told = stay(NOW, wait_s, math.inf, None, NOW + passed)
    assert told.seconds == pytest.approx(wait_s - passed)
    assert told.retry_after == UNKNOWN_AFTER_S


@given(usual_s=st.floats(0.1, 600), passed=SECONDS, wait_s=SECONDS, deadline=SECONDS)
def test_it_waits_for_a_start_and_one_more_within_its_deadline(
    usual_s: float, passed: float, wait_s: float, deadline: float
) -> None:
    back = Return(NOW + usual_s, usual_s)
    told = stay(NOW, wait_s, NOW + deadline, back, NOW + passed)
    comes = usual_s < deadline
    until = max(wait_s, min(2 * usual_s, deadline) if comes else 0.0)
    assert told.seconds == pytest.approx(until - passed, abs=1e-6)
    assert told.retry_after >= 1
    if passed < usual_s:
        assert told.retry_after >= usual_s - passed - 1e-6


def test_nobody_waits_for_a_worker_that_rests() -> None:
    back = Return(NOW + 67, 7.0)
    assert stay(NOW - 5, 1.0, math.inf, back, NOW).seconds < 0
    assert stay(NOW - 5, 1.0, math.inf, back, NOW).retry_after == 67
    assert stay(NOW - 5, 1.0, math.inf, back, NOW + 60).seconds == pytest.approx(14.0)


def test_a_short_rest_is_waited_for_though_starts_are_shorter() -> None:
    back = Return(NOW + 11, 3.0)
    assert stay(NOW - 5, 1.0, math.inf, back, NOW).seconds == pytest.approx(14.0)
    assert stay(NOW - 5, 1.0, NOW + 10, back, NOW).seconds < 0


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"workers": []},
        {"workers": {"w": {"usual_s": -1, "back_in_s": 0}}},
        {"workers": {"w": {"usual_s": "x", "back_in_s": 0}}},
        {"workers": {"w": {"usual_s": 1, "back_in_s": 0, "more": 1}}},
        {"workers": {"w": {"usual_s": 1}}},
    ],
)
def test_a_body_that_is_none_is_refused_with_what_it_should_be(body: object) -> None:
    told = read(body)
    assert isinstance(told, str)
    assert "usual_s" in told
