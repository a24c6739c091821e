"""The step log's arithmetic on fake batches and a clock that the test turns, and what leaves the
worker: frames for listeners, sums for the router."""

import asyncio
import time
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches.scheduler_state import current
from patches.steps import request_times, step_log
from patches.steps.step_log import FIELDS, StepBlock
from patches.streams.expert_stream import ExpertHub, ExpertListener
from patches.streams.step_summary import INTERVAL_S, StepSummary
from toolkit.contract.events import Steps
from toolkit.contract.frames import FinishedHead, Head, StepsHead

NOW, CPU = 1000.0, 50.0


@dataclass
class Clock:
    """What the patch sees as the module `time`."""

    now: float = NOW
    cpu: float = CPU

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.cpu

    def run(self, seconds: float, cpu: float) -> None:
        self.now += seconds
        self.cpu += cpu


@dataclass
class Req:
    origin_input_ids: list[int]
    limit: int
    output_ids: list[int] = field(default_factory=lambda: [7])  # the prefill's token
    finished_reason: Any = None
    retraction_count: int = 0

    def finished(self) -> bool:
        return self.finished_reason is not None

    @property
    def output_ids_through_stop(self) -> list[int]:
        return self.output_ids[: self.limit]

    def end(self, how: str) -> None:
        self.finished_reason = SimpleNamespace(to_json=lambda: {"type": how})


