"""The order of a waiting queue, without SGLang: stamps, matches, priorities, the shared clock."""

import random
from collections.abc import Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches.base import PatchError
from patches.pd import waiting_queue
from patches.pd.waiting_order import MATCHES_A_ROUND, WaitingOrder, arrived
from patches.pd.waiting_queue import LOG_EVERY_MS, TICK_MS, Tick, WaitingState
from patches.scheduler_state import current
from toolkit.policies.sjf import ShortestFirst


def req(rid: str, prompt: int, priority: int | None = None, output: int = 0) -> Any:
    """The part of SGLang's Req that the order looks at."""
    return SimpleNamespace(
        rid=rid,
        origin_input_ids=[0] * prompt,
        output_ids=[0] * output,
        num_matched_prefix_tokens=0,
        priority=priority,
    )


def ids(queue: list[Any]) -> str:
    return "".join(each.rid for each in queue)


def test_the_shortest_first_then_who_has_waited() -> None:
    order = WaitingOrder(ShortestFirst(5000))
    long, short = req("l", 900), req("s", 20)
    arrived(long, 1000)
    queue = [long, short]
    order.sort(queue, 3000)
    assert ids(queue) == "sl"
    order.sort(queue, 5999)
    assert ids(queue) == "sl"
    order.sort(queue, 6000)
    assert ids(queue) == "ls", "it has waited 5 s"
    assert order.tally.aged == 1 and order.tally.reordered == 2
    assert order.tally.longest == 5000 and order.tally.rounds == 3


def test_what_is_cached_costs_nothing_and_output_that_was_retracted_does() -> None:
    order = WaitingOrder(ShortestFirst(5000))
    hit, whole, retracted = req("h", 500), req("w", 60), req("r", 30, output=40)
    hit.num_matched_prefix_tokens = 450
    queue = [retracted, whole, hit]
    order.sort(queue, 0)
    assert ids(queue) == "hwr"


def test_who_comes_back_keeps_its_age() -> None:
    order = WaitingOrder(ShortestFirst(5000))
    long = req("l", 900)
    arrived(long, 0)
    arrived(long, 4000)
    queue = [req("s", 5), long]
    order.sort(queue, 5000)
    assert ids(queue) == "ls"


@pytest.mark.parametrize(
    ("sign", "priorities", "expected"),
    [
        (0, (None, None, None), "bca"),
        (0, (5, -5, 7), "bca"),  # the server ignores them
        (1, (2, 1, 2), "cab"),  # a greater one goes first
        (-1, (2, 1, 2), "bca"),  # a smaller one does
        (-1, (1, 2, 2), "abc"),
    ],
)
def test_priorities_as_the_server_reads_them(
    sign: int, priorities: tuple[int | None, ...], expected: str
) -> None:
    order = WaitingOrder(ShortestFirst(5000))
    lengths = zip("abc", (30, 10, 20), priorities, strict=True)
    queue = [req(name, length, priority) for name, length, priority in lengths]
    order.sort(queue, 0, sign)
    assert ids(queue) == expected


