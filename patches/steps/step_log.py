"""What every forward step did and took: batch size, KV tokens, distinct experts, seconds.

A step takes from the end of the step before it (from its own launch after an idle gap) to its own
end. A step ends when its result is in host memory, where the scheduler waits for it anyway; on CPU
when its forward returns, since there nothing runs behind the scheduler's back and the overlap
scheduler looks at a result one forward later. Distinct experts are counted from the ids that
SGLang's capturer copies to the host anyway, so that a GPU sees no synchronisation beyond its own.
Rows are sent to the HTTP process in blocks, with one more row for each request that has finished.

CPU workers often share cores, so that `seconds` contains the waiting for one. `cpu_seconds` is the
CPU time of the scheduler's thread between the same two moments: on CPU the whole forward runs on
it (OMP_NUM_THREADS=1), so this is what the step would take on a core of its own. Elsewhere the
thread only launches kernels and waits: the column is 0 there, and `seconds` is the right one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from patches.base import EITHER, Hook, Patch
from patches.steps.request_times import finished_rows

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
prefill."""
CAPTURER = "routed_experts"
"""The capturer's name; sparse attention has another one of the same classes."""
KEPT_FORWARDS = 64
BLOCK_ROWS = 256
BLOCK_S = 0.25


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Rows of one rank: float32 [rows, len(FIELDS) + layers], `end` counted from `origin`.

    `finished` are float32 [requests, len(request_times.FIELDS)] of those that ended in these
    steps, `end` counted alike.
    """

    dp_rank: int
    origin: float
    shape: tuple[int, int]
    rows: bytes
    finished: bytes = b""


@dataclass(frozen=True, slots=True)
class Forward:
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
    ids: Any = None
    """Host ids [tokens, layers, top_k] of the step whose result is being processed."""
    previous_end: float = 0.0
    previous_cpu: float = 0.0
    forwards: dict[int, Forward] = field(default_factory=dict)
    """On CPU: the forwards whose results have not been processed, by iteration."""
    origin: float = 0.0

    def due(self, now: float, running_on: bool) -> bool:
        """Whether to send: enough rows, old enough rows, or nothing runs any more."""
        if not self.rows:
            return False
        return len(self.rows) >= BLOCK_ROWS or now - self.origin >= BLOCK_S or not running_on

    def take(self, dp_rank: int) -> StepBlock:
        """All rows as a block, and forget them."""
        import numpy as np

        width = max(map(len, self.rows))
        rows = np.zeros((len(self.rows), width), dtype=np.float32)
        for index, values in enumerate(self.rows):
            rows[index, : len(values)] = values
        done = np.array([[end - self.origin, *rest] for end, *rest in self.finished], np.float32)
        self.rows.clear()
        self.finished.clear()
        return StepBlock(dp_rank, self.origin, rows.shape, rows.tobytes(), done.tobytes())


LOG = StepLog()


def distinct_by_layer(ids: Any) -> list[float]:
    """Distinct experts of each layer; `ids`: int tensor [tokens, layers, top_k], -1 ignored."""
    import numpy as np

    used = ids.numpy()
    if used.size == 0:
        return [0.0] * used.shape[1]
    width = int(used.max()) + 2
    hit = np.zeros((used.shape[1], width), dtype=bool)
    hit[np.arange(used.shape[1])[None, :, None], used + 1] = True
    return hit[:, 1:].sum(axis=1).tolist()


def _remember_copied(original: Any, output: Any) -> None:
    original(output)
    if output.host_cache.name == CAPTURER:
        LOG.ids = output.topk


def _remember_direct(
    original: Any, capturer: Any, forward_batch: Any, *args: Any, **kwargs: Any
) -> Any:
    output = original(capturer, forward_batch, *args, **kwargs)
    # Without overlap there is no output to finalize: the ids are in the host cache already.
    if output is None and capturer.host_cache.name == CAPTURER:
        where = forward_batch.out_cache_loc_virtual
        where = forward_batch.out_cache_loc if where is None else where
        LOG.ids = capturer.host_cache.buffer[where.cpu()]
    return output


def _note_forward(original: Any, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    launch_cpu = time.thread_time()
    result = original(scheduler, batch, *args, **kwargs)
    if len(LOG.forwards) > KEPT_FORWARDS:  # results that were never processed
        LOG.forwards.clear()
    end_cpu = time.thread_time()  # before the other clock: never more CPU time than time
    LOG.forwards[batch.forward_iter] = Forward(launch_cpu, time.monotonic(), end_cpu)
    return result


def _log_step(original: Any, scheduler: Any, batch: Any, result: Any) -> None:
    if scheduler.ipc_channels.send_to_tokenizer.socket is None:  # not the rank that reports
        original(scheduler, batch, result)
        return
    mode = batch.forward_mode
    decode = mode.is_decode()
    counted = decode or mode.is_extend_without_speculative()
    # Under overlap a batch whose requests have all finished runs once more, for nothing.
    live = [req for req in batch.reqs if not req.finished()] if counted else []
    row: list[float] = []
    if live:
        prompts = [len(req.origin_input_ids) for req in batch.reqs]
        output = sum(len(req.output_ids) for req in batch.reqs)
        new = len(prompts) if decode else batch.extend_num_tokens or 0
        squared = sum(length * length for length in prompts)
        row = [len(prompts), new, sum(prompts), squared, sum(prompts) + output]
        LOG.ids = None if scheduler.enable_overlap else LOG.ids
    original(scheduler, batch, result)
    now = time.monotonic()
    forward = LOG.forwards.pop(batch.forward_iter, None)
    end, cpu = (now, LOG.previous_cpu) if forward is None else (forward.end, forward.end_cpu)
    if live:
        seconds = end - (batch.launch_ts if batch.after_idle_gap else LOG.previous_end)
        since_cpu = LOG.previous_cpu
        if forward is not None and batch.after_idle_gap:
            since_cpu = forward.launch_cpu
        if not LOG.rows:
            LOG.origin = end - seconds
        # On this thread a chunk of 8192 tokens would take tens of ms, which nobody asks about.
        layers = [] if LOG.ids is None else distinct_by_layer(LOG.ids if decode else LOG.ids[:0])
        clocks = [end - LOG.origin, seconds, cpu - since_cpu]
        LOG.rows.append([float(decode), *clocks, *row, *layers])
        LOG.ids = None
        LOG.finished += finished_rows(live, decode, end, cpu)
    LOG.previous_end, LOG.previous_cpu = end, cpu
    if LOG.due(now, running_on=not all(req.finished() for req in batch.reqs)):
        _flush(scheduler)


def _flush(scheduler: Any) -> None:
    from sglang.srt.runtime_context import get_parallel

    block = LOG.take(get_parallel().dp_rank or 0)
    scheduler.ipc_channels.send_to_tokenizer.send_output(block)


_WHY = "decode latency follows distinct experts: that must be measured where it happens"

CPU_PATCH = Patch(
    name="step_log_cpu",
    why=_WHY,
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
    ),
    requires=(
        "sglang.srt.managers.scheduler_components.output_sender.SenderWrapper.send_output",
        "sglang.srt.managers.schedule_batch.FINISH_ABORT.to_json",
        "sglang.srt.managers.schedule_batch.Req.output_ids_through_stop",
    ),
)
