"""What every forward step did and took: batch size, KV tokens, distinct experts, seconds.

A step takes from the end of the step before it (from its own launch after an idle gap) to its own
end; one that stood still for others from its launch, without the time in which it stood. A step
ends when its result is in host memory, where the scheduler waits for it anyway; on CPU when its
forward returns, since there nothing runs behind the scheduler's back and the overlap scheduler
looks at a result one forward later. Distinct experts are counted from the ids that SGLang's
capturer copies to the host anyway, so that a GPU sees no synchronisation beyond its own.
Rows are sent to the HTTP process in blocks, with one more row for each request that has finished.
Of ranks that share their experts each logs what its own tokens used (`patches.steps.lockstep`), and
the HTTP process counts what all of them used together (`patches.streams.step_join`).

CPU workers often share cores, so that `seconds` contains the waiting for one. `cpu_seconds` is the
CPU time of the scheduler's thread between the same two moments: on CPU the whole forward runs on
it (OMP_NUM_THREADS=1), so this is what the step would take on a core of its own. Elsewhere the
thread only launches kernels and waits: the column is 0 there, and `seconds` is the right one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from patches.base import EITHER, Hook, Patch
from patches.dp import layout
from patches.layers import Original
from patches.scheduler_state import current, of
from patches.sglang_types import Batch, Captured, Capturer, ForwardBatch, Req, Scheduler
from patches.steps.lockstep import GroupSteps, Lockstep, group_size, packed
from patches.steps.request_times import finished_rows
from patches.steps.stops import stops_of

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

FIELDS = (
    "decode",
    "end",
    "seconds",
    "cpu_seconds",
    "requests",
    "new_tokens",
    "prompt_tokens",
    "prompt_tokens_squared",
    "kv_tokens",
)
"""Columns of a row before those with the distinct experts of each layer. `decode` is 1 or 0 (a
prefill), `end` is the worker's monotonic clock, tokens are summed over the batch; `kv_tokens` is
the resident length that attention reads. Distinct experts are those of decode steps: 0 in a
prefill. Where a draft proposes tokens, `new_tokens` of a decode step are those that were accepted,
and its experts those of all that were verified: the step loads the experts of the rejected ones
too. The draft's own experts are not among them."""
CAPTURER = "routed_experts"
"""The capturer's name; sparse attention has another one of the same classes."""
KEPT_FORWARDS = 64
BLOCK_ROWS = 256
BLOCK_S = 0.25


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Rows of one rank: float32 [rows, len(FIELDS) + layers], `end` counted from `origin`.

    `finished` are float32 [requests, len(request_times.FIELDS)] of those that ended in these
    steps, `end` counted alike. With a `group` distinct experts are those of this rank's own tokens.
    """

    dp_rank: int
    origin: float
    shape: tuple[int, int]
    rows: bytes
    finished: bytes = b""
    group: GroupSteps | None = None


@dataclass(frozen=True, slots=True)
class ForwardClocks:
    """Clocks of a forward on CPU: its launch and its return. `end` is monotonic, the others are
    CPU seconds of this thread."""

    launch_cpu: float
    end: float
    end_cpu: float


@dataclass
class StepLog:
    """The rows of this rank that have not been sent yet."""

    rows: list[list[float]] = field(default_factory=list)
    finished: list[list[float]] = field(default_factory=list)
    ids: Tensor | None = None
    """Host ids [tokens, layers, top_k] of the step whose result is being processed."""
    previous_end: float = 0.0
    previous_cpu: float = 0.0
    forwards: dict[int, ForwardClocks] = field(default_factory=dict)
    """On CPU: the forwards whose results have not been processed, by iteration."""
    idle_at: float = 0.0
    """When the scheduler last had nothing to do."""
    origin: float = 0.0
    steps: list[int] = field(default_factory=list)
    """Of the group, where there is one: the step of each row."""
    used: list[np.ndarray | None] = field(default_factory=list)
    """The experts of each row, bool [layers, experts] or None."""
    upto: int = 0
    told: int = 0
    """Steps of the group that are processed, and of those what the HTTP process has heard of."""

    def begin_anew(self) -> None:
        """What runs next follows no step: another one is stopped for it."""
        self.previous_end, self.previous_cpu = time.monotonic(), time.thread_time()

    def due(self, now: float, running_on: bool) -> bool:
        """Whether to send: enough rows, old enough rows, or nothing runs any more. Of a group also
        that there was nothing."""
        if not self.rows:
            return self.upto > self.told and now - self.origin >= BLOCK_S
        return len(self.rows) >= BLOCK_ROWS or now - self.origin >= BLOCK_S or not running_on

    def take(self, dp_rank: int, ranks: int = 1) -> StepBlock:
        """All rows as a block, and forget them. `ranks`: of the group."""
        import numpy as np

        width = max(map(len, self.rows), default=len(FIELDS))
        rows = np.zeros((len(self.rows), width), dtype=np.float32)
        for index, values in enumerate(self.rows):
            rows[index, : len(values)] = values
        done = np.array([[end - self.origin, *rest] for end, *rest in self.finished], np.float32)
        group = self._take_group(ranks) if ranks > 1 else None
        self.rows.clear()
        self.finished.clear()
        return StepBlock(dp_rank, self.origin, rows.shape, rows.tobytes(), done.tobytes(), group)

    def _take_group(self, ranks: int) -> GroupSteps:
        import numpy as np

        used = packed(self.used)
        steps = np.array(self.steps, np.int64).tobytes()
        self.steps.clear()
        self.used.clear()
        self.told = self.upto
        return GroupSteps(ranks, self.upto, steps, used.tobytes(), used.shape)


def step_log() -> StepLog:
    """That of this process."""
    return current().get(StepLog)


def used_experts(ids: Tensor) -> np.ndarray:
    """bool [layers, experts]: what `ids`, an int tensor [tokens, layers, top_k], name; -1 nothing.
    As many experts as the last of them needs."""
    import numpy as np

    used = ids.numpy()
    width = int(used.max()) + 2 if used.size else 1
    hit = np.zeros((used.shape[1], width), dtype=bool)
    hit[np.arange(used.shape[1])[None, :, None], used + 1] = True
    return hit[:, 1:]


def _remember_copied(original: Original[None], output: Captured) -> None:
    original(output)
    if output.host_cache.name == CAPTURER:
        step_log().ids = output.topk


def _remember_direct(
    original: Original[object],
    capturer: Capturer,
    forward_batch: ForwardBatch,
    *args: object,
    **kwargs: object,
) -> object:
    output = original(capturer, forward_batch, *args, **kwargs)
    # Without overlap there is no output to finalize: the ids are in the host cache already.
    if output is None and capturer.host_cache.name == CAPTURER:
        where = getattr(forward_batch, "out_cache_loc_virtual", None)  # not in 0.5.17
        where = forward_batch.out_cache_loc if where is None else where
        step_log().ids = capturer.host_cache.buffer[where.cpu()]
    return output


def _note_forward(
    original: Original[object],
    scheduler: Scheduler,
    batch: Batch,
    *args: object,
    **kwargs: object,
) -> object:
    launch_cpu = time.thread_time()
    result = original(scheduler, batch, *args, **kwargs)
    forwards = step_log().forwards
    if len(forwards) > KEPT_FORWARDS:  # results that were never processed
        forwards.clear()
    end_cpu = time.thread_time()  # before the other clock: never more CPU time than time
    forwards[batch.forward_iter] = ForwardClocks(launch_cpu, time.monotonic(), end_cpu)
    return result


def _log_step(original: Original[None], scheduler: Scheduler, batch: Batch, result: object) -> None:
    if scheduler.ipc_channels.send_to_tokenizer.socket is None:  # not the rank that reports
        original(scheduler, batch, result)
        return
    log = step_log()
    mode = batch.forward_mode
    decode = mode.is_decode()
    counted = decode or mode.is_extend_without_speculative()
    # Under overlap a batch whose requests have all finished runs once more, for nothing.
    live = [req for req in batch.reqs if not req.finished()] if counted else []
    row: list[float] = []
    if live:
        prompts = [len(req.origin_input_ids) for req in batch.reqs]
        output = sum(len(req.output_ids) for req in batch.reqs)
        # With a draft a step gives a request one token or several: see below.
        new = len(prompts) if decode else batch.extend_num_tokens or 0
        squared = sum(length * length for length in prompts)
        row = [len(prompts), new, sum(prompts), squared, sum(prompts) + output]
        log.ids = None if scheduler.enable_overlap else log.ids
    drafted = decode and not scheduler.spec_algorithm.is_none()
    had = sum(map(_tokens, live)) if drafted else 0
    original(scheduler, batch, result)
    if live and drafted:
        row[1] = sum(map(_tokens, live)) - had
    now = time.monotonic()
    forward = log.forwards.pop(batch.forward_iter, None)
    step = of(scheduler).get(Lockstep).forwards.pop(batch.forward_iter, 0)
    step = step if step and group_size() > 1 else 0
    end, cpu = (now, log.previous_cpu) if forward is None else (forward.end, forward.end_cpu)
    if live:
        stops = stops_of(batch)  # others ran meanwhile, and have rows of their own
        own = _after_a_gap(log, batch) or stops
        seconds = end - (batch.launch_ts if own else log.previous_end)
        seconds -= sum(stop.seconds for stop in stops)
        since_cpu = log.previous_cpu
        if forward is not None and own:
            since_cpu = forward.launch_cpu + sum(stop.cpu_s for stop in stops)
        if not log.rows:
            log.origin = end - seconds
        # On this thread a chunk of 8192 tokens would take tens of ms, which nobody asks about.
        used = None if log.ids is None else used_experts(log.ids if decode else log.ids[:0])
        layers = [] if used is None else used.sum(axis=1).tolist()
        clocks = [end - log.origin, seconds, cpu - since_cpu]
        log.rows.append([float(decode), *clocks, *row, *layers])
        if step:
            log.steps.append(step)
            log.used.append(used)
        log.ids = None
        log.finished += finished_rows(live, decode, end, cpu)
    log.previous_end, log.previous_cpu = end, cpu
    log.upto = step or log.upto
    if log.due(now, running_on=not all(req.finished() for req in batch.reqs)):
        _flush(scheduler)


def _tokens(req: Req) -> int:
    """That its client gets: what a step gave behind a stop is cut off."""
    return len(req.output_ids_through_stop if req.finished() else req.output_ids)


def _after_a_gap(log: StepLog, batch: Batch) -> bool:
    """Whether nothing ran before it; 0.5.17 does not say so itself."""
    told = getattr(batch, "after_idle_gap", None)
    return log.previous_end < log.idle_at if told is None else bool(told)


def _flush(scheduler: Scheduler) -> None:
    log = step_log()
    if not log.rows:
        log.origin = time.monotonic()
    block = log.take(layout.rank(scheduler), group_size())
    scheduler.ipc_channels.send_to_tokenizer.send_output(block)


def _tell_the_rest(original: Original[None], scheduler: Scheduler) -> None:
    """Nothing runs on any rank: the others' last steps wait for word that this one had none."""
    log = step_log()
    log.idle_at = time.monotonic()
    if log.upto > log.told:
        _flush(scheduler)
    original(scheduler)


