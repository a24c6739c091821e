"""Say what each KV transfer from prefill to decode took.

SGLang has this figure only where metrics are on, and counts from the moment a request entered the
transfer queue: with late binding that includes the wait for a decode worker to be chosen. Here the
clock starts when the first pages are handed to the transfer engine and stops when the scheduler
sees the transfer succeed, so it contains at most one scheduler loop beside the transfer itself.
"""

import time

from patches.base import EITHER, Hook, Patch
from patches.dp import layout
from patches.layers import Original
from patches.sglang_types import Req, Scheduler
from toolkit.contract.events import KvTransfer

_MARK = "_toolkit_send_began"


def mark_first_send(req: Req) -> None:
    """The clock of this request starts, if it does not run yet."""
    if getattr(req, _MARK, None) is None:
        setattr(req, _MARK, time.perf_counter())


def _mark_first_send(
    original: Original[None], scheduler: Scheduler, req: Req, *args: object, **kwargs: object
) -> None:
    mark_first_send(req)
    original(scheduler, req, *args, **kwargs)


def _report_finished(
    original: Original[list[Req]], scheduler: Scheduler, *args: object, **kwargs: object
) -> list[Req]:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    done: list[Req] = original(scheduler, *args, **kwargs)
    now = time.perf_counter()
    for req in done:
        began = getattr(req, _MARK, None)
        if began is None or isinstance(req.finished_reason, FINISH_ABORT):
            continue
        moved = req.disagg_kv_sender.get_transfer_metric().transfer_total_bytes
        scheduler.ipc_channels.send_to_tokenizer.send_output(
            KvTransfer(
                rid=req.rid,
                dp_rank=layout.rank(scheduler),
                tokens=len(req.origin_input_ids),
                bytes=int(moved or 0),
                seconds=now - began,
            ),
            req,
        )
    return done


PATCH = Patch(
    name="kv_transfer",
    why="the router and the profiler must know what moving the KV takes",
    processes=EITHER,
    hooks=(
        Hook(
            "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin.send_kv_chunk",
            _mark_first_send,
            ("self", "req"),
        ),
        Hook(
            "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
            ".process_disagg_prefill_inflight_queue",
            _report_finished,
            ("self",),
        ),
    ),
    requires=(
        "sglang.srt.managers.scheduler_components.output_sender.SenderWrapper.send_output",
        "sglang.srt.disaggregation.base.conn.BaseKVSender.get_transfer_metric",
        "sglang.srt.managers.schedule_batch.FINISH_ABORT",
    ),
)