class Worker:
    """Drives the hooks as SGLang's event loops do."""

    def __init__(
        self, clock: Clock, on_cpu: bool = True, overlap: bool = True, drafts: bool = False
    ) -> None:
        self.clock, self.on_cpu, self.forwards = clock, on_cpu, 0
        channel = SimpleNamespace(socket=object())
        self.scheduler = SimpleNamespace(
            ipc_channels=SimpleNamespace(send_to_tokenizer=channel),
            enable_overlap=overlap,
            spec_algorithm=SimpleNamespace(is_none=lambda: not drafts),
        )

    def launch(self, reqs: list[Req], seconds: float, cpu: float, idle: bool = False) -> Any:
        self.forwards += 1
        mode = SimpleNamespace(is_decode=lambda: True, is_extend_without_speculative=lambda: False)
        batch = SimpleNamespace(
            reqs=list(reqs),
            forward_mode=mode,
            forward_iter=self.forwards,
            after_idle_gap=idle,
            launch_ts=self.clock.now,
        )

        def forward(*_: Any) -> None:
            self.clock.run(seconds, cpu)

        if self.on_cpu:
            step_log._note_forward(forward, self.scheduler, batch)
        else:  # kernels run behind the scheduler's back
            self.clock.run(0.0, cpu)
        return batch

    def process(self, batch: Any, seconds: float = 0.0, cpu: float = 0.0, tokens: int = 1) -> None:
        def original(*_: Any) -> None:
            self.clock.run(seconds, cpu)
            for req in batch.reqs:
                if not req.finished():
                    req.output_ids += [7] * tokens
                    if len(req.output_ids) >= req.limit:
                        req.end("length")

        step_log._log_step(original, self.scheduler, batch, None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(step_log, "time", clock)
    monkeypatch.setitem(current().parts, step_log.StepLog, step_log.StepLog())
    monkeypatch.setattr(step_log, "_flush", lambda scheduler: None)  # the test takes the rows
    return clock


def taken() -> tuple[dict[str, list[float]], list[dict[str, float]]]:
    """(columns of the steps, rows of the finished requests)."""
    block = step_log.step_log().take(0)
    rows = np.frombuffer(block.rows, np.float32).reshape(block.shape)
    columns = {name: rows[:, i].tolist() for i, name in enumerate(FIELDS)}
    done = np.frombuffer(block.finished, np.float32).reshape(-1, len(request_times.FIELDS))
    return columns, [dict(zip(request_times.FIELDS, row.tolist(), strict=True)) for row in done]


def test_steps_of_a_plain_loop_have_both_clocks(clock: Clock) -> None:
    worker, req = Worker(clock, overlap=False), Req([1] * 9, limit=4)
    for seconds, cpu, idle in ((0.030, 0.010, True), (0.050, 0.012, False), (0.04, 0.011, False)):
        clock.run(5.0 if idle else 0.002, 0.3 if idle else 0.001)  # idling, or scheduling
        batch = worker.launch([req], seconds, cpu, idle)
        worker.process(batch, 0.003, 0.002)
    columns, done = taken()
    # A step takes from the end of the forward before: its processing and the scheduling as well.
    assert columns["seconds"] == pytest.approx([0.030, 0.055, 0.045])
    assert columns["cpu_seconds"] == pytest.approx([0.010, 0.015, 0.014])
    assert columns["requests"] == [1, 1, 1]
    [row] = done
    assert (row["output_tokens"], row["prompt_tokens"], row["timed_tokens"]) == (4, 9, 2)
    assert row["seconds"] == pytest.approx(0.055 + 0.045)
    assert row["cpu_seconds"] == pytest.approx(0.015 + 0.014)


def test_under_overlap_a_result_is_looked_at_one_forward_later(clock: Clock) -> None:
    worker, req = Worker(clock), Req([1] * 5, limit=3)
    first = worker.launch([req], 0.020, 0.010, idle=True)
    second = worker.launch([req], 0.040, 0.012)
    worker.process(first, 0.002, 0.001)
    vain = worker.launch([req], 0.040, 0.012)
    worker.process(second)
    worker.process(vain)  # all of its requests have finished: no step
    columns, done = taken()
    assert columns["seconds"] == pytest.approx([0.020, 0.040])
    assert columns["cpu_seconds"] == pytest.approx([0.010, 0.012])
    assert [row["timed_tokens"] for row in done] == [1]
    assert done[0]["seconds"] == pytest.approx(0.040)
    assert done[0]["cpu_seconds"] == pytest.approx(0.012)
    assert done[0]["end"] == pytest.approx(columns["end"][-1])
    assert step_log.step_log().forwards == {}


def test_with_a_draft_a_step_gives_what_was_accepted(clock: Clock) -> None:
    """And what it gave behind the end of the answer nobody gets."""
    worker, reqs = Worker(clock, drafts=True), [Req([1] * 5, limit=6), Req([1] * 5, limit=20)]
    for accepted in (3, 1, 4):
        worker.process(worker.launch(reqs, 0.020, 0.010), tokens=accepted)
    columns, done = taken()
    assert columns["new_tokens"] == [6, 2, 1 + 4]
    assert columns["requests"] == [2, 2, 2]
    [row] = done
    assert (row["output_tokens"], row["timed_tokens"]) == (6, 2)


def test_on_an_accelerator_the_thread_says_nothing(clock: Clock) -> None:
    worker, req = Worker(clock, on_cpu=False), Req([1], limit=3)
    for idle in (True, False):
        batch = worker.launch([req], 0.0, 0.001, idle)
        clock.run(0.025, 0.001)
        worker.process(batch)
    columns, done = taken()
    assert columns["cpu_seconds"] == [0, 0]
    assert columns["seconds"] == pytest.approx([0.025, 0.025])
    assert done[0]["cpu_seconds"] == 0
    assert done[0]["seconds"] == pytest.approx(0.025)


@pytest.mark.parametrize("overlap", [True, False])
def test_distinct_experts_are_those_of_decode_steps(clock: Clock, overlap: bool) -> None:
    torch = pytest.importorskip("torch")
    worker, req = Worker(clock, on_cpu=False, overlap=overlap), Req([1] * 5, limit=9)
    ids = torch.tensor([[[0, 3], [-1, -1]], [[3, 5], [-1, -1]]])
    for decode in (False, True):
        batch = worker.launch([req], 0.0, 0.0, idle=True)
        batch.forward_mode.is_decode = lambda decode=decode: decode
        batch.forward_mode.is_extend_without_speculative = lambda decode=decode: not decode
        batch.extend_num_tokens = 5

        def original(*_: Any) -> None:
            step_log.step_log().ids = ids  # the capturer's, when its copy is there

        step_log._log_step(original, worker.scheduler, batch, None)
    block = step_log.step_log().take(0)
    rows = np.frombuffer(block.rows, np.float32).reshape(block.shape)
    assert rows[:, 0].tolist() == [0, 1]
    assert rows[:, len(FIELDS) :].tolist() == [[0, 0], [3, 0]], "as wide as ever"


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(2, 9)), min_size=1, max_size=8))
def test_every_request_has_the_steps_between_its_first_and_last(
    plan: list[tuple[int, int]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(step_log, "time", clock)
        patch.setitem(current().parts, step_log.StepLog, step_log.StepLog())
        patch.setattr(step_log, "_flush", lambda scheduler: None)
        worker = Worker(clock, overlap=False)
        waiting = [(start, Req([1] * (i + 1), limit)) for i, (start, limit) in enumerate(plan)]
        running: list[Req] = []
        number = 0
        while waiting or any(not req.finished() for req in running):
            running += [req for start, req in waiting if start <= number]
            waiting = [(start, req) for start, req in waiting if start > number]
            running = [req for req in running if not req.finished()]
            number += 1
            if running:
                batch = worker.launch(running, 0.001 * number, 0.0005 * number, number == 1)
                worker.process(batch)
        columns, done = taken()
    assert sum(columns["requests"]) == sum(row["timed_tokens"] + 1 for row in done)
    by_prompt = {int(row["prompt_tokens"]): row for row in done}
    assert sorted(by_prompt) == list(range(1, len(plan) + 1))
    for index, (_, limit) in enumerate(plan):
        row = by_prompt[index + 1]
        assert (row["output_tokens"], row["timed_tokens"]) == (limit, limit - 2)
        assert row["cpu_seconds"] == pytest.approx(row["seconds"] / 2, rel=0.02, abs=1e-5)


@pytest.mark.parametrize("what", ["aborted", "retracted"])
def test_disturbed_requests_have_no_row(clock: Clock, what: str) -> None:
    worker, req, other = Worker(clock), Req([1], limit=3), Req([1, 1], limit=3)
    for number in range(2):
        worker.process(worker.launch([req, other], 0.01, 0.01, number == 0))
        if number == 0 and what == "retracted":
            req.retraction_count = 1
        if number == 0 and what == "aborted":
            req.end = lambda how: Req.end(req, "abort")  # type: ignore[method-assign]
    _, done = taken()
    assert [row["prompt_tokens"] for row in done] == [2]


def test_a_resumed_request_is_timed_from_here_on(clock: Clock) -> None:
    worker, req = Worker(clock), Req([1], limit=23, output_ids=[7] * 20)
    for number in range(3):
        worker.process(worker.launch([req], 0.01, 0.01, number == 0))
    _, [row] = taken()
    assert (row["output_tokens"], row["timed_tokens"]) == (23, 2)
    assert row["seconds"] == pytest.approx(0.02)


def test_a_real_thread_is_never_charged_for_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(current().parts, step_log.StepLog, step_log.StepLog())
    monkeypatch.setattr(step_log, "_flush", lambda scheduler: None)
    clock = SimpleNamespace(run=lambda seconds, cpu: time.sleep(seconds), now=time.monotonic())
    worker, req = Worker(clock), Req([1], limit=4)  # type: ignore[arg-type]
    for number in range(3):
        clock.now = time.monotonic()
        worker.process(worker.launch([req], 0.05, 0.0, number == 0))
    columns, [row] = taken()
    assert min(columns["seconds"]) >= 0.05
    assert max(columns["cpu_seconds"]) < 0.03
    assert row["cpu_seconds"] < 0.06 < 0.1 <= row["seconds"]


def block(rows: list[list[float]], rank: int = 0) -> StepBlock:
    """Rows of (decode, requests, kv_tokens, *distinct by layer), 20 ms each."""
    given = []
    for decode, requests, kv, *distinct in rows:
        named = {"decode": decode, "requests": requests, "kv_tokens": kv, "seconds": 0.02}
        given.append([*(named.get(name, 0.0) for name in FIELDS), *distinct])
    array = np.array(given, dtype=np.float32)
    return StepBlock(rank, 5.0, array.shape, array.tobytes())


def add(summary: StepSummary, whole: StepBlock) -> None:
    """As the hub does with a block of a rank on its own."""
    summary.count(whole)
    summary.count_experts(whole)


def test_the_router_gets_sums_of_decode_steps_and_dense_layers_do_not_count() -> None:
    events: list[Steps] = []
    summary = StepSummary(events.append, Clock().monotonic)
    add(summary, block([[1, 8, 400, 0, 10, 20], [0, 1, 99, 0, 40, 40], [1, 6, 300, 0, 12, 10]], 3))
    [event] = events
    assert (event.dp_rank, event.steps, event.requests, event.kv_tokens) == (3, 2, 14, 700)
    assert event.seconds == pytest.approx(0.04)
    assert event.distinct == pytest.approx(15 + 11)


def test_without_captured_experts_the_rest_is_summed() -> None:
    events: list[Steps] = []
    add(StepSummary(events.append, Clock().monotonic), block([[1, 8, 400]]))
    assert (events[0].requests, events[0].distinct) == (8, 0.0)


def test_a_prefill_worker_sends_no_sums() -> None:
    events: list[Steps] = []
    add(StepSummary(events.append, Clock().monotonic), block([[0, 1, 99, 4.0]]))
    assert events == []


async def test_sums_go_out_four_times_a_second_and_none_is_lost() -> None:
    events: list[tuple[float, Steps]] = []
    summary = StepSummary(lambda event: events.append((time.monotonic(), event)))
    for _ in range(60):
        add(summary, block([[1, 2, 30, 4.0]]))
        add(summary, block([[1, 3, 30, 5.0]], rank=1))
        await asyncio.sleep(0.01)
    await asyncio.sleep(INTERVAL_S + 0.1)
    for rank, distinct in ((0, 4.0), (1, 5.0)):
        mine = [(when, event) for when, event in events if event.dp_rank == rank]
        assert sum(event.steps for _, event in mine) == 60
        assert sum(event.distinct for _, event in mine) == pytest.approx(60 * distinct)
        gaps = [after[0] - before[0] for before, after in pairwise(mine)]
        assert min(gaps) >= 0.9 * INTERVAL_S


def test_finished_rows_go_out_as_a_frame_of_their_own() -> None:
    done = np.arange(12, dtype=np.float32)
    whole = StepBlock(2, 5.0, (1, len(FIELDS)), bytes(4 * len(FIELDS)), done.tobytes())
    hub = ExpertHub(lambda steps: None)
    frames: list[tuple[Head, bytes]] = []
    hub._listeners.add(ExpertListener(0.0))  # somebody listens
    hub.publish = lambda head, body: frames.append((head, body))  # type: ignore[method-assign]
    hub.publish_steps(whole)
    assert [type(head) for head, _ in frames] == [StepsHead, FinishedHead]
    head, body = frames[1]
    assert head.shape == (2, len(request_times.FIELDS))  # type: ignore[union-attr]
    assert (head.fields, head.dp_rank, head.origin) == (request_times.FIELDS, 2, 5.0)  # type: ignore[union-attr]
    assert body == done.tobytes()
