"""Which answers a decode worker pauses for whom, on a scheduler that keeps counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches.classes import _CLASS
from patches.preempt import answers, gave_way
from patches.preempt.answers import PausingState, _next_batch, _process_queue
from patches.scheduler_state import current
from toolkit.contract.preempting import Preempting
from toolkit.contract.request_class import RequestClass

LS, STANDARD, BE = RequestClass.LATENCY_SENSITIVE, RequestClass.STANDARD, RequestClass.BEST_EFFORT


@pytest.fixture(autouse=True)
def asked() -> Iterator[None]:
    current().get(PausingState).asked = Preempting(pauses=2, seconds=5.0)
    yield
    current().get(PausingState).asked = None


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """What was said of answers that stood still: how many, for how long."""
    said: list[tuple[int, float]] = []

    def tell(scheduler: Any, one: Any, kind: str, requests: int = 0, seconds: float = 0.0) -> None:
        assert kind == "answer" and one.rid
        said.append((requests, seconds))

    monkeypatch.setattr(gave_way, "tell", tell)
    return said


class Clock:
    now = 0.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(answers, "_now", lambda scheduler: Clock.now)
    Clock.now = 0.0
    return Clock()


def req(kind: RequestClass, name: str, left: int = 4, tokens: int = 10) -> Any:
    return SimpleNamespace(
        rid=name,
        left=left,
        seqlen=tokens,
        origin_input_ids=[0] * tokens,
        output_ids=[],
        beam_group=None,
        finished=lambda: False,
        **{_CLASS: kind},
    )


class Batch:
    """Those that decode."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.reqs, self.batch_is_full = scheduler, [], False  # type: ignore[var-annotated]

    def filter_batch(self, keep_indices: list[int] | None = None) -> None:
        if keep_indices is None:
            self.reqs = [each for each in self.reqs if each.left > 0]
        else:
            self.reqs = [self.reqs[at] for at in keep_indices]

    def is_empty(self) -> bool:
        return not self.reqs

    def batch_size(self) -> int:
        return len(self.reqs)

    def release_req(self, at: int, remaining: int) -> bool:
        return True


@dataclass
class Scheduler:
    """`slots` decode at a time, `room` KV tokens; KV is there as soon as it has room."""

    slots: int = 2
    room: int = 1000
    waiting_queue: list[Any] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.running_batch: Any = Batch(self)
        self.max_running_requests = self.slots
        self.req_to_token_pool = SimpleNamespace(size=self.slots, available_size=lambda: 4)
        self.disagg_decode_transfer_queue = SimpleNamespace(queue=[])
        self.disagg_decode_prealloc_queue: Any = SimpleNamespace(
            scheduler=self,
            queue=[],
            retracted_queue=[],
            _prealloc_required_tokens=lambda req: (len(req.origin_input_ids), 0),
            req_to_metadata_buffer_idx_allocator=SimpleNamespace(available_size=lambda: 1),
            _allocatable_token_budgets=lambda count_retracted: self.free,
        )

    @property
    def free(self) -> int:
        return int(
            self.room - sum(r.seqlen for r in [*self.running_batch.reqs, *self.waiting_queue])
        )

    def send(self, *reqs: Any) -> None:
        queue = self.disagg_decode_prealloc_queue.queue
        queue += [SimpleNamespace(req=each, waiting_for_input=True) for each in reqs]

    def _add_request_to_queue(self, each: Any, is_retracted: bool) -> None:
        assert is_retracted
        self.disagg_decode_prealloc_queue.retracted_queue.append(each)

    def step(self) -> list[str]:
        """One round of the loop; who decodes in it."""
        Clock.now += 1.0
        _process_queue(Scheduler.process, self)  # type: ignore[arg-type]
        _next_batch(Scheduler.next_batch, self, running_batch=self.running_batch)  # type: ignore[arg-type]
        for each in self.running_batch.reqs:
            each.left -= 1
            each.output_ids.append(0)
            if not each.left:
                self.said.append(each.rid)
        return [each.rid for each in self.running_batch.reqs]

    def process(self) -> None:
        """As SGLang's: retracted ones first, and nobody else while one of them is left."""
        queue = self.disagg_decode_prealloc_queue
        while queue.retracted_queue and self.free >= queue.retracted_queue[0].seqlen:
            self.waiting_queue.append(queue.retracted_queue.pop(0))
        if queue.retracted_queue:
            return
        while queue.queue and self.free >= queue.queue[0].req.seqlen:
            self.waiting_queue.append(queue.queue.pop(0).req)

    def next_batch(self, running_batch: Any) -> None:
        free = self.slots - len(running_batch.reqs)
        taken, self.waiting_queue = self.waiting_queue[:free], self.waiting_queue[free:]
        running_batch.reqs += taken
        running_batch.filter_batch()


