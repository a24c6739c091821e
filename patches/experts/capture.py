"""Take the experts that a request was routed to out of a worker, per token and layer.

SGLang's routed-experts capturer (`--enable-return-routed-experts`) keeps the logical top-k ids of
every KV slot in host memory. Under PD it never hands them out on the prefill side, and what the
decode side returns for prompt rows is garbage (those slots were filled by a KV transfer). So a
request whose ticket (`toolkit.contract.ticket`) asks for it has its prompt rows sent by the prefill
worker and its generated rows by the decode worker, each the rows it computed itself.

Buffers start as -1 instead of 0: a layer that never writes (dense layers, top-k backends that
bypass the capturer) then shows, instead of counting for expert 0. So do slots whose KV hierarchical
cache brings back: what lies in them is of the tokens that had them before.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from patches.base import EITHER, Hook, Patch
from patches.dp import layout
from patches.experts.loaded_kv import on_load
from patches.kv_row import kv_row
from patches.layers import Original
from patches.sglang_types import Batch, ModelRunner, Req, RequestTable, Scheduler
from patches.tickets import ticket_of
from toolkit.contract.ticket import TicketError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

_ROWS = "_toolkit_captured_rows"


@dataclass(frozen=True, slots=True)
class ExpertsCaptured:
    """What one request was routed to in one phase; `rid` is the name in its ticket.

    `ids` holds int16 [rows, layers, top_k] of logical expert ids, row 0 being the token at position
    `start`; -1 where nothing was captured. `whole` is False when rows are missing or may be stale
    (a retracted or resumed request, KV that came back from host memory).
    """

    rid: str
    phase: str
    dp_rank: int
    start: int
    shape: tuple[int, int, int]
    ids: bytes
    prompt_tokens: int
    cached_tokens: int
    whole: bool
    end: float
    """This worker's monotonic clock when the phase had ended; that of `patches.steps.step_log`."""


def capture_name(req: Req) -> str:
    """Under which name a request's experts are to go out; empty for one that asked for none."""
    try:
        return ticket_of(req).capture
    except TicketError:  # it was refused when it came, and is here only to be answered
        return ""


def captured_rows(req: Req, pool: RequestTable, start: int, stop: int) -> np.ndarray | None:
    """int16 [stop - start, layers, top_k] of the request's tokens; None without a capturer."""
    import numpy as np
    from sglang.srt.state_capturer.routed_experts import get_global_experts_capturer

    capturer = get_global_experts_capturer()
    row = kv_row(req)
    if capturer is None or row is None or stop <= start:
        return None
    # get_topk gives rows up to seqlen - 1: the last token of a sequence has not been run.
    rows: np.ndarray = capturer.get_topk(row, stop + 1, pool, start).numpy().astype(np.int16)
    return rows


def all_known(rows: np.ndarray) -> bool:
    """False when some of these tokens have no experts in any layer; int16 [rows, layers, top_k].

    True when none has: that is a backend which bypasses the capturer.
    """
    unknown = (rows < 0).all(axis=(1, 2))
    return bool(unknown.all() or not unknown.any())


def _send(
    scheduler: Scheduler, req: Req, phase: str, start: int, rows: np.ndarray, whole: bool
) -> None:

    # Only the rank that talks to the tokenizer has a socket; on the others this is a no-op.
    scheduler.ipc_channels.send_to_tokenizer.send_output(
        ExpertsCaptured(
            rid=capture_name(req),
            phase=phase,
            dp_rank=layout.rank(scheduler),
            start=start,
            shape=rows.shape,
            ids=rows.tobytes(),
            prompt_tokens=len(req.origin_input_ids),
            cached_tokens=req.cached_tokens,
            whole=whole and not req.retraction_count and all_known(rows),
            end=time.monotonic(),
        ),
        req,
    )


def _send_prompt_rows(
    original: Original[None], scheduler: Scheduler, batch: Batch, result: object
) -> None:
    before = {id(req) for req in scheduler.disagg_prefill_inflight_queue}
    original(scheduler, batch, result)
    for req in scheduler.disagg_prefill_inflight_queue:
        if id(req) in before or not capture_name(req):
            continue
        rows = captured_rows(req, scheduler.req_to_token_pool, 0, len(req.origin_input_ids))
        if rows is not None:
            _send(scheduler, req, "prefill", 0, rows, whole=True)


