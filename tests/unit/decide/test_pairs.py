"""Pairs of workers that no KV gets between: who is left out, how long, and whose fault it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from tests.unit.decide.hosting import BOUNDS, DeciderHost, Running
from toolkit.decide import messages as m
from toolkit.decide import pairs as pairs_module
from toolkit.decide.ejection import FIRST_S, FORGIVEN_S, LONGEST_S
from toolkit.decide.pairs import FAILURES, RECENT_S, Pair, Pairs
from toolkit.policies.base import Decision

BAD: Pair = ("p0", "d0")
SIDES = ("p0", "d1"), ("p1", "d0")
"""The same workers with others."""


def others_well(pairs: Pairs, now: float) -> None:
    for pair in SIDES:
        pairs.went(pair, now)


def left_out(now: float = 0.0) -> Pairs:
    """With BAD left out since `now`."""
    pairs = Pairs()
    for number in range(FAILURES):
        assert pairs.closed("p0", now) == frozenset()
        failure = pairs.failed(BAD, "d0", object(), now)
        assert bool(failure.left_out_s) is (number == FAILURES - 1)
        assert failure.blames == ""
        others_well(pairs, now)
    assert pairs.closed("p0", now) == {"d0"}
    return pairs


def test_where_no_transfer_has_failed_nothing_is_kept() -> None:
    pairs = Pairs()
    pairs.went(BAD, 0.0)
    pairs.sent(BAD, object(), 0.0)
    assert not pairs.known and not pairs._last


def test_a_pair_is_left_out_then_probed_and_out_for_longer_each_time() -> None:
    pairs, now, length = left_out(), 0.0, FIRST_S
    for _ in range(10):
        assert pairs.closed("p0", now + length - 0.1) == {"d0"}
        now += length
        assert pairs.closed("p0", now) == frozenset()
        probe = object()
        pairs.sent(BAD, probe, now)
        assert pairs.closed("p0", now) == {"d0"}, "one at a time"
        length = min(LONGEST_S, 2 * length)
        assert pairs.failed(BAD, "p0", probe, now).left_out_s == length
    assert pairs.left_out == {BAD: 11}
    assert pairs.closed("p1", now) == frozenset()


def test_a_transfer_that_gets_across_brings_the_pair_back() -> None:
    pairs = left_out()
    probe = object()
    pairs.sent(BAD, probe, FIRST_S)
    pairs.went(BAD, FIRST_S)
    assert pairs.closed("p0", FIRST_S) == frozenset() and not pairs.narrows("p0")
    # The next time soon after is no first one.
    assert pairs.failed(BAD, "p0", object(), FIRST_S).left_out_s == 0.0
    others_well(pairs, FIRST_S)
    assert pairs.failed(BAD, "p0", object(), FIRST_S).left_out_s == 2 * FIRST_S
    later = FIRST_S + FORGIVEN_S
    pairs.went(("p1", "d1"), later)
    assert not pairs.known and not pairs._last


def test_a_probe_that_says_nothing_lets_the_next_one_go() -> None:
    pairs = left_out()
    probe = object()
    pairs.sent(BAD, probe, FIRST_S)
    pairs.ended(BAD, object())
    assert pairs.closed("p0", FIRST_S) == {"d0"}, "of another request"
    pairs.ended(BAD, probe)
    assert pairs.closed("p0", FIRST_S) == frozenset()


def test_what_was_sent_before_says_nothing_of_a_probe() -> None:
    pairs = left_out()
    assert pairs.failed(BAD, "d0", object(), 1.0).left_out_s == 0.0
    assert pairs.closed("p0", FIRST_S) == frozenset(), "its time is as it was"


@pytest.mark.parametrize("sick", ["p0", "d0"])
@pytest.mark.parametrize("said_by", ["p0", "d0"])
def test_who_fails_with_others_too_is_to_blame_whoever_says_it(sick: str, said_by: str) -> None:
    pairs = Pairs()
    other: Pair = ("p0", "d1") if sick == "p0" else ("p1", "d0")
    well: Pair = ("p1", "d0") if sick == "p0" else ("p0", "d1")
    pairs.failed(other, "?", object(), 0.0)
    pairs.went(well, 0.0)
    for _ in range(3):
        failure = pairs.failed(BAD, said_by, object(), 0.0)
        assert (failure.blames, failure.left_out_s) == (sick, 0.0)


def test_two_that_are_never_used_with_others_are_from_then_on() -> None:
    pairs = Pairs()
    for number in range(FAILURES):
        failure = pairs.failed(BAD, "d0", object(), 0.0)
        assert (failure.blames, bool(failure.left_out_s)) == ("", number == FAILURES - 1)


def test_nobody_is_blamed_before_anything_is_known() -> None:
    failure = Pairs().failed(BAD, "d0", object(), 0.0)
    assert failure.unknown and failure.blames == ""


def test_where_nothing_gets_across_it_is_as_it_is_said() -> None:
    pairs = Pairs()
    for pair in SIDES:
        pairs.failed(pair, "?", object(), 0.0)
    assert pairs.failed(BAD, "d0", object(), 0.0).blames == "d0"


def test_a_worker_s_new_life_begins_without_what_was_known_of_the_former() -> None:
    for worker in BAD:
        pairs = left_out()
        pairs.forget(worker)
        assert pairs.closed("p0", 0.0) == frozenset() and not pairs.known
        failure = pairs.failed(BAD, "d0", object(), 0.0)
        assert failure.unknown and not failure.left_out_s


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs_module, "MOST_KNOWN", 8)
    pairs = Pairs()
    for number in range(100):
        pairs.failed((f"p{number}", f"d{number}"), "?", object(), float(number))
    assert len(pairs.known) == 8


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["failed", "went", "sent", "ended", "time", "forget"]),
        st.integers(0, 1),
        st.integers(0, 2),
        st.sampled_from([0.0, 0.5, 3.0, 40.0, 400.0]),
    ),
    min_size=20,
    max_size=120,
)


@settings(max_examples=examples(300), deadline=None)
@given(STEPS)
def test_only_who_fails_as_a_pair_is_left_out_and_never_for_good(
    steps: list[tuple[str, int, int, float]],
) -> None:
    """Against the whole story of what happened: see `Pairs`."""
    pairs, now = Pairs(), 0.0
    story: list[tuple[float, str, Pair]] = []
    """What became of transfers, since both workers' last new life."""
    out_until: dict[Pair, float] = {}
    probes: dict[Pair, object] = {}
    for what, prefill, decode, seconds in steps:
        pair = f"p{prefill}", f"d{decode}"
        if what == "time":
            now += seconds
        elif what == "sent":
            request = object()
            was_open = pair[1] not in pairs.closed(pair[0], now)
            pairs.sent(pair, request, now)
            if pair in out_until and was_open:
                assert now >= out_until[pair]
                probes[pair] = request
        elif what == "ended":
            pairs.ended(pair, probes.pop(pair, object()))
        elif what == "forget":
            pairs.forget(pair[0])
            story = [each for each in story if pair[0] not in each[2]]
            out_until = {each: at for each, at in out_until.items() if pair[0] not in each}
            probes = {each: at for each, at in probes.items() if pair[0] not in each}
        elif what == "went":
            pairs.went(pair, now)
            story.append((now, what, pair))
            out_until.pop(pair, None)
            probes.pop(pair, None)
        else:
            probe = probes.pop(pair, None)
            failure = pairs.failed(pair, pair[1], probe or object(), now)
            if failure.left_out_s:
                assert FIRST_S <= failure.left_out_s <= LONGEST_S
                if probe is None:
                    row = [each for _, each, which in story if which == pair]
                    assert row[-(FAILURES - 1) :] == ["failed"] * (FAILURES - 1)
                    for worker in pair:
                        others = [
                            each
                            for at, each, which in story
                            if worker in which and which != pair and now - at < RECENT_S
                        ]
                        assert others[-1:] != ["failed"], "it is not well with others"
                out_until[pair] = now + failure.left_out_s
            story.append((now, what, pair))
        for name in ("p0", "p1"):
            closed = pairs.closed(name, now)
            assert {(name, each) for each in closed} <= out_until.keys()
            for each in closed:
                assert now < out_until[name, each] or (name, each) in probes, "or one may try"
        if not any(each == "failed" for _, each, _ in story):
            assert not pairs.known


