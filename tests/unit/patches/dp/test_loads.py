"""What the DP controller makes of load snapshots: good, late, lost, stale and impossible ones."""

from collections import deque
from dataclasses import replace
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches.dp.loads import LOST_S, MOST_SENT, SnapshotRanks, reserved_tokens, waiting
from tests.unit.patches.dp.stand_ins import EPOCH, POOL, Snapshot
from toolkit.decide.waiting_work import STALE_S
from toolkit.policies import RequestView, make_policy
from toolkit.policies.base import WorkerView


def view(loads: SnapshotRanks, now: float, rank: int = 0) -> WorkerView:
    return views(loads, [True] * len(loads), now)[rank]


def views(loads: SnapshotRanks, usable: list[bool], now: float) -> list[WorkerView]:
    return [loads.rank(at).view(now, ok) for at, ok in enumerate(usable)]


def in_flight(loads: SnapshotRanks, now: float = 1.0, rank: int = 0) -> tuple[int, int] | None:
    load = view(loads, now, rank).load
    return None if load is None else (load.sent_requests, load.sent_tokens)


def test_a_rank_that_never_published_is_silent_and_counts_what_it_was_sent() -> None:
    loads = SnapshotRanks(2)
    loads.ledgers[0].begin(100, 0.0)
    loads.ledgers[0].begin(50, 0.0)
    # The slot as SGLang makes it before the first reading.
    loads.read([Snapshot(timestamp=0.0, max_total_num_tokens=0)], 0.5)
    seen = view(loads, 1.0)
    assert (seen.load, seen.inflight, seen.inflight_tokens) == (None, 2, 150)
    assert loads.counters == {}


def test_what_a_decode_worker_keeps_free_is_in_every_view() -> None:
    decode = SimpleNamespace(disaggregation_mode="decode", num_reserved_decode_tokens=512)
    plain = SimpleNamespace(disaggregation_mode="null", num_reserved_decode_tokens=512)
    assert (reserved_tokens(decode), reserved_tokens(plain)) == (512, 0)
    loads = SnapshotRanks(2, "decode", reserved_tokens(decode))
    assert [each.reserve for each in views(loads, [True, False], 1.0)] == [512, 512]


def test_a_reading_is_taken_over() -> None:
    loads = SnapshotRanks(2)
    loads.read(
        [
            Snapshot(
                dp_rank=1, num_running_reqs=3, num_waiting_reqs=2, num_used_tokens=700,
                num_total_tokens=900, num_waiting_uncached_tokens=150,
            )
        ],
        1.0,
    )  # fmt: skip
    first, second = views(loads, [True, False], 1.0)
    assert first.load is None and first.healthy
    assert not second.healthy and second.slots == 16 and second.dp_rank == 1
    assert second.load is not None
    assert (second.load.running, second.load.waiting) == (3, 2)
    assert (second.load.used_tokens, second.load.total_tokens) == (700, POOL)
    assert (second.load.waiting_tokens, second.load.sent_tokens) == (150, 0)
    assert (second.inflight, second.inflight_tokens) == (5, 850)


@pytest.mark.parametrize(("side", "expected"), [("plain", 150), ("decode", 200), ("prefill", 200)])
def test_what_waits_depends_on_the_side(side: str, expected: int) -> None:
    snapshot = Snapshot(num_used_tokens=700, num_total_tokens=900, num_waiting_uncached_tokens=150)
    assert waiting(snapshot, side) == expected
    # The rest of a chunked prompt is in nobody's queue.
    chunked = replace(snapshot, num_total_tokens=700)
    assert waiting(chunked, "prefill") == 150
    assert waiting(chunked, "decode") == 0


def test_what_lay_in_the_socket_during_a_step_is_not_in_the_reading_made_after_it() -> None:
    loads = SnapshotRanks(1)
    loads.read([Snapshot(EPOCH)], 0.0)
    loads.ledgers[0].begin(100, 0.1)
    loads.ledgers[0].begin(200, 0.2)
    loads.ledgers[0].begin(300, 0.3)
    # Published long after all three were sent, by a rank that had read one before its step.
    loads.read([Snapshot(EPOCH + 1.0, received=1, num_used_tokens=100, num_total_tokens=100)], 1.0)
    assert in_flight(loads) == (2, 500)
    loads.read([Snapshot(EPOCH + 1.1, received=3, num_used_tokens=100, num_total_tokens=100)], 1.1)
    assert in_flight(loads) == (0, 0)


