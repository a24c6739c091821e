"""The map from users to engines: last engine, expiry, bound."""

from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies.support.user_map import UserMap

A, B = ("a", 0), ("a", 1)
users = st.sampled_from("stuvwxyz")


@given(
    st.integers(1, 5),
    st.lists(st.tuples(users, st.integers(0, 3), st.integers(0, 60)), min_size=20, max_size=60),
)
def test_it_knows_the_most_recent_users_until_they_expire(
    capacity: int, steps: list[tuple[str, int, int]]
) -> None:
    """Against a list of everything that ever happened."""
    homes, now = UserMap(capacity, expiry=100.0), 0
    log: list[tuple[str, tuple[str, int], int]] = []
    for user, engine, later in steps:
        now += later
        log = [entry for entry in log if entry[0] != user] + [(user, ("e", engine), now)]
        homes.store(user, ("e", engine), now)
        assert len(homes) <= capacity
        known = {who: home for who, home, at in log[-capacity:] if now - at <= 100}
        assert {who: homes.find(who, now) for who in "stuvwxyz"} == {
            who: known.get(who) for who in "stuvwxyz"
        }
        assert homes.expired + homes.evicted + len(homes) >= len(log)


@given(
    st.integers(1, 4),
    st.lists(st.tuples(users, st.integers(0, 3), st.integers(-500, 500)), min_size=13, max_size=40),
    st.integers(-500, 500),
)
def test_time_may_run_backwards(
    capacity: int, steps: list[tuple[str, int, int]], asked: int
) -> None:
    homes = UserMap(capacity, expiry=100.0)
    last: dict[str, tuple[tuple[str, int], int]] = {}
    for user, engine, now in steps:
        homes.store(user, ("e", engine), now)
        last[user] = (("e", engine), now)
        assert homes.find(user, now) == ("e", engine)
        assert len(homes) <= capacity
    for user, (home, at) in last.items():
        found = homes.find(user, asked)
        assert found in (None, home)
        assert found is None or asked - at <= 100


def test_the_limit_of_an_age() -> None:
    homes = UserMap(expiry=300.0)
    homes.store("ann", A, 1000.0)
    assert homes.find("ann", 1300.0) == A
    assert homes.find("ann", 1300.5) is None
    homes.store("ann", B, 1300.5)
    assert homes.find("ann", 1600.5) == B


@pytest.mark.slow
def test_a_million_users_take_the_room_of_a_thousand() -> None:
    homes = UserMap(capacity=1000, expiry=inf)
    for number in range(1_000_000):
        homes.store(str(number), A, 0.0)
    assert len(homes) == 1000
    assert homes.evicted == 999_000
    assert homes.find("999000", 0.0) == A
    assert homes.find("998999", 0.0) is None


def test_after_a_rush_the_room_is_given_back() -> None:
    homes = UserMap(capacity=1000, expiry=10.0)
    for number in range(1000):
        homes.store(str(number), A, 0.0)
    for step in range(500):
        homes.store("ann", B, 11.0 + step / 100)
    assert len(homes) == 1
    assert (homes.expired, homes.evicted) == (999 + 1, 0)


@pytest.mark.parametrize("odd", [nan, inf, -inf])
def test_a_time_that_is_none_costs_only_who_came_with_it(odd: float) -> None:
    homes = UserMap(expiry=300.0)
    homes.store("ann", A, 1.0)
    homes.store("bob", B, 1.0)
    assert homes.find("ann", odd) is None
    homes.store("bob", A, odd)
    assert homes.find("bob", 1.0) is None
    assert homes.find("ann", 1.0) == A


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"capacity": 0}, "capacity = 0 must be at least 1"),
        ({"expiry": 0.0}, "expiry = 0 must be above 0"),
        ({"expiry": -1.0}, "expiry = -1 must be above 0"),
        ({"expiry": nan}, "expiry = nan must be above 0"),
    ],
)
def test_bounds_that_cannot_be(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        UserMap(**options)