# What the decider makes of it.


def run(host: DeciderHost, request: Running, bad: Pair) -> bool:
    """To its end, or until its transfer fails; whether it was served."""
    host.prefilled(request)
    host.settle()
    assert request.prefill is not None and request.decode is not None
    way = request.prefill.rank.worker.name, request.decode.rank.worker.name
    if way == bad:
        host.fail(request, request.decode, "transfer")
        host.pass_time(0.1)
        return False
    host.tell(m.Proven(request.number, request.decode, decode=True))
    host.serve(request)
    return True


def serve_all(host: DeciderHost, count: int, bad: Pair) -> int:
    """So many requests, each to its end; how many transfers failed."""
    failed = 0
    for _ in range(count):
        request = host.arrive()
        for _ in range(BOUNDS.max_retries + 1):
            if run(host, request, bad):
                break
            failed += 1
        else:
            raise AssertionError("it was given up")
    return failed


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("policy", ["round_robin", "random", "br0", "pooled@shortest_queue"])
def test_requests_go_past_a_pair_and_neither_worker_is_ejected(policy: str, late: bool) -> None:
    bounds = replace(BOUNDS, late=late)
    host = DeciderHost(prefills=3, decodes=2, policy=policy, bounds=bounds)
    host.use("random", "prefill")
    bad = "prefill-0", "decode-1"
    first = serve_all(host, 60, bad)
    assert FAILURES <= first <= FAILURES + 3
    assert sum("PairLeftOut" in each for each in host.orders) >= 1
    assert serve_all(host, 40, bad) == 0
    assert not any(worker.record.ejections for worker in host.ranks.workers.values())
    host.pass_time(FIRST_S)
    assert serve_all(host, 40, bad) <= 1, "the probe"
    host.pass_time(2 * FIRST_S)
    assert serve_all(host, 40, ("", "")) == 0
    assert not host.decider.choosing.pairs.narrows("prefill-0")
    assert host.decider.attempts.requests == {}


