"""A worker as a latency-sensitive request finds it, whose best-effort requests give way."""

from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies.base import Load, WorkerView
from toolkit.policies.support.stoppable import all_full, without_best_effort

COUNT = st.integers(0, 50)


def test_what_is_left_is_what_does_not_give_way() -> None:
    load = Load(1, 4, 9000, 16000, 7000, sent_requests=1, sent_tokens=500)
    view = without_best_effort(
        WorkerView("p", inflight=5, inflight_tokens=8000, load=load), 3, 6000
    )
    assert (view.inflight, view.inflight_tokens, view.requests) == (2, 2000, 3)
    assert view.load is not None
    assert (view.load.waiting_tokens, view.load.used_tokens) == (2000, 9000)
    moved = without_best_effort(WorkerView("d", inflight=5, load=load), 3, 6000, moves=True).load
    assert moved is not None and moved.used_tokens == 3000


def test_full_are_workers_that_say_so() -> None:
    full = WorkerView("a", slots=2, inflight=2)
    assert all_full([full, WorkerView("b", healthy=False, slots=2)])
    assert not all_full([full, WorkerView("b", slots=2, inflight=1)])
    assert not all_full([full, WorkerView("plain", inflight=9)])


@given(COUNT, COUNT, st.tuples(COUNT, COUNT, COUNT), st.booleans())
def test_nobody_else_is_forgotten_and_nobody_is_invented(
    best_effort: int, others: int, read: tuple[int, int, int], known: bool
) -> None:
    running, waiting, sent = read
    load = Load(running, waiting, 0, 0, waiting * 10, sent, sent * 10) if known else None
    mine = best_effort + others
    before = WorkerView("p", inflight=mine, inflight_tokens=mine * 10, load=load)
    after = without_best_effort(before, best_effort, best_effort * 10)
    assert after.requests >= others
    assert after.requests <= max(before.requests, others)
    assert after.inflight == others and after.inflight_tokens == others * 10
    if known and before.requests >= mine:  # the reading has all of ours
        assert after.requests == before.requests - best_effort
