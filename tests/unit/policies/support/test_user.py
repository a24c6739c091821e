"""Whose request it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies.support.user import MAX_NAME, user_of

FULL = {"routing_key": "key", "session_id": "session", "user": "user", "messages": []}


def without(*names: str) -> dict[str, object]:
    return {name: value for name, value in FULL.items() if name not in names}


def test_the_closest_word_on_the_prefix_wins() -> None:
    assert user_of(FULL, "header") == user_of({}, "header")
    assert user_of(FULL) == user_of({"routing_key": "key"})
    assert user_of(without("routing_key")) == user_of({"session_id": "session"})
    assert user_of(without("routing_key", "session_id")) == user_of({"user": "user"})
    assert user_of({"messages": []}) is None
    assert user_of({}, None) is None


def test_a_routing_key_is_the_same_in_header_and_body_and_names_of_other_kinds_are_not() -> None:
    assert user_of({}, "ann") == user_of({"routing_key": "ann"})
    kinds = [user_of({name: "ann"}) for name in ("routing_key", "session_id", "user")]
    assert len(set(kinds)) == 3


@pytest.mark.parametrize("odd", [None, "", 7, True, ["ann"], {"id": 1}, 1.5, "x" * (MAX_NAME + 1)])
def test_what_is_no_name_is_passed_over(odd: object) -> None:
    ann = user_of({"user": "ann"})
    assert user_of({"routing_key": odd, "session_id": odd, "user": "ann"}) == ann
    assert user_of({"user": odd}) is None
    if isinstance(odd, str):
        assert user_of({"user": "ann"}, odd) == ann


@given(st.text(min_size=1, max_size=40), st.binary(max_size=64))
def test_only_a_digest_comes_out(name: str, salt: bytes) -> None:
    found = user_of({"user": name}, salt=salt)
    assert found == user_of({"user": name}, salt=salt)
    assert found is not None
    assert len(found) == 24
    assert int(found, 16) >= 0
    assert found != user_of({"user": name}, salt=b"another")


def test_the_longest_name_and_one_that_is_no_unicode() -> None:
    assert user_of({"user": "x" * MAX_NAME})
    assert user_of({"user": "\ud800"}) != user_of({"user": "\ud801"})


def test_users_are_told_apart() -> None:
    assert len({user_of({"user": f"user-{number}"}) for number in range(1000)}) == 1000


def test_a_salt_that_is_too_long() -> None:
    with pytest.raises(ValueError, match="64"):
        user_of({"user": "ann"}, salt=b"x" * 65)