@pytest.mark.parametrize("policy", ["round_robin", "pooled@shortest_queue"])
@pytest.mark.parametrize("sick", ["prefill-0", "decode-0"])
def test_a_worker_whose_transfers_all_fail_is_ejected(sick: str, policy: str) -> None:
    host = DeciderHost(prefills=3, decodes=3, policy=policy)
    host.use("random", "prefill")
    for _ in range(60):
        request = host.arrive()
        for _ in range(4):
            host.prefilled(request)
            host.settle()
            assert request.prefill is not None and request.decode is not None
            way = [call.rank.worker.name for call in request.calls]
            if sick not in way:
                break
            # It is the other one that says so.
            call = request.calls[1 - way.index(sick)]
            host.fail(request, call, "transfer")
            host.pass_time(0.1)
        assert request.decode is not None
        host.tell(m.Proven(request.number, request.decode, decode=True))
        host.serve(request)
    ejected = [each.name for each in host.ranks.workers.values() if each.record.ejections]
    assert ejected == [sick]


def test_where_all_pairs_of_a_prefill_are_out_it_is_used_last_and_not_refused() -> None:
    host = DeciderHost(prefills=2, decodes=1)
    pairs = host.decider.choosing.pairs
    for request in (object(), object()):
        pairs.failed(("prefill-0", "decode-0"), "decode-0", request, host.now)
        pairs.went(("prefill-0", "decode-1"), host.now)
        pairs.went(("prefill-1", "decode-0"), host.now)
    assert pairs.closed("prefill-0", host.now) == {"decode-0"}
    for _ in range(4):
        request = host.arrive()
        assert request.prefill is not None
        assert request.prefill.rank.worker.name == "prefill-1"
        host.leave(request)
    host.tell(m.WorkerDown("prefill-1"))
    for _ in range(4):
        request = host.arrive()
        host.prefilled(request)
        assert request.decode is not None, "it is tried"
        host.leave(request)


def test_a_decode_that_says_nothing_of_one_prefill_s_requests_is_a_pair_too() -> None:
    host = DeciderHost(prefills=2, decodes=2)
    pairs = host.decider.choosing.pairs
    for number in range(FAILURES):
        request = held(host, "prefill-0", "decode-0")
        assert request.decode is not None
        host.fail(request, request.decode, "silent")
        assert pairs.narrows("prefill-0") is (number == FAILURES - 1)
        host.leave(request)
        for way in (("prefill-0", "decode-1"), ("prefill-1", "decode-0")):
            request = held(host, *way)
            assert request.decode is not None
            host.tell(m.Proven(request.number, request.decode, decode=True))
            host.serve(request)


def held(host: DeciderHost, prefill: str, decode: str) -> Running:
    """A request that runs there."""
    for name in host.ranks.workers:
        host.tell(m.Hold(((name, 0),), on=name not in (prefill, decode)))
    request = host.arrive()
    host.prefilled(request)
    host.settle()
    assert request.decode is not None and request.decode.rank.worker.name == decode
    for name in host.ranks.workers:
        host.tell(m.Hold(((name, 0),), on=False))
    return request


def test_without_a_fault_no_decision_looks_at_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    host = DeciderHost(prefills=2, decodes=2, policy="pooled@shortest_queue")

    def asked(*_: object) -> Decision:
        raise AssertionError("nobody needs to ask")

    for name in ("closed", "narrows", "sent", "went"):
        monkeypatch.setattr(Pairs, name, asked)
    assert serve_all(host, 10, ("", "")) == 0


def test_a_new_life_of_a_worker_forgets_ejection_pairs_and_probes() -> None:
    host = DeciderHost(prefills=2, decodes=2)
    worker, pairs = host.ranks.workers["decode-0"], host.decider.choosing.pairs
    for _ in range(3):
        worker.record.failed(host.now)
    pairs.failed(("prefill-0", "decode-0"), "decode-0", object(), host.now)
    host.pass_time(FIRST_S)
    request = held(host, "prefill-0", "decode-0")
    assert request.decode is not None and request.decode.probe
    call = request.decode
    host.tell(m.WorkerDown("decode-0"))
    host.tell(m.WorkerGreeted("decode-0", slots=4, anew=True))
    host.tell(m.WorkerUp("decode-0"))
    assert not pairs.known and not worker.record.out
    host.fail(request, call, "lost")
    assert not worker.record.out, "it was the former process's"
    assert worker.record.ejections == 1
    host.leave(request)
