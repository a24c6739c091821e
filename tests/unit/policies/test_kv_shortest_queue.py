"""KV-token shortest queue: fewest tokens, then fewest requests; silent workers last."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies import Load, RequestView, WorkerView, make_policy


def worker(name: str, used: int, sent: int = 0, running: int = 1, waiting: int = 0) -> WorkerView:
    return WorkerView(name, load=Load(running, 0, used, 8192, waiting, int(sent > 0), sent))


def chosen(*workers: WorkerView) -> str:
    decision = make_policy("kv_shortest_queue").choose(workers, RequestView(100))
    assert decision is not None
    return workers[decision.index].name


@given(st.lists(st.tuples(*[st.integers(0, 4000)] * 3), min_size=1, max_size=6))
def test_nobody_has_fewer_tokens_than_who_is_chosen(tokens: Any) -> None:
    workers = [worker(str(i), used, sent, 1, late) for i, (used, sent, late) in enumerate(tokens)]
    assert sum(tokens[int(chosen(*workers))]) == min(map(sum, tokens))


def test_tokens_count_before_requests_and_break_no_tie_alone() -> None:
    assert chosen(worker("many", 100, running=9), worker("large", 500)) == "many"
    assert chosen(worker("more", 100, running=2), worker("fewer", 100)) == "fewer"


def test_what_was_sent_since_the_reading_counts() -> None:
    assert chosen(worker("sent", 100, sent=300), worker("b", 200)) == "b"


def test_a_silent_worker_is_not_an_empty_one() -> None:
    assert chosen(WorkerView("silent"), worker("full", 8000)) == "full"
    alone = (WorkerView("a", inflight_tokens=9), WorkerView("b", inflight_tokens=5))
    assert chosen(*alone) == "b"
