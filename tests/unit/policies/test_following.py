"""What is in flight is told once, and lengths and residents agree with it at every moment."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.present import present
from toolkit.policies import POLICIES, PUBLISHED, Policy, RequestView, make_policy
from toolkit.policies.composed.parts import Parts
from toolkit.policies.composed.policy import ComposedPolicy
from toolkit.policies.rounds.assign import Assigner
from toolkit.policies.support.inflight_signatures import InflightSignatures

RANKS = [("a", 0), ("a", 1), ("b", 0)]
tellings = st.lists(
    st.tuples(
        st.sampled_from(["sent", "counted", "ended", "lost", "stepped"]),
        st.integers(0, 5),
        st.integers(0, 2),
    ),
    min_size=20,
    max_size=60,
)


def both() -> Policy:
    """A policy with lengths and residents."""
    policy = ComposedPolicy(parts=Parts.parse("eldr+brh@survival"))
    assert policy.locality is not None
    policy.locality.inflight_signatures = InflightSignatures(3)
    return policy


@given(tellings)
def test_lengths_and_signatures_hold_what_is_in_flight(steps: Any) -> None:
    policy = both()
    following, flying = policy.follow(), {}
    assert policy.inflight is not None and policy.locality is not None
    inflight_signatures = policy.locality.inflight_signatures
    for kind, number, place in steps:
        rid, key = f"r{number}", RANKS[place]
        if kind == "sent":
            signature = np.eye(3, dtype=np.float32)[number % 3] if number < 4 else "none"
            request = RequestView(prompt_tokens=10, signature=signature)
            following.sent(rid, key, (key[0], None), request)
            flying[rid] = (key, 10, number < 4)
        elif kind == "counted":
            following.counted(rid, 2)
            if rid in flying:
                flying[rid] = (flying[rid][0], flying[rid][1] + 2, flying[rid][2])
        elif kind == "stepped":
            following.stepped(key, 3)
            flying = {r: (k, n + 3 * (k == key), s) for r, (k, n, s) in flying.items()}
        elif kind == "ended":
            following.ended(rid)
            flying.pop(rid, None)
        else:
            gone = {r for r, (at, _, _) in flying.items() if at == key}
            assert set(following.lost(key)) == gone
            flying = {r: each for r, each in flying.items() if r not in gone}
        assert len(following) == len(policy.inflight) == len(flying)
        for at in RANKS:
            assert policy.inflight.tokens(at) == sum(n for k, n, _ in flying.values() if k == at)
        for name in "ab":
            held = sum(signed for k, _, signed in flying.values() if k[0] == name)
            assert present(inflight_signatures).count((name, None)) == held


@pytest.mark.parametrize("name", [*POLICIES, "composed@eldr+brh+user", "brh@exact_match"])
def test_what_a_policy_needs_is_what_it_has(name: str) -> None:
    policy = make_policy(name)
    assert policy.needs.pool == isinstance(policy, Assigner)
    assert policy.needs.lengths == (policy.inflight is not None)
    assert (
        policy.needs.inflight_signatures == (policy.locality is not None) == policy.needs.signature
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_rule_is_told_of_lengths_and_never_of_signatures(name: str) -> None:
    policy = make_policy(name)
    assert policy.needs.pool == isinstance(policy, Assigner)
    assert policy.needs.lengths == (policy.inflight is not None) == policy.needs.following
    assert policy.needs.signature == (policy.locality is not None)


def test_a_predictor_s_needs_are_its_policy_s() -> None:
    assert make_policy("brh@learned").needs.user and not make_policy("brh@survival").needs.user
    assert make_policy("brh@exact_match").needs.hash
    assert make_policy("composed@brh@exact_match").needs.hash


def test_a_policy_that_needs_nothing_is_followed_all_the_same() -> None:
    following = make_policy("round_robin").follow()
    assert not following.lengths
    signature = np.ones(3, dtype=np.float32)
    for number in range(3):
        request = RequestView(prompt_tokens=10, signature=signature)
        following.sent(f"r{number}", RANKS[number % 2], RANKS[number % 2], request)
    following.counted("r0", 3)
    following.stepped(RANKS[0], 1)
    assert len(following) == 3 and "r0" in following and "r9" not in following
    following.ended("r1")
    assert sorted(following.lost(RANKS[0])) == ["r0", "r2"]
    assert len(following) == 0


def test_what_comes_of_a_request_is_counted_by_its_lengths() -> None:
    policy = both()
    following = policy.follow()
    following.sent("r", RANKS[0], ("a", None), RequestView(prompt_tokens=10))
    assert following.lengths and policy.inflight is not None
    following.counted("r", 4)
    following.ended("r")
    assert "r" not in following
