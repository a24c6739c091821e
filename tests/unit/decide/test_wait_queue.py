"""Whoever waits keeps its place; best-effort requests wait behind all others, and not for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolkit.decide.requests import RequestState
from toolkit.decide.wait_queue import WAIT_LIMIT, WaitQueue
from toolkit.policies.base import RequestView


def request(number: int = 0) -> RequestState:
    return RequestState(number, RequestView(), "split", True, 0.0, 0.0)


@given(st.lists(st.sampled_from(["other", "effort", "go", "leave"]), min_size=20, max_size=60))
def test_they_go_in_order_of_arrival_and_best_effort_ones_behind_all_others(
    steps: list[str],
) -> None:
    queue = WaitQueue()
    waits: dict[bool, list[RequestState]] = {False: [], True: []}
    for number, step in enumerate(steps):
        if step in ("other", "effort"):
            one = request(number)
            queue.enter(one, best_effort=step == "effort")
            waits[step == "effort"].append(one)
        elif waits[False] or waits[True]:
            kind = not waits[False]
            one = waits[kind].pop(0 if step == "go" else -1)
            if step == "go":
                assert queue.head is one
            queue.leave(one)
        for best_effort in (False, True):
            one, leads = request(), queue.would_lead(best_effort)
            queue.enter(one, best_effort)
            assert leads == (queue.head is one)
            (queue._behind if best_effort else queue._places).pop(one)
        assert list(queue) == [*waits[False], *waits[True]]
        assert len(queue) == len(waits[False]) + len(waits[True])


def test_a_best_effort_one_is_first_when_enough_others_went_before_it() -> None:
    queue, effort, second = WaitQueue(), request(), request()
    queue.enter(effort, best_effort=True)
    queue.enter(second, best_effort=True)
    for _ in range(WAIT_LIMIT):
        other = request()
        queue.enter(other)
        assert queue.head is other
        queue.leave(other)
    other = request()
    queue.enter(other)
    assert queue.head is effort
    queue.leave(effort)
    assert queue.head is other