def test_the_same_snapshot_again_is_no_news() -> None:
    loads = SnapshotRanks(1)
    snapshot = Snapshot(received=0)
    for now in (0.0, 1.0, 2.0, STALE_S):
        loads.read([snapshot], now)
        assert in_flight(loads, now) == (0, 0)
    loads.read([snapshot], STALE_S + 0.1)
    seen = view(loads, STALE_S + 0.1)
    assert seen.load is None, "it has stopped publishing"
    loads.read([replace(snapshot, timestamp=EPOCH + 4)], STALE_S + 0.2)
    assert in_flight(loads, STALE_S + 0.2) == (0, 0)


def test_a_silent_rank_is_as_full_as_it_last_was_and_what_it_was_sent() -> None:
    loads = SnapshotRanks(1)
    loads.read([Snapshot(num_running_reqs=2, num_used_tokens=500, num_total_tokens=500)], 0.0)
    loads.ledgers[0].begin(40, 1.0)
    seen = view(loads, 60.0)
    assert (seen.load, seen.inflight, seen.inflight_tokens) == (None, 3, 540)


def test_ranks_on_other_hosts_have_other_clocks() -> None:
    loads = SnapshotRanks(2)
    for second in range(10):
        loads.read(
            [
                Snapshot(EPOCH - 5000 + second, dp_rank=0),
                Snapshot(EPOCH + 5000 + second, dp_rank=1),
            ],
            float(second),
        )
        assert in_flight(loads, float(second), 0) == in_flight(loads, float(second), 1) == (0, 0)
    assert loads.counters == {}


def test_a_reading_out_of_order_is_dropped() -> None:
    loads = SnapshotRanks(1)
    loads.read([Snapshot(EPOCH + 10, num_used_tokens=900, num_total_tokens=900)], 0.0)
    for now in (0.1, 0.2):  # seen twice, it is still one
        loads.read([Snapshot(EPOCH + 9)], now)
    load = view(loads, 0.2).load
    assert load is not None and load.used_tokens == 900
    assert loads.counters == {"out of order": 1}


def test_a_clock_that_was_set_back_does_not_silence_a_rank() -> None:
    loads = SnapshotRanks(1)
    loads.read([Snapshot(EPOCH)], 0.0)
    loads.read([Snapshot(EPOCH - 3600)], 0.1)
    loads.read([Snapshot(EPOCH - 3599.9, num_used_tokens=7, num_total_tokens=7)], 0.2)
    load = view(loads, 0.2).load
    assert load is not None and load.used_tokens == 7
    loads.read([Snapshot(EPOCH - 3599.8, num_used_tokens=9, num_total_tokens=9)], 0.3)
    load = view(loads, 0.3).load
    assert load is not None and load.used_tokens == 9
    assert loads.counters == {"out of order": 1}


BAD: dict[str, Any] = {
    "num_running_reqs": -1,
    "num_waiting_reqs": nan,
    "num_waiting_uncached_tokens": inf,
    "num_used_tokens": -5,
    "num_total_tokens": 2**41,
    "max_total_num_tokens": -1,
    "max_running_requests": -3,
    "received": -1,
    "timestamp": nan,
}


@pytest.mark.parametrize("field", BAD)
def test_an_impossible_reading_silences_its_rank_until_a_good_one_comes(field: str) -> None:
    loads = SnapshotRanks(1)
    loads.read([Snapshot(num_running_reqs=1, num_used_tokens=10, num_total_tokens=10)], 0.0)
    bad = replace(Snapshot(EPOCH + 1, num_total_tokens=10), **{field: BAD[field]})
    loads.read([bad], 0.1)
    seen = view(loads, 0.1)
    assert (seen.load, seen.inflight, seen.inflight_tokens) == (None, 1, 10)
    assert loads.counters == {"impossible": 1}
    loads.read([Snapshot(EPOCH + 2)], 0.2)
    assert in_flight(loads, 0.2) == (0, 0)


def test_less_in_total_than_in_use_cannot_be() -> None:
    loads = SnapshotRanks(1)
    loads.read([Snapshot(num_used_tokens=11, num_total_tokens=10)], 0.0)
    assert view(loads, 0.0).load is None


