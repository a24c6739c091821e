"""When a client is to try again: pure rules."""

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.router.retry_after import Refusals, passed, seconds

NOW = 1_800_000_000.0


@given(st.integers(0, 10**9))
def test_seconds_and_dates_are_read(wait: int) -> None:
    assert seconds(str(wait), NOW) == wait
    if wait < 10**8:
        assert seconds(formatdate(NOW + wait, usegmt=True), NOW) == wait


@pytest.mark.parametrize("said", ["", "soon", "-1", "1.5", "7 s", "٣", "9" * 40, "Mon, 99 Foo 2"])
def test_nonsense_is_none_and_does_not_go_on(said: str) -> None:
    assert seconds(said, NOW) is None
    assert passed({"retry-after": said, "server": "x"}, NOW) == {}


def test_a_time_that_is_over_is_now() -> None:
    assert seconds(formatdate(NOW - 50, usegmt=True), NOW) == 0.0


def test_only_listed_headers_go_on() -> None:
    told = {"retry-after": "7", "x-should-retry": "true", "set-cookie": "a=b", "server": "uvicorn"}
    assert passed(told, NOW) == {"retry-after": "7", "x-should-retry": "true"}


def test_of_workers_of_one_role_the_nearest_counts() -> None:
    refusals = Refusals()
    refusals.add("decode", "d0", {"retry-after": "9"}, NOW)
    refusals.add("decode", "d1", {"retry-after": formatdate(NOW + 7, usegmt=True)}, NOW)
    refusals.add("decode", "d2", {}, NOW)
    assert refusals.headers() == {"retry-after": formatdate(NOW + 7, usegmt=True)}


def test_of_two_roles_the_later_counts_since_both_are_needed() -> None:
    refusals = Refusals()
    refusals.add("prefill", "p0", {"retry-after": "2"}, NOW)
    refusals.add("decode", "d0", {"retry-after": "5"}, NOW)
    refusals.add("decode", "d1", {"retry-after-ms": "3500"}, NOW)
    assert refusals.headers() == {"retry-after-ms": "3500"}


def test_a_worker_s_last_word_counts_and_silence_is_none() -> None:
    refusals = Refusals()
    refusals.add("plain", "w", {"retry-after": "3"}, NOW)
    refusals.add("plain", "w", {"retry-after": "8"}, NOW)
    assert refusals.headers() == {"retry-after": "8"}
    refusals.add("plain", "w", {}, NOW)
    assert refusals.headers() == {}
