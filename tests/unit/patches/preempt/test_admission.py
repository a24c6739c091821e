"""Who is in the next prefill batch, on a scheduler that takes what it is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches.classes import _CLASS
from patches.preempt import admission
from patches.preempt.admission import WAIT_LIMIT, Aside, _abort, _next_batch, _pending_abort
from patches.scheduler_state import current
from toolkit.contract.request_class import RequestClass

LS, STANDARD, BE = RequestClass.LATENCY_SENSITIVE, RequestClass.STANDARD, RequestClass.BEST_EFFORT


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    reset()
    yield
    reset()


def reset() -> None:
    current().keep(Aside())


def req(kind: RequestClass, name: str = "r", tokens: int = 1) -> Any:
    return SimpleNamespace(rid=name, left=tokens, finished=lambda: False, **{_CLASS: kind})


@dataclass
class Scheduler:
    """Takes up to `chunk` tokens, the half-done prompt first, as SGLang's does."""

    waiting_queue: list[Any]
    chunk: int = 4
    room: bool = True
    chunked_req: Any = None
    batches: list[list[Any]] = field(default_factory=list)
    aborted: list[Any] = field(default_factory=list)
    _pending_chunked_abort_req: Any = None

    def plain(self, running_batch: Any) -> Any:
        left, taken = self.chunk, []
        chunked, self.chunked_req = self.chunked_req, None
        for one in ([chunked] if chunked else []) + self.waiting_queue:
            if left <= 0 or not (self.room or one is chunked):
                break
            part = min(left, one.left)
            left, one.left = left - part, one.left - part
            taken.append(one)
            if one.left:
                self.chunked_req = one
        self.waiting_queue = [each for each in self.waiting_queue if each not in taken]
        if taken:
            self.batches.append(taken)
        return SimpleNamespace(batch_to_run=taken or None, running_batch=running_batch)

    def step(self, *running: Any) -> list[Any]:
        plan: Any = _next_batch(Scheduler.plain, self, SimpleNamespace(reqs=running))  # type: ignore[arg-type]
        return list(plan.batch_to_run or [])

    def abort(self, rid: str) -> None:
        def original(scheduler: Scheduler, recv_req: Any) -> None:
            if scheduler.chunked_req is not None and scheduler.chunked_req.rid == recv_req.rid:
                scheduler._pending_chunked_abort_req = scheduler.chunked_req

        _abort(original, self, SimpleNamespace(rid=rid, abort_all=False))  # type: ignore[arg-type]

    def pending_abort(self) -> None:
        def original(scheduler: Scheduler) -> None:
            if scheduler.chunked_req is scheduler._pending_chunked_abort_req is not None:
                scheduler.aborted.append(scheduler.chunked_req)
                scheduler.chunked_req = scheduler._pending_chunked_abort_req = None

        _pending_abort(original, self)  # type: ignore[arg-type]


KINDS = st.sampled_from([LS, STANDARD, BE])


@given(st.lists(st.tuples(KINDS, st.integers(1, 10)), max_size=14), st.integers(3, 6))
def test_batches_are_not_mixed_and_all_are_taken_in_order(
    asked: list[tuple[RequestClass, int]], chunk: int
) -> None:
    reset()
    waiting = [req(kind, str(n), tokens) for n, (kind, tokens) in enumerate(asked)]
    scheduler = Scheduler(list(waiting), chunk)
    while scheduler.step():
        best_effort_requests = {getattr(each, _CLASS) is BE for each in scheduler.batches[-1]}
        assert len(best_effort_requests) == 1
    assert not scheduler.waiting_queue and scheduler.chunked_req is None and aside() is None
    assert all(each.left == 0 for each in waiting)
    begun = list(dict.fromkeys(each.rid for batch in scheduler.batches for each in batch))
    others = [each.rid for each in waiting if getattr(each, _CLASS) is not BE]
    best_effort_requests_ = [each.rid for each in waiting if getattr(each, _CLASS) is BE]
    assert begun == others + best_effort_requests_


def aside() -> Any:
    """The prompt that is put aside."""
    return current().get(Aside).chunked


def test_between_two_chunks_others_go_first_and_the_prompt_goes_on() -> None:
    effort = req(BE, "effort", 10)
    scheduler = Scheduler([effort])
    assert scheduler.step() == [effort]
    other = req(STANDARD, "other", 6)
    scheduler.waiting_queue.append(other)
    assert scheduler.step() == [other] and aside() is effort
    assert scheduler.step() == [other] and scheduler.chunked_req is None
    assert [scheduler.step(), scheduler.step()] == [[effort], [effort]]
    assert effort.left == 0 and aside() is None


def test_where_others_find_no_room_the_half_done_prompt_goes_on() -> None:
    effort = req(BE, "effort", 10)
    scheduler = Scheduler([effort])
    scheduler.step()
    scheduler.waiting_queue.append(req(LS, "other"))
    scheduler.room = False
    assert scheduler.step() == [effort] and len(scheduler.waiting_queue) == 1


def test_best_effort_prompts_wait_for_the_answers_of_those_latency_sensitive() -> None:
    effort, latency_sensitive, standard = req(BE, "effort", 10), req(LS), req(STANDARD)
    scheduler = Scheduler([effort])
    assert scheduler.step(latency_sensitive) == [] and scheduler.step(standard) == [effort]
    assert scheduler.step(latency_sensitive, standard) == [] and aside() is effort
    for _ in range(WAIT_LIMIT - 1):
        assert scheduler.step(latency_sensitive) == []
    assert scheduler.step(latency_sensitive) == [effort]
    assert scheduler.step(standard) == [effort] and effort.left == 0


def test_best_effort_prompts_are_not_passed_over_for_ever() -> None:
    effort = req(BE, "effort")
    scheduler = Scheduler([effort], chunk=1)
    for number in range(WAIT_LIMIT):
        scheduler.waiting_queue += [req(LS, f"{number}a")]
        assert scheduler.step() != [effort]
    scheduler.waiting_queue += [req(LS, "last")]
    assert scheduler.step() == [effort]


@pytest.mark.parametrize("aborted", ["effort", "other"])
def test_a_prompt_that_was_put_aside_can_be_aborted(aborted: str) -> None:
    effort, other = req(BE, "effort", 10), req(LS, "other", 10)
    scheduler = Scheduler([effort])
    scheduler.step()
    scheduler.waiting_queue.append(other)
    scheduler.step()
    assert aside() is effort and scheduler.chunked_req is other
    scheduler.abort(aborted)
    scheduler.pending_abort()
    assert [each.rid for each in scheduler.aborted] == [aborted]
    assert (aside() is None) == (aborted == "effort")
    assert (scheduler.chunked_req is None) == (aborted == "other")
    while scheduler.step():
        pass
    assert [each.left == 0 for each in (effort, other)] == [
        name != aborted for name in ("effort", "other")
    ]


def test_the_patch_is_for_workers_that_were_told() -> None:
    assert admission.PATCH.variable