def test_a_reading_of_a_rank_that_does_not_exist_is_counted() -> None:
    loads = SnapshotRanks(2)
    assert loads.read([Snapshot(dp_rank=2), Snapshot(dp_rank=-1)], 0.0) == []
    assert loads.counters == {"unknown rank": 2}


def test_a_rank_that_restarts_has_nothing_of_what_it_was_sent() -> None:
    loads = SnapshotRanks(2)
    loads.read([Snapshot(EPOCH, received=0)], 0.0)
    for _ in range(5):
        loads.ledgers[0].begin(100, 0.0)
    loads.read([Snapshot(EPOCH + 1, received=4)], 1.0)
    assert in_flight(loads, 1.0) == (1, 100)
    # The slot is empty while it starts: silent at once, not for the time of staleness.
    loads.read([Snapshot(timestamp=0.0, max_total_num_tokens=0)], 1.1)
    assert in_flight(loads, 1.1) is None
    assert loads.read([Snapshot(EPOCH + 2, received=1)], 1.2) == [0]
    assert in_flight(loads, 1.2) == (0, 0)
    loads.ledgers[0].begin(70, 1.3)
    loads.read([Snapshot(EPOCH + 3, received=1)], 1.4)
    assert in_flight(loads, 1.4) == (1, 70)
    loads.read([Snapshot(EPOCH + 4, received=2)], 1.5)
    assert in_flight(loads, 1.5) == (0, 0)
    assert loads.counters == {"restart": 1}


def test_what_was_sent_to_a_former_life_does_not_count_for_ever() -> None:
    """Its restart was not seen: the new life had received as many by then."""
    loads = SnapshotRanks(1)
    for _ in range(10):
        loads.ledgers[0].begin(100, 0.0)
    loads.read([Snapshot(EPOCH, received=6)], 0.1)
    assert in_flight(loads, 0.1) == (4, 400)
    loads.read([Snapshot(EPOCH + LOST_S, received=6)], LOST_S)
    assert in_flight(loads, LOST_S) == (4, 400)
    loads.read([Snapshot(EPOCH + LOST_S + 1, received=6)], LOST_S + 1)
    assert in_flight(loads, LOST_S + 1) == (0, 0)
    loads.ledgers[0].begin(50, LOST_S + 2)
    loads.read([Snapshot(EPOCH + LOST_S + 2, received=6)], LOST_S + 2)
    assert in_flight(loads, LOST_S + 2) == (1, 50)
    loads.read([Snapshot(EPOCH + LOST_S + 3, received=7)], LOST_S + 3)
    assert in_flight(loads, LOST_S + 3) == (0, 0)


def test_requests_that_others_sent_do_not_hide_ours() -> None:
    loads = SnapshotRanks(1)
    loads.read([Snapshot(EPOCH, received=3)], 0.0)
    loads.ledgers[0].begin(10, 0.1)
    loads.read([Snapshot(EPOCH + 1, received=3)], 0.2)
    assert in_flight(loads) == (1, 10)
    loads.read([Snapshot(EPOCH + 2, received=4)], 0.3)
    assert in_flight(loads) == (0, 0)


def test_what_is_remembered_of_a_dead_rank_is_bounded() -> None:
    loads = SnapshotRanks(1)
    for n in range(MOST_SENT + 500):
        loads.ledgers[0].begin(1, float(n))
    assert view(loads, 0.0).inflight == MOST_SENT
    loads.read([Snapshot(EPOCH, received=MOST_SENT + 499)], 1e9)
    assert view(loads, 1e9).inflight <= 1


class FakeRank:
    """A scheduler as far as snapshots go: it reads its socket at the start of each step."""

    def __init__(self) -> None:
        self.socket: deque[int] = deque()
        self.waiting: list[int] = []
        self.received = 0
        self.steps = 0

    def step(self) -> Snapshot:
        self.waiting += self.socket
        self.received += len(self.socket)
        self.socket.clear()
        self.steps += 1
        return self.published()

    def published(self) -> Snapshot:
        total = sum(self.waiting)
        return Snapshot(
            EPOCH + self.steps,
            num_waiting_reqs=len(self.waiting),
            num_waiting_uncached_tokens=total,
            num_total_tokens=total,
            received=self.received,
        )


