"""Turns of clients: nobody starves, order within a client, counts that return to zero."""

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from toolkit.router.fair_queue import FairQueue, QueueTicket

CLIENTS = ["a", "b", "c", "d"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.sampled_from(CLIENTS), st.booleans()),
        st.tuples(st.just("next"), st.just(""), st.booleans()),
        st.tuples(st.just("end"), st.just(""), st.booleans()),
        st.tuples(st.just("give up"), st.sampled_from(CLIENTS), st.booleans()),
    ),
    max_size=120,
)


@given(STEPS, st.integers(2, 4))
@settings(max_examples=examples(300), deadline=None)
def test_turns(steps: Any, places: int) -> None:
    queue = FairQueue(places, each=8)
    waiting: dict[tuple[str, bool], deque[QueueTicket]] = {}
    running: list[QueueTicket] = []
    passed: dict[tuple[str, bool], dict[str, int]] = {}
    for what, client, flag in steps:
        lane = waiting.setdefault((client, flag), deque())
        if what == "enter":
            mine = sum(len(tickets) for (who, _), tickets in waiting.items() if who == client)
            ticket = queue.enter(client, flag)
            assert (ticket is None) == (mine >= 8)
            if ticket is not None:
                lane.append(ticket)
        elif what == "next":
            ticket = queue.next()
            able = [
                key
                for key, tickets in waiting.items()
                if tickets and not (key[1] and any(each.large for each in running))
            ]
            assert (ticket is not None) == (len(running) < places and bool(able))
            if ticket is None:
                continue
            running.append(ticket)
            key = (ticket.client, ticket.large)
            assert waiting[key].popleft() is ticket, "first come, first served within a client"
            passed.pop(key, None)
            for (who, large), tickets in waiting.items():
                if tickets and who != ticket.client and large == ticket.large:
                    counts = passed.setdefault((who, large), {})
                    counts[ticket.client] = counts.get(ticket.client, 0) + 1
                    assert counts[ticket.client] <= 1, "twice while another one waited"
        elif what == "end" and running:
            queue.leave(running.pop(0 if flag else -1))
        elif what == "give up" and lane:
            queue.leave(lane.pop())
            if not lane:
                passed.pop((client, flag), None)
        assert queue.running == len(running)
        assert queue.waiting == sum(map(len, waiting.values()))
        assert sum(each.large for each in running) <= 1
    for ticket in [*running, *(each for lane in waiting.values() for each in lane)]:
        queue.leave(ticket)
    assert (queue.running, queue.waiting, queue._waiting) == (0, 0, {})
    assert all(not line._clients for line in queue._lines)
    assert queue.enter("a") is not None and queue.next() is not None


def test_one_place_would_be_held_by_large_bodies() -> None:
    with pytest.raises(ValueError, match="two places"):
        FairQueue(1, 8)