_WHY = "decode latency follows distinct experts: that must be measured where it happens"

CPU_PATCH = Patch(
    name="step_log_cpu",
    why=_WHY,
    independent_of={
        "lockstep": "each notes something of its own",
        "preempt_boundary": "the time for which a batch stands still is noted apart",
    },
    processes=EITHER,
    hooks=(
        Hook(
            "sglang.srt.managers.scheduler.Scheduler.run_batch",
            _note_forward,
            ("self", "batch"),
        ),
    ),
    cpu_only=True,
)

PATCH = Patch(
    name="step_log",
    why=_WHY,
    after={
        "expert_capture": "what is sent of a step's requests belongs to the step",
        "signature": "that one makes SGLang leave the copy of the ids to it",
    },
    independent_of={
        "early_place": "the step ends where the copy has ended, whoever waits for it",
    },
    processes=EITHER,
    hooks=(
        Hook(
            "sglang.srt.state_capturer.base.TopkCaptureOutput.finalize",
            _remember_copied,
            ("self",),
        ),
        Hook(
            "sglang.srt.state_capturer.base.BaseTopkCapturer.on_forward_end",
            _remember_direct,
            ("self", "forward_batch"),
        ),
        Hook(
            "sglang.srt.managers.scheduler.Scheduler.process_batch_result",
            _log_step,
            ("self", "batch", "result"),
        ),
        Hook("sglang.srt.managers.scheduler.Scheduler.on_idle", _tell_the_rest, ("self",)),
    ),
    requires=(
        "sglang.srt.managers.scheduler_components.output_sender.SenderWrapper.send_output",
        "sglang.srt.managers.schedule_batch.FINISH_ABORT.to_json",
        "sglang.srt.managers.schedule_batch.Req.output_ids_through_stop",
    ),
)
