"""Requests in flight and their projections, against a plain count."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.policies import RequestView
from toolkit.policies.predictors import Oracle, Survival
from toolkit.policies.support.inflight_lengths import InflightLengths

KEYS = [("w0", 0), ("w0", 1), ("w1", 0)]

events = st.lists(
    st.tuples(
        st.sampled_from(["sent", "counted", "ended", "aborted", "lost"]),
        st.integers(0, 9),
        st.integers(0, 2),
        st.integers(1, 400),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(events, st.sampled_from([0, 1, 7, 80]))
def test_projections_are_what_will_happen_when_lengths_are_known(steps: Any, horizon: int) -> None:
    inflight = InflightLengths(Oracle())
    plain: dict[str, tuple[int, int, int, int]] = {}  # rank, tokens, length, generated
    for what, number, place, size in steps:
        rid = f"r{number}"
        if what == "sent":
            view = RequestView(prompt_tokens=size, max_new_tokens=size % 90 + 1)
            inflight.sent(rid, KEYS[place], view)
            plain[rid] = (place, size, size % 90 + 1, 0)
        elif what == "counted" and rid in plain:
            at, tokens, length, generated = plain[rid]
            more = min(size % 5, length - generated - 1)
            inflight.counted(rid, more)
            plain[rid] = (at, tokens, length, generated + more)
        elif what == "lost":
            gone = inflight.lost(KEYS[place])
            assert sorted(gone) == sorted(r for r, entry in plain.items() if entry[0] == place)
            plain = {r: entry for r, entry in plain.items() if entry[0] != place}
        else:
            inflight.ended(rid, finished=what == "ended")
            plain.pop(rid, None)
    wanted = np.zeros((3, horizon + 1))
    for at, tokens, length, generated in plain.values():
        left = length - generated
        stays = horizon + 1 if left >= horizon else left
        for h in range(min(stays, horizon + 1)):
            wanted[at, h] += tokens + generated + h
    found = inflight.projections([*KEYS, ("unknown", 0)], horizon)
    assert found[:3].tolist() == wanted.tolist()
    assert not found[3].any()
    assert inflight.projections(KEYS[::-1], horizon).tolist() == wanted[::-1].tolist()
    assert len(inflight) == len(plain)
    for at, key in enumerate(KEYS):
        assert inflight.count(key) == sum(entry[0] == at for entry in plain.values())
        assert inflight.tokens(key) == wanted[at, 0]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 300), st.integers(1, 90)), min_size=1),
    st.sampled_from([1, 7, 80]),
    st.sampled_from([1.0, 1.5, 4.0]),
)
def test_where_drafts_are_accepted_requests_grow_faster_and_leave_sooner(
    requests: Any, horizon: int, pace: float
) -> None:
    """Of two ranks, the first at one token a step."""
    inflight = InflightLengths(Oracle())
    wanted = np.zeros((2, horizon + 1))
    for number, (at, prompt, length) in enumerate(requests):
        view = RequestView(prompt_tokens=prompt, max_new_tokens=length)
        inflight.sent(f"r{number}", KEYS[at], view)
        a = pace if at else 1.0
        stays = min(horizon, max(1, int(length / a + 0.5)))
        for h in range(horizon + 1 if stays >= horizon else stays):
            wanted[at, h] += prompt + int(a * h)
    found = inflight.projections(KEYS[:2], horizon, [1.0, pace])
    assert np.abs(found - wanted).max() <= len(requests)


def test_late_news_of_a_request_that_is_gone_is_no_error() -> None:
    inflight = InflightLengths(Survival())
    inflight.sent("a", KEYS[0], RequestView(prompt_tokens=10))
    inflight.ended("a")
    inflight.counted("a", 3)
    inflight.ended("a")
    assert len(inflight) == 0
    assert inflight.lost(KEYS[0]) == []


def test_a_resumed_request_keeps_its_age_and_its_place_is_the_last_one() -> None:
    """It had generated 30 of 50 tokens on w0, which are part of its prompt on w1."""
    inflight = InflightLengths(Oracle())
    inflight.sent("a", KEYS[0], RequestView(prompt_tokens=100, max_new_tokens=50))
    inflight.counted("a", 30)
    again = RequestView(prompt_tokens=130, max_new_tokens=50)
    inflight.sent("a", KEYS[2], again, generated=30)
    assert inflight.count(KEYS[0]) == 0
    held = inflight.projections([KEYS[2]], 40)[0]
    assert held[0] == 130
    assert np.flatnonzero(held).max() == 19, "20 more steps"


def test_memory_is_that_of_the_most_at_a_time() -> None:
    inflight = InflightLengths(Survival())
    for number in range(20_000):
        inflight.sent(f"r{number}", (f"w{number}", 0), RequestView(prompt_tokens=10))
        inflight.counted(f"r{number}", number % 50)
        if number >= 100:
            inflight.ended(f"r{number - 100}", finished=number % 3 > 0)
    assert len(inflight) == 100
    assert len(inflight._rank) == 128
    assert len(inflight._counts) <= 101
    assert len(inflight._ranks) == 100


def test_who_is_aborted_teaches_only_that_it_would_have_gone_on() -> None:
    """Half of the requests end at 20, half are aborted at 10: 20 is the length of all."""
    inflight = InflightLengths(Survival())
    for number in range(400):
        inflight.sent("a", KEYS[0], RequestView(prompt_tokens=10))
        inflight.counted("a", 20 if number % 2 else 10)
        inflight.ended("a", finished=bool(number % 2))
    inflight.sent("a", KEYS[0], RequestView(prompt_tokens=10))
    held = inflight.projections([KEYS[0]], 80)[0]
    assert np.flatnonzero(held).max() == pytest.approx(20, abs=2)


def test_predictions_are_judged() -> None:
    inflight = InflightLengths(Oracle())
    rng = np.random.default_rng(0)
    for _ in range(400):
        length = int(rng.integers(1, 300))
        inflight.sent("a", KEYS[0], RequestView(prompt_tokens=10, max_new_tokens=length))
        inflight.counted("a", length)
        inflight.ended("a")
    errors = inflight.predictor.errors
    assert errors.judged == 100
    assert (errors.steps, errors.brier, errors.skill) == (0, 0, 1)
    assert errors.never > 5


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 400)), min_size=10, max_size=30),
    st.dictionaries(st.sampled_from([*KEYS, ("unknown", 0)]), st.integers(0, 50)),
)
def test_many_ranks_step_at_once_as_one_after_the_other(
    sent: list[tuple[int, int]], steps: dict[tuple[str, int], int]
) -> None:
    together, apart = InflightLengths(Oracle()), InflightLengths(Oracle())
    for inflight in (together, apart):
        for number, (place, size) in enumerate(sent):
            view = RequestView(prompt_tokens=size, max_new_tokens=100)
            inflight.sent(f"r{number}", KEYS[place], view)
    together.all_stepped(steps)
    for key, tokens in steps.items():
        apart.stepped(key, tokens)
    assert [together.tokens(key) for key in KEYS] == [apart.tokens(key) for key in KEYS]