def test_no_more_is_matched_than_the_limit_and_everybody_in_turn() -> None:
    order = WaitingOrder(ShortestFirst(5000))
    queue = [req(f"{n:04}", 100) for n in range(3 * MATCHES_A_ROUND - 10)]
    for at, each in enumerate(queue):
        arrived(each, at)
    rounds: list[list[str]] = []

    def match(counter: int) -> list[str]:
        seen: list[str] = []
        order.match(queue, counter, lambda each: seen.append(each.rid))
        rounds.append(seen)
        return seen

    for _ in range(3):
        match(100)
    assert [len(seen) for seen in rounds] == [MATCHES_A_ROUND, MATCHES_A_ROUND, 118]
    assert sorted(chain.from_iterable(rounds)) == [each.rid for each in queue], "each once"
    assert rounds[0] == [each.rid for each in queue[:MATCHES_A_ROUND]], "the oldest first"
    assert match(100) == [], "no prefill since: nothing can have changed"
    queue.append(req("new", 5))
    seen = match(200)
    assert seen[0] == "new" and seen[1:] == rounds[0][: MATCHES_A_ROUND - 1]


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 9), st.sampled_from([-1, 0, 0, 3])),
        min_size=100,
        max_size=300,
    ),
    st.sampled_from([0, 1, -1]),
    st.integers(0, 20),
    st.randoms(use_true_random=False),
)
def test_every_rank_has_the_same_order_and_asks_its_cache_the_same(
    entries: list[tuple[int, int, int]], sign: int, clock: int, shuffle: random.Random
) -> None:
    """Two ranks whose copies of the queue are arranged differently, over rounds of prefill."""

    def rank(arrange: bool) -> Iterator[tuple[list[str], list[str]]]:
        order, asked = WaitingOrder(ShortestFirst(5)), []
        queue = [req(f"{n}", length, priority) for n, (length, _, priority) in enumerate(entries)]
        for each, (_, since, _) in zip(queue, entries, strict=True):
            arrived(each, since)

        def match(each: Any) -> None:
            asked.append(each.rid)
            each.num_matched_prefix_tokens = len(asked) % (len(each.origin_input_ids) + 1)

        counter = 0
        while queue:
            if arrange:
                shuffle.shuffle(queue)
            order.match(queue, counter, match)
            order.sort(queue, clock + counter // 50, sign)
            yield [each.rid for each in queue], list(asked)
            counter += sum(len(each.origin_input_ids) for each in queue[:40])
            del queue[:40]

    for one, other in zip(rank(False), rank(True), strict=True):
        assert one == other


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> WaitingState:
    """This process as a rank that orders its queue."""
    made = WaitingState(WaitingOrder(ShortestFirst(5000)), read=True)
    monkeypatch.setitem(current().parts, WaitingState, made)
    return made


def test_the_leading_ranks_clock_reaches_the_others(
    state: WaitingState, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(waiting_queue.time, "monotonic", lambda: now[0])  # type: ignore[attr-defined]
    sent: list[list[Any]] = []

    def broadcast(_receiver: Any, local_reqs: Any) -> list[Any]:
        sent.append(list(local_reqs or ()))
        return ["request", *sent[-1]]

    monkeypatch.setattr(waiting_queue, "_leads", lambda: True)
    assert waiting_queue._share_clock(broadcast, None, local_reqs=["abort"]) == ["request", "abort"]
    assert sent[-1] == ["abort", Tick(100_000)] and state.clock == 100_000
    now[0] += (TICK_MS - 1) / 1000
    assert waiting_queue._share_clock(broadcast, None) == ["request"]
    assert sent[-1] == [] and state.clock == 100_000, "not in every pass"
    now[0] += 0.0011
    waiting_queue._share_clock(broadcast, None)
    assert state.clock == 100_000 + TICK_MS

    monkeypatch.setattr(waiting_queue, "_leads", lambda: False)
    now[0] += 50  # another machine's clock: nothing to this rank
    assert waiting_queue._share_clock(lambda *_: ["request", Tick(7)], None) == ["request"]
    assert state.clock == 7
    assert waiting_queue._share_clock(lambda *_: [], None) == [], "SGLang skipped receiving"
    assert state.clock == 7


def test_without_the_variable_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(current().parts, WaitingState, WaitingState())
    monkeypatch.delenv("TOOLKIT_WAITING", raising=False)
    calls: list[Any] = []

    def original(*arguments: Any) -> Any:
        calls.append(arguments)
        return ["result"]

    anything: Any = "policy"
    assert waiting_queue._share_clock(original, "receiver", ["abort"]) == ["result"]
    one, two = req("b", 9), req("a", 1)
    queue = [one, two]
    waiting_queue._note_arrival(original, "scheduler", one)  # type: ignore[arg-type]
    assert not vars(one).keys() - vars(req("", 0)).keys()
    waiting_queue._shortest_first(original, anything, queue, None, 5)
    assert queue == [one, two]
    assert calls == [
        ("receiver", ["abort"]),
        ("scheduler", one),
        ("policy", queue, None, 5),
    ]


def test_scarce_metadata_buffers_are_given_out_in_order(state: WaitingState) -> None:
    def queue(free: int, **scheduler: bool) -> Any:
        return SimpleNamespace(
            queue=[req("a", 30, 1), req("b", 10, 1), req("c", 20, 2)],
            req_to_metadata_buffer_idx_allocator=SimpleNamespace(available_size=lambda: free),
            scheduler=SimpleNamespace(
                **{"enable_priority_scheduling": False, "schedule_low_priority_values_first": False}
                | scheduler
            ),
        )

    def popped(waiting: Any) -> str:
        return str(waiting_queue._share_out_buffers(lambda it, **_: ids(it.queue), waiting))

    assert popped(queue(3)) == "abc", "there is one for each"
    assert popped(queue(2)) == "bca"
    assert popped(queue(2, enable_priority_scheduling=True)) == "cba"
    low = {"enable_priority_scheduling": True, "schedule_low_priority_values_first": True}
    assert popped(queue(0, **low)) == "bac"


def test_it_says_what_it_does_once_a_minute(
    state: WaitingState, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting_queue, "_leads", lambda: True)
    policy = SimpleNamespace(tree_cache=None, enable_priority_scheduling=False, priority_sign=-1)
    state.clock = 10 * LOG_EVERY_MS
    with caplog.at_level("INFO", "toolkit.waiting"):
        for _ in range(40):
            queue = [req("long", 40), req("short", 4)]
            for each in queue:
                arrived(each, state.clock - 6000)
            waiting_queue._shortest_first(lambda *_: None, policy, queue, None, 0)
            state.clock += LOG_EVERY_MS // 20
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "2 requests reached the age of 5 s, longest wait 6.0 s" in lines[0]


def check(
    monkeypatch: pytest.MonkeyPatch, text: str, shares: bool = True, **flags: Any
) -> str | None:
    """What `check_worker` refuses with; None when it takes the worker."""

    class Refused(Exception):
        pass

    def refuse(reason: str) -> None:
        raise Refused(reason)

    monkeypatch.setattr(waiting_queue, "refuse", refuse)
    monkeypatch.setattr(waiting_queue, "_shares_clock", lambda: shares)
    monkeypatch.setenv("TOOLKIT_WAITING", text)
    usual = {"disaggregation_mode": "prefill", "schedule_policy": "fcfs", "pp_size": 1}
    try:
        waiting_queue.check_worker(SimpleNamespace(**usual | flags))
    except Refused as error:
        return str(error)
    return None


def test_workers_that_cannot_order_their_queue_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for text in ("", "sjf", "sjf:5", "sjf:0.5:60", " sjf:0 "):
        assert check(monkeypatch, text) is None
    for text in ("sfj", "sjf:", "sjf:-1", "sjf:inf", "sjf:nan", "sjf:1:2:3", "5", "fcfs:5"):
        assert "such as sjf:5" in str(check(monkeypatch, text)), text
    assert check(monkeypatch, "sjf", disaggregation_mode="null") is None
    assert "prefills nothing" in str(check(monkeypatch, "sjf", disaggregation_mode="decode"))
    assert "--schedule-policy lpm" in str(check(monkeypatch, "sjf", schedule_policy="lpm"))
    assert "--pp-size 2" in str(check(monkeypatch, "sjf", pp_size=2))
    assert check(monkeypatch, "", schedule_policy="lpm", pp_size=2) is None
    assert "from 0.5.20 on" in str(check(monkeypatch, "sjf:5", shares=False))
    assert check(monkeypatch, "", shares=False) is None


def test_what_the_scheduler_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, age, class_age in (("sjf", 5000, None), ("sjf:2.5:60", 2500, 60_000)):
        monkeypatch.setitem(current().parts, WaitingState, WaitingState())
        monkeypatch.setenv("TOOLKIT_WAITING", text)
        order = waiting_queue._order()
        assert order is not None and order.order.theta_age == age
        assert order.order.theta_class == (float("inf") if class_age is None else class_age)
        assert waiting_queue._order() is order
    monkeypatch.setenv("TOOLKIT_WAITING", "lpm")
    with pytest.raises(PatchError, match="TOOLKIT_WAITING=lpm"):
        waiting_queue.wanted()
