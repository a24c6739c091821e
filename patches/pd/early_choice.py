"""Ask for the decode worker of a long prompt while its last chunks run.

SGLang sends the KV of a chunked prompt while the next chunk runs, once a decode worker has named
its pages. With late binding nobody has before the prompt is through, so all of its KV crosses the
network then, and the client waits for it. Here the router is told some chunks before the end
(`PrefillDone` with tokens `left`), with the experts of the prompt so far; it chooses, and SGLang
finds the decode worker at the next chunk.

When that pays is the rule of `toolkit.policies.early_choice`, by what this rank has measured: the
time of its chunks (here) and that of whole transfers (`patches.pd.kv_transfer`).

With the overlap scheduler a chunk is launched before the result of the one before is looked at, so
the word comes a chunk later than without.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from patches.base import EITHER, Hook, Patch
from patches.dp import layout
from patches.environment import on_cpu
from patches.experts.signature import peek
from patches.experts.signature_state import COUNT_AT
from patches.layers import Original
from patches.pd.early_send import computed
from patches.scheduler_state import of
from patches.sglang_types import Batch, Req, Result, Scheduler
from toolkit.contract.events import PrefillDone
from toolkit.contract.variables import EARLY_CHOICE_VARIABLE
from toolkit.limited_logs import limited_logger
from toolkit.policies.early_choice import EarlyChoice, PrefillPace

log = limited_logger("toolkit.prefill")

MIXIN = "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
_CHUNK = "_toolkit_chunk"
"""Of a forward's result."""
_RAN = "_toolkit_ran"
"""Of a request: up to which token it had run when."""


@dataclass(frozen=True)
class PromptPart:
    """A part of a prompt that a forward runs, up to token `end`."""

    req: Req
    end: int


@dataclass
class EarlyChoiceState:
    """`rule`: None where nobody is asked early. `chunk`: tokens."""

    rule: EarlyChoice | None = None
    chunk: int = 0
    looked: bool = False


def _state(scheduler: Scheduler) -> EarlyChoiceState:
    state = of(scheduler).get(EarlyChoiceState)
    if not state.looked:
        from sglang.srt.runtime_context import get_schedule

        state.looked = True
        least = os.environ.get(EARLY_CHOICE_VARIABLE, "")
        state.chunk = int(get_schedule().chunked_prefill_size or 0)
        if least and state.chunk > 0 and scheduler.disaggregation_mode.value == "prefill":
            try:
                state.rule = EarlyChoice(float(least), _ahead(scheduler))
            except ValueError:
                log.error(
                    "%s=%s is no number: decode workers are chosen at the end of prompts "
                    "(prefill.early_choice of a deployment file sets it)",
                    EARLY_CHOICE_VARIABLE,
                    least,
                )
    return state


def _ahead(scheduler: Scheduler) -> int:
    """Chunks between a word and the KV that leaves for it: SGLang looks for the decode worker when
    it launches a chunk."""
    if not scheduler.enable_overlap:
        return 1
    return 3 if on_cpu() else 2  # there a result is looked at when the next chunk has run


def _note_chunk(
    original: Original[object], scheduler: Scheduler, batch: Batch, *args: object, **kwargs: object
) -> object:
    state, req = _state(scheduler), scheduler.chunked_req
    if state.rule is None or req is None or not any(each is req for each in batch.reqs):
        return original(scheduler, batch, *args, **kwargs)
    end, total = computed(req), len(req.origin_input_ids)
    asks = req.pending_bootstrap and not hasattr(req, COUNT_AT)
    pace = of(scheduler).get(PrefillPace)
    if asks and state.rule.now(req.cached_tokens, end, total, state.chunk, pace):
        setattr(req, COUNT_AT, end)
    result = original(scheduler, batch, *args, **kwargs)
    if result is not None:
        setattr(result, _CHUNK, PromptPart(req, end))
    return result


def _tell(original: Original[None], scheduler: Scheduler, batch: Batch, result: Result) -> None:
    counted = peek(result)
    chunk: PromptPart | None = getattr(result, _CHUNK, None)
    original(scheduler, batch, result)
    if chunk is None:
        return
    req, end, now = chunk.req, chunk.end, time.perf_counter()
    before, began = getattr(req, _RAN, (0, 0.0))
    if began and end > before:
        of(scheduler).get(PrefillPace).computed(end - before, now - began)
    setattr(req, _RAN, (end, now))
    if getattr(req, COUNT_AT, 0) != end or not req.pending_bootstrap or req.to_finish is not None:
        return
    signatures = counted.wire() if counted is not None else {}
    log.debug("%s asks for its decode worker at token %d", req.rid, end)
    # Only the rank that talks to the tokenizer has a socket; on the others this is a no-op.
    scheduler.ipc_channels.send_to_tokenizer.send_output(
        PrefillDone(
            rid=req.rid,
            dp_rank=layout.rank(scheduler),
            prompt_tokens=len(req.origin_input_ids),
            cached_tokens=req.cached_tokens,
            signature=signatures.get(req.rid),
            room=req.bootstrap_room,
            left=len(req.origin_input_ids) - end,
        ),
        req,
    )


PATCH = Patch(
    name="early_choice",
    why="all KV of a long prompt would cross the network when the prompt is through",
    gain="a long prompt's KV crosses while its last chunks run",
    needs=("late_binding", "kv_transfer", "chunk_yield"),
    after={
        "early_send": "who is through is announced and parked first, with what the forward counted",
    },
    independent_of={
        "signature": "a chunk is marked before the forward that counts its experts either way",
        "expert_capture": "it reads the capturer, this what the forward counted",
        "step_log_cpu": "each notes something of its own",
        "lockstep": "each notes something of its own",
        "preempt_boundary": "a batch that stands still has its chunk noted on its own result",
        "batch_trace": "each notes something of its own",
        "heartbeat": "each notes something of its own",
    },
    processes=EITHER,
    hooks=(
        Hook("sglang.srt.managers.scheduler.Scheduler.run_batch", _note_chunk, ("self", "batch")),
        Hook(f"{MIXIN}.process_batch_result_disagg_prefill", _tell, ("self", "batch", "result")),
    ),
    requires=(
        f"{MIXIN}.process_prefill_chunk",
        f"{MIXIN}.check_bootstrap",
        "sglang.srt.runtime_context.get_schedule",
        "sglang.srt.managers.scheduler_components.output_sender.SenderWrapper.send_output",
    ),
)