def test_one_answer_stands_still_for_a_slot_and_goes_on(told: list[tuple[int, float]]) -> None:
    scheduler = Scheduler()
    scheduler.send(req(BE, "a", 6), req(BE, "b", 6))
    assert scheduler.step() == ["a", "b"]
    scheduler.send(req(LS, "hurry", 2))
    assert scheduler.step() == ["b", "hurry"]
    (paused,) = scheduler.disagg_decode_prealloc_queue.retracted_queue
    assert paused.rid == "a"
    for _ in range(12):
        scheduler.step()
    assert scheduler.said == ["hurry", "b", "a"]
    assert not scheduler.disagg_decode_prealloc_queue.retracted_queue
    (stopped, goes_on) = told
    assert stopped == (1, 0.0) and goes_on[0] == 0 and goes_on[1] > 0


def test_as_many_stand_still_as_free_the_kv_that_is_needed() -> None:
    scheduler = Scheduler(slots=8, room=100)
    scheduler.send(*(req(BE, f"e{n}", 9, tokens=30) for n in range(3)))
    scheduler.step()
    scheduler.send(req(LS, "hurry", 3, tokens=60))
    scheduler.step()
    assert len(scheduler.disagg_decode_prealloc_queue.retracted_queue) == 2
    assert "hurry" in scheduler.step()


def test_where_there_is_room_nobody_stands_still() -> None:
    scheduler = Scheduler(slots=3)
    scheduler.send(req(BE, "a"), req(BE, "b"))
    scheduler.step()
    scheduler.send(req(LS, "hurry"))
    assert scheduler.step() == ["a", "b", "hurry"]


def test_standard_requests_neither_pause_nor_are_paused() -> None:
    scheduler = Scheduler(slots=1)
    scheduler.send(req(BE, "effort", 5))
    scheduler.step()
    scheduler.send(req(STANDARD, "plain", 2))
    assert scheduler.step() == ["effort"]
    other = Scheduler(slots=1)
    other.send(req(STANDARD, "plain", 5))
    other.step()
    other.send(req(LS, "hurry", 1))
    assert other.step() == ["plain"]


def test_an_answer_that_stood_still_often_enough_is_left_alone() -> None:
    scheduler = Scheduler(slots=1)
    scheduler.send(req(BE, "effort", 20))
    scheduler.step()
    for turn in range(3):
        scheduler.send(req(LS, f"hurry{turn}", 1))
        ran = [scheduler.step() for _ in range(3)]
        assert (["effort"] not in ran[:1]) == (turn < 2)


def test_best_effort_requests_are_let_in_behind_others_until_they_have_waited() -> None:
    scheduler = Scheduler(slots=1, room=10)
    scheduler.send(req(STANDARD, "first", 2))
    scheduler.step()
    scheduler.send(req(BE, "effort", 1), *(req(STANDARD, f"s{n}", 2) for n in range(9)))
    for _ in range(24):
        scheduler.step()
    assert 1 < scheduler.said.index("effort") < 6


KINDS = st.sampled_from([LS, STANDARD, BE])


@given(
    st.lists(
        st.tuples(KINDS, st.integers(1, 6), st.integers(1, 40), st.integers(0, 3)), max_size=20
    ),
    st.integers(1, 4),
    st.integers(40, 120),
)
def test_all_are_answered_whole_and_nobody_is_paused_beyond_the_bounds(
    coming: list[tuple[RequestClass, int, int, int]], slots: int, room: int
) -> None:
    current().get(PausingState).asked = Preempting(pauses=2, seconds=5.0)
    Clock.now = 0.0
    scheduler, sent = Scheduler(slots, room), []
    for number, (kind, left, tokens, later) in enumerate(coming):
        for _ in range(later):
            scheduler.step()
        sent.append(req(kind, str(number), left, tokens))
        scheduler.send(sent[-1])
    for _ in range(20 + 12 * sum(left for _, left, *_ in coming)):
        scheduler.step()
    assert sorted(scheduler.said, key=int) == [each.rid for each in sent]
    for each in sent:
        pause = answers._pause_of(each)
        assert pause.pauses <= 2
        # It may wait for room longer, but then no latency-sensitive request is let in before it.
        assert pause.pauses == 0 or getattr(each, _CLASS) is BE
