"""The decider over random sequences of messages, faults included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from tests.unit.decide.hosting import BOUNDS, MOVES, DeciderHost, Running
from toolkit.contract.request_class import RequestClass
from toolkit.decide import messages as m
from toolkit.decide.moves import AT_A_TIME
from toolkit.decide.wait_queue import WAIT_LIMIT

POLICIES = ["shortest_queue", "round_robin", "br0", "brh@survival", "pooled@shortest_queue"]
ACTIONS = [
    "arrive", "arrive", "arrive", "one_token", "prefilled", "prefilled", "serve", "leave", "fail",
    "busy", "answer", "died", "down", "up", "held_up", "read", "time", "hold", "unhold", "prove",
    "restart", "count", "count", "policy", "late", "early", "heard", "replaced", "shared",
    "transfer", "transfer", "silent", "reborn",
]  # fmt: skip
MOVING = [
    "begin", "begin", "begin", "read_all", "read_all", "time", "ask", "ask_policy", "moved",
    "moved", "replayed", "replayed", "kept", "again", "empty", "enough", "serve", "leave", "fail",
    "died", "restart", "policy", "count", "replaced",
]  # fmt: skip
KINDS: dict[str, m.FailureKind] = {
    "fail": "lost", "busy": "busy", "answer": "answer", "transfer": "transfer", "silent": "silent",
}  # fmt: skip
# Without a least size most lists are of five.
STEPS, MOVES_STEPS = (
    st.lists(st.tuples(st.sampled_from(each), st.integers(0, 31)), min_size=30, max_size=120)
    for each in (ACTIONS, MOVING)
)


def play(host: DeciderHost, actions: Sequence[tuple[str, int]]) -> None:
    """Let it all happen, as far as it can."""
    workers = sorted(host.ranks.workers)
    for what, which in actions:
        worker = workers[which % len(workers)]
        running = list(host.running.values())
        one = running[which % len(running)] if running else None
        if what in ("arrive", "one_token"):
            host.arrive(50 * which + 1, streams=which % 3 > 0, one_token=what == "one_token")
        elif what == "prefilled" and one is not None and one.waits and one.prefill is not None:
            host.prefilled(one)
        elif what == "serve" and one is not None and one.decode is not None:
            host.serve(one)
        elif what == "leave" and one is not None:
            host.leave(one)
        elif what in KINDS and one is not None and one.calls:
            host.fail(one, one.calls[which % len(one.calls)], KINDS[what])
        elif what == "prove" and one is not None and one.decode is not None:
            host.tell(m.Proven(one.number, one.decode, decode=True))
        elif what == "died":
            host.tell(m.WorkerDied(worker, crashed=which % 2 == 0))
            host.tell(m.WorkerDown(worker))
        elif what == "down":
            host.tell(m.WorkerDown(worker))
        elif what == "up":
            host.tell(m.WorkerUp(worker))
        elif what in ("restart", "reborn"):
            host.tell(m.WorkerGreeted(worker, slots=4, anew=what == "reborn"))
            host.tell(m.WorkerUp(worker))
        elif what == "held_up":
            host.tell(m.WorkerHeldUp(worker))
        elif what == "heard":
            host.tell(m.WorkerHeard(worker))
        elif what == "count" and one is not None and one.decode is not None and one.decode.counts:
            host.tell(m.TokensCame(((one.decode, which + 1),)))
            one.generated += which + 1
        elif what == "replaced":
            host.replace(workers_first=which % 2 == 0)
        elif what == "shared":
            host.shared(worker, which % 5)
        elif what == "begin":
            begun = host.arrive(50 * which + 1)
            host.prefilled(begun)
            host.settle()
        elif what == "read_all":
            for name in workers:
                host.read(name)
        elif what == "ask" and one is not None:
            host.ask(one, f"decode-{which % len(host.ranks.of('decode'))}")
        elif what == "ask_policy" and one is not None:
            host.ask(one, None)
        elif what in ("moved", "replayed", "kept", "again"):
            movers = [each for each in running if each.move is not None]
            if movers:
                end_move(host, movers[which % len(movers)], what)
        elif what in ("empty", "enough"):
            host.tell(m.Hold(((worker, 0),), on=what == "empty"))
            host.tell(m.Empty(((worker, 0),), on=what == "empty"))
        elif what == "policy":
            host.use(POLICIES[which % len(POLICIES)])
        elif what in ("late", "early"):
            host.tell(m.UseDispatch(what == "late"))
        elif what == "read":
            host.read(worker)
        elif what in ("hold", "unhold"):
            host.tell(m.Hold(((worker, 0),), on=what == "hold"))
        elif what == "time":
            host.pass_time((0.0, 0.005, 0.3, 2.0)[which % 4])
        bounded(host)


def end_move(host: DeciderHost, one: Running, how: str) -> None:
    """A move that is under way comes to its end."""
    if how == "moved":
        host.moved(one)
    elif how == "replayed":
        host.replayed(one)
    else:
        host.kept(one, again=how == "again")


def bounded(host: DeciderHost) -> None:
    """What holds at all times."""
    for worker in host.ranks.workers.values():
        for rank in worker.ranks:
            assert 1 <= rank.worker.share <= rank.worker.spec.parked
            held = sum(one.credit is rank for one in host.decider.attempts.requests.values())
            assert rank.credit == rank.worker.share - held
            assert rank.inflight >= 0
            assert rank.best_effort_requests == rank.best_effort_tokens == 0
    assert 0 <= host.decider.attempts.parked <= len(host.running)
    moves = [one.move for one in host.running.values() if one.move is not None]
    sources = Counter(one.decode.rank for one in host.running.values() if one.move and one.decode)
    targets = Counter(move.rank for move in moves)
    assert all(count <= AT_A_TIME for count in (sources | targets).values())
    assert len(host.decider.moves.under_way) == len(moves)


def finish(host: DeciderHost) -> None:
    """All workers come back, and whatever runs is served."""
    for name in host.ranks.workers:
        host.tell(m.Hold(((name, 0),), on=False))
        host.tell(m.Empty(((name, 0),), on=False))
        host.tell(m.WorkerGreeted(name, slots=4))
        host.tell(m.WorkerUp(name))
    for _ in range(400):
        for name in host.ranks.workers:
            host.read(name)
        host.pass_time(0.5)
        for running in list(host.running.values()):
            if running.number not in host.running:
                continue
            if running.decode is not None:
                host.serve(running)
            elif running.waits and running.prefill is not None:
                host.prefilled(running)
        if not host.running:
            return
    raise AssertionError(f"these wait for ever: {sorted(host.running)}")


@settings(max_examples=examples(300), deadline=None)
@given(STEPS, st.sampled_from(POLICIES), st.integers(1, 2), st.integers(1, 3), st.integers(1, 3))
def test_every_request_ends_once_and_every_count_returns_to_zero(
    actions: list[tuple[str, int]], policy: str, prefills: int, decodes: int, parked: int
) -> None:
    host = DeciderHost(prefills, decodes, slots=4, parked=parked, policy=policy)
    play(host, actions)
    finish(host)
    all_is_over(host, parked)


@settings(max_examples=examples(300), deadline=None)
@given(MOVES_STEPS, st.sampled_from(POLICIES), st.integers(2, 3), st.booleans())
def test_moves_lose_nothing_and_everybody_who_asks_hears_of_it(
    actions: list[tuple[str, int]], policy: str, decodes: int, by_itself: bool
) -> None:
    bounds = replace(BOUNDS, moves=MOVES if by_itself else None)
    host = DeciderHost(1, decodes, slots=8, parked=8, policy=policy, bounds=bounds)
    play(host, actions)
    finish(host)
    all_is_over(host, 8)
    assert all(len(how) == 1 for how in host.asked.values())
    moves = host.decider.moves
    assert not moves.under_way and not moves._asks and not moves._seen and not moves._rests


def all_is_over(host: DeciderHost, parked: int) -> None:
    """Every request has ended once, and nothing is left of it."""
    assert all(len(how) == 1 for how in host.ended.values())
    assert sorted(host.ended) == list(range(1, host.count + 1))
    for worker in host.ranks.workers.values():
        for rank in worker.ranks:
            assert (rank.inflight, rank.inflight_tokens) == (0, 0)
            assert rank.credit == max(1, parked // max(1, host.routers.get(worker.name, 1)))
            assert rank.unstreamed == {}
    assert host.decider.attempts.parked == 0
    assert host.decider.attempts.requests == {}
    assert host.decider.pool is None or len(host.decider.pool) == 0
    following = host.decider.choosing.following
    assert following is None or len(following) == 0


@settings(max_examples=examples(100), deadline=None)
@given(STEPS, st.sampled_from(POLICIES))
def test_the_same_messages_give_the_same_orders(
    actions: list[tuple[str, int]], policy: str
) -> None:
    one, other = (DeciderHost(policy=policy) for _ in range(2))
    play(one, actions)
    play(other, actions)
    assert one.orders == other.orders


@settings(max_examples=examples(100), deadline=None)
@given(STEPS, st.integers(1, 3))
def test_a_plain_worker_does_all(actions: list[tuple[str, int]], workers: int) -> None:
    host = DeciderHost(decodes=workers, plain=True)
    play(host, [(what, which) for what, which in actions if what != "one_token"])
    finish(host)
    assert all(len(how) == 1 for how in host.ended.values())


@pytest.mark.parametrize("policy", ["br0", "pooled@shortest_queue"])
def test_no_rank_gets_more_than_it_has_slots(policy: str) -> None:
    host = DeciderHost(decodes=2, slots=2, parked=8, policy=policy)
    requests = [host.arrive() for _ in range(6)]
    for request in requests:
        host.prefilled(request)
    host.settle()
    assert [rank.inflight for rank in host.ranks.of("decode")] == [2, 2]
    host.serve(requests[0])
    host.settle()
    assert [rank.inflight for rank in host.ranks.of("decode")] == [2, 2]


def test_a_prefill_waits_for_a_credit_in_order_of_arrival() -> None:
    host = DeciderHost(parked=1)
    first, second, third = (host.arrive() for _ in range(3))
    assert (first.prefill, second.prefill) == (first.prefill, None)
    host.leave(second)
    host.prefilled(first)  # its KV goes to a decode worker: the credit is back
    assert third.prefill is not None


def test_several_routers_share_the_prefills_that_may_be_parked() -> None:
    host = DeciderHost(parked=4)
    running = [host.arrive() for _ in range(4)]
    assert all(each.prefill is not None for each in running)
    host.shared("prefill-0", 2)
    more = [host.arrive() for _ in range(3)]
    for each in running[:2]:  # their KV leaves: two are parked, which is this router's share
        host.prefilled(each)
    host.settle()
    assert all(each.prefill is None for each in more), "another router may have two there"
    host.prefilled(running[2])
    host.settle()
    assert [each.prefill is not None for each in more] == [True, False, False]
    host.shared("prefill-0", 1)
    assert all(each.prefill is not None for each in more), "the other router has gone"


def test_where_a_share_is_one_best_effort_requests_may_have_it() -> None:
    host = DeciderHost(parked=4, bounds=replace(BOUNDS, kept_back=2))
    host.shared("prefill-0", 9)
    assert host.arrive(request_class=RequestClass.BEST_EFFORT).prefill is not None


def test_a_credit_that_is_kept_back_is_taken_at_once_while_best_effort_ones_wait() -> None:
    host = DeciderHost(parked=2, bounds=replace(BOUNDS, kept_back=1))
    effort = [host.arrive(request_class=RequestClass.BEST_EFFORT) for _ in range(2)]
    other = host.arrive()
    assert [each.prefill is not None for each in (*effort, other)] == [True, False, True]
    host.prefilled(effort[0])
    host.settle()
    assert effort[1].prefill is None, "that one is kept back"
    host.prefilled(other)
    host.settle()
    assert effort[1].prefill is not None


def test_those_who_take_it_at_once_do_not_hold_up_a_best_effort_one_for_ever() -> None:
    host = DeciderHost(parked=2, slots=0, bounds=replace(BOUNDS, kept_back=1))
    blocked = host.arrive()
    waits = host.arrive(request_class=RequestClass.BEST_EFFORT)
    for _ in range(WAIT_LIMIT):
        assert blocked.prefill is not None and waits.prefill is None
        other = host.arrive()
        assert other.prefill is not None
        host.prefilled(other)
    behind = host.arrive()
    assert behind.prefill is None, "it is the turn of the best-effort one"
    host.prefilled(blocked)
    assert waits.prefill is not None and behind.prefill is not None


def test_without_a_decode_worker_nothing_is_prefilled_and_the_client_hears_when_to_come() -> None:
    host = DeciderHost(decodes=1)
    host.tell(m.WorkerDown("decode-0"))
    waiting = host.arrive()
    assert waiting.prefill is None
    host.pass_time(BOUNDS.no_worker_wait_s + 0.1)
    assert host.ended[waiting.number] == ["nobody"]
    late = host.arrive()
    host.tell(m.WorkerUp("decode-0"))
    assert late.prefill is not None


def test_a_request_that_kills_two_workers_is_not_run_again() -> None:
    host = DeciderHost(decodes=3)
    request = host.arrive()
    for _ in range(2):
        host.prefilled(request)
        assert request.decode is not None
        call = request.decode
        host.tell(m.WorkerDied(call.rank.worker.name, crashed=True))
        host.tell(m.WorkerDown(call.rank.worker.name))
        host.fail(request, call)
        host.pass_time(1.0)
    assert host.ended[request.number] == ["poisonous"]
    assert host.decider.attempts.retries.quarantine


def test_a_prefill_whose_worker_goes_away_is_given_a_moment_to_say_that_it_is_lost() -> None:
    host = DeciderHost(prefills=2)
    request = host.arrive()
    call = request.prefill
    assert call is not None
    host.tell(m.WorkerDown(call.rank.worker.name))
    assert request.decode is None
    host.fail(request, call)
    host.pass_time(1.0)
    assert request.prefill is not None
    assert request.prefill.rank.worker.name != call.rank.worker.name


def test_a_suspect_waits_for_probation_rather_than_go_back_to_where_it_failed() -> None:
    host = DeciderHost(decodes=2)
    first, second = host.arrive(), host.arrive()
    sick, well = "decode-0", "decode-1"
    choosing, request = host.decider.choosing, host.decider.attempts.requests[first.number]
    request.record.strikes.append(("answer", sick))
    request.avoid.add(sick)
    assert choosing.usable("decode", request, host.now) == [False, True]
    other = host.decider.attempts.requests[second.number]
    choosing.probation.take(well, other)
    assert choosing.usable("decode", request, host.now) == [False, False]
    request.record.strikes[0] = ("transfer", sick)  # may be the other side's doing
    assert choosing.usable("decode", request, host.now) == [True, False]
    request.record.strikes[0] = ("answer", sick)
    choosing.probation.leave(other)
    assert choosing.usable("decode", request, host.now) == [False, True]
    host.tell(m.WorkerDown(well))
    assert choosing.usable("decode", request, host.now) == [True, False], "the last resort"


def test_a_suspect_that_waits_for_a_credit_gets_the_next_one() -> None:
    """Those who wait as ordinary requests do not keep it from that, and they are not forgotten."""
    host = DeciderHost(parked=1, decodes=3)
    suspect = host.arrive()
    host.prefilled(suspect)
    runs, waits = host.arrive(), host.arrive()
    assert suspect.decode is not None
    call = suspect.decode
    host.tell(m.WorkerDied(call.rank.worker.name, crashed=True))
    host.tell(m.WorkerDown(call.rank.worker.name))
    host.fail(suspect, call)
    host.pass_time(1.0)
    assert (suspect.prefill, waits.prefill) == (None, None)
    host.prefilled(runs)
    assert suspect.prefill is not None and waits.prefill is None
    host.prefilled(suspect)
    assert waits.prefill is not None


def test_a_suspect_with_a_prefill_worker_takes_the_decode_worker_that_is_free() -> None:
    """It did not look while others waited for the worker that it had: all waited for ever."""
    host = DeciderHost(1, 1, parked=1)
    requests = [host.arrive() for _ in range(3)]
    host.tell(m.UseDispatch(late=False))
    for request in requests:
        host.prefilled(request)
    host.settle()
    for request in requests:
        assert request.prefill is not None
        host.fail(request, request.prefill, "answer")
    finish(host)
    assert [host.ended[request.number] for request in requests] == [["served"]] * 3


def test_a_policy_that_fails_leaves_nobody_who_asks_for_a_move_without_a_word() -> None:
    host = DeciderHost(1, 2, slots=8, parked=8)
    requests = [host.arrive() for _ in range(2)]
    for request in requests:
        host.prefilled(request)
    for name in host.ranks.workers:
        host.read(name)
    host.settle()

    def fails(*_: object) -> None:
        raise RuntimeError

    host.decider.choosing.policies["decode"].choose = fails  # type: ignore[method-assign, assignment]
    for request in requests:
        host.ask(request, None)
    assert list(host.asked.values()) == [["kept"], ["kept"]]


def test_passes_that_take_long_are_made_more_seldom() -> None:
    host = DeciderHost(1, 2, bounds=replace(BOUNDS, moves=MOVES))
    waits = []
    for took_s in (0.0, 0.0, 0.1):
        assert host.decider.due is not None
        host.now = host.decider.due
        host.tell(m.TimePassed(took_s))
        waits.append(host.decider.due - host.now)
    assert waits == pytest.approx([MOVES.every_s, MOVES.every_s, 20 * 0.1])