def _keep_rows(original: Original[None], processor: Scheduler, req: Req) -> None:
    """A request has finished: take its rows before its KV slots are freed."""
    original(processor, req)
    if capture_name(req):
        length = len(req.origin_input_ids) + len(req.output_ids_through_stop)
        setattr(req, _ROWS, captured_rows(req, processor.req_to_token_pool, 0, length - 1))


def _send_kept_rows(
    original: Original[None], scheduler: Scheduler, batch: Batch, result: object
) -> None:
    # Under overlap the batch's list of requests is filtered while its result is processed.
    reqs = list(batch.reqs)
    original(scheduler, batch, result)
    for req in reqs:
        rows = getattr(req, _ROWS, None)
        if rows is None:
            continue
        delattr(req, _ROWS)
        prompt = len(req.origin_input_ids)
        whole = not getattr(req, "toolkit_resumed", False)
        if scheduler.disaggregation_mode.value == "null":
            _send(scheduler, req, "prefill", 0, rows[:prompt], whole)
        _send(scheduler, req, "decode", prompt, rows[prompt:], whole)


def _room_for_drafts(
    original: Original[None],
    capturer: object,
    model_config: object,
    num_tokens: int,
    max_running_requests: int,
    *args: object,
    **kwargs: object,
) -> None:
    """A verification runs several tokens of each request; SGLang 0.5.21 has room for one."""
    from sglang.srt.runtime_context import get_spec

    most = max_running_requests * (get_spec().speculative_num_draft_tokens or 1)
    original(capturer, model_config, num_tokens, most, *args, **kwargs)


def _mark_unwritten(original: Original[None], runner: ModelRunner) -> None:
    from sglang.srt.state_capturer.routed_experts import get_global_experts_capturer

    original(runner)
    capturer = get_global_experts_capturer()
    if capturer is not None and not runner.is_draft_worker:
        capturer.device_cache.buffer.fill_(-1)
        capturer.host_cache.buffer.fill_(-1)


def _forget_loaded(slots: Tensor) -> None:
    from sglang.srt.state_capturer.routed_experts import get_global_experts_capturer

    capturer = get_global_experts_capturer()
    if capturer is not None:
        capturer.host_cache.buffer[slots.cpu()] = -1


_PROCESSOR = (
    "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
)

PATCH = Patch(
    name="expert_capture",
    why="profiles and signatures need the experts of every token, prompt and output",
    after={
        "early_send": "rows are copied once the KV can leave",
    },
    independent_of={
        "signature": "each marks rows of its own",
        "early_place": "rows of what has ended are not touched by what is placed",
    },
    processes=EITHER,
    hooks=(
        Hook(
            "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
            ".process_batch_result_disagg_prefill",
            _send_prompt_rows,
            ("self", "batch", "result"),
        ),
        Hook(f"{_PROCESSOR}._maybe_collect_routed_experts", _keep_rows, ("self", "req")),
        Hook(
            "sglang.srt.managers.scheduler.Scheduler.process_batch_result",
            _send_kept_rows,
            ("self", "batch", "result"),
        ),
        Hook(
            "sglang.srt.state_capturer.routed_experts.RoutedExpertsCapturer.__init__",
            _room_for_drafts,
            ("self", "model_config", "num_tokens", "max_running_requests"),
        ),
        Hook(
            "sglang.srt.model_executor.model_runner.ModelRunner.init_routed_experts_capturer",
            _mark_unwritten,
            ("self",),
        ),
        *on_load(_forget_loaded),
    ),
    requires=(
        "sglang.srt.state_capturer.routed_experts.get_global_experts_capturer",
        "sglang.srt.state_capturer.base.BaseTopkCapturer.get_topk",
        "sglang.srt.managers.scheduler_components.output_sender.SenderWrapper.send_output",
    ),
)