@given(
    st.lists(
        st.sampled_from(["send", "step", "late step", "look", "finish"]), min_size=20, max_size=60
    )
)
def test_reading_plus_sent_is_always_what_there_is(events: list[str]) -> None:
    """Whatever is looked at when: nothing counts twice, and nothing is left out."""
    loads, rank, now = SnapshotRanks(1), FakeRank(), 0.0
    shown = rank.step()
    loads.read([shown], now)
    ended = sent = 0
    for n, event in enumerate(events):
        now += 0.01
        if event == "send":
            rank.socket.append(n)
            loads.ledgers[0].begin(n, now)
            sent += 1
        elif event == "step":
            shown = rank.step()
        elif event == "late step":
            # A request comes while the step runs: the snapshot after it is without it.
            shown = rank.step()
            rank.socket.append(n)
            loads.ledgers[0].begin(n, now)
            sent += 1
        elif event == "finish" and rank.waiting:
            rank.waiting.pop()
            ended += 1
            rank.steps += 1
            shown = rank.published()
        else:
            loads.read([shown], now)
            load = view(loads, now).load
            assert load is not None
            assert load.sent_requests == sent - shown.received
            assert load.sent_tokens == sum(rank.socket)
            assert load.waiting == shown.num_waiting_reqs
    loads.read([rank.step()], now + 1)
    load = view(loads, now + 1).load
    assert load is not None
    assert (load.sent_requests, load.sent_tokens) == (0, 0)
    assert load.requests == sent - ended
    assert load.waiting_tokens == sum(rank.waiting)


numbers = st.one_of(st.integers(-10, 10**6), st.sampled_from([2**40, 2**62, -(2**62)]))
snapshots = st.builds(
    Snapshot,
    timestamp=st.one_of(st.floats(EPOCH, EPOCH + 5), st.sampled_from([0.0, nan, inf, -inf])),
    dp_rank=st.integers(-1, 3),
    num_running_reqs=numbers,
    num_waiting_reqs=numbers,
    num_waiting_uncached_tokens=numbers,
    num_used_tokens=numbers,
    num_total_tokens=numbers,
    max_total_num_tokens=numbers,
    max_running_requests=numbers,
    received=numbers,
)


@pytest.mark.parametrize("name", ["br0", "gimbal", "shortest_queue", "least_tokens"])
@given(
    events=st.lists(
        st.one_of(snapshots, st.tuples(st.integers(0, 2), st.integers(-5, 10**6))),
        min_size=13,
        max_size=40,
    )
)
def test_whatever_is_published_a_policy_decides_and_nothing_is_negative(
    name: str, events: list[Any]
) -> None:
    loads, policy, now = SnapshotRanks(3), make_policy(name), 0.0
    for event in events:
        now += 0.5
        if isinstance(event, Snapshot):
            loads.read([event], now)
        else:
            loads.ledgers[event[0]].begin(event[1], now)
        seen_by = views(loads, [True] * 3, now)
        for seen in seen_by:
            assert seen.inflight >= 0 and seen.inflight_tokens >= 0
            if seen.load is not None:
                assert seen.load.sent_requests >= 0 and seen.load.sent_tokens >= 0
                assert seen.load.waiting_tokens >= 0
        assert policy.choose(seen_by, RequestView(prompt_tokens=10, now=now)) is not None


@pytest.mark.parametrize("name", ["br0", "brh@survival", "gimbal"])
def test_a_rank_that_stops_publishing_counts_as_loaded(name: str) -> None:
    """It had next to nothing, the others are half full: as an empty one it would get everything."""
    loads, policy = SnapshotRanks(3), make_policy(name)
    loads.read([Snapshot(dp_rank=rank) for rank in range(3)], 0.0)
    now = STALE_S + 1.0
    full = POOL * 95 // 100 if name == "gimbal" else POOL // 2
    used = [full, full - 20]
    chosen: list[Any] = []
    for n in range(20):
        now += 0.1
        loads.read(
            [
                Snapshot(EPOCH + now, dp_rank=rank, num_used_tokens=used[rank],
                         num_total_tokens=used[rank], received=chosen.count(rank))
                for rank in range(2)
            ],
            now,
        )  # fmt: skip
        decision = policy.choose(
            views(loads, [True] * 3, now), RequestView(prompt_tokens=10, user=f"u{n}", now=now)
        )
        assert decision is not None
        loads.ledgers[decision.index].begin(10, now)
        chosen.append(decision.index)
    share = chosen.count(2)
    # Gimbal's rotation may give it its turn; nobody takes it for its emptiness.
    assert share == 0 if name != "gimbal" else share <= 7, chosen
