"""Say what each KV transfer from prefill to decode took.

SGLang has this figure only where metrics are on, and counts from the moment a request entered the
transfer queue: with late binding that includes the wait for a decode worker to be chosen. Here the
clock starts when the last pages are handed to the transfer engine (all of them, but where KV goes
while its prompt runs), and stops when the engine says that they are there; an engine that has no
thread for that is looked at once a scheduler loop.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass, field

from patches.base import EITHER, Hook, Patch
from patches.dp import layout
from patches.layers import Original
from patches.scheduler_state import current, of
from patches.sglang_types import Req, Scheduler, SendingManager
from toolkit.contract.events import KvTransfer
from toolkit.policies.early_choice import PrefillPace

_LAST = "_toolkit_last_send"
"""Of a request: when the last of its KV was handed over, and of how many tokens that was."""
_AHEAD = "_toolkit_sent_ahead"
"""Of a request: some of its KV was handed over while its prompt ran."""
MOST_ROOMS = 4096
"""Of which the end is kept: a decode worker's manager, and requests that are gone, ask for none."""


@dataclass
class Arrived:
    """When the transfer engine said that a room's KV is there. Its own threads write."""

    at: OrderedDict[int, float] = field(default_factory=OrderedDict)


def mark_last_send(req: Req, tokens: int) -> None:
    """The clock of this request starts: the last of its KV, of so many tokens, is handed over."""
    setattr(req, _LAST, (time.perf_counter(), tokens))


def _mark_send(
    original: Original[None],
    scheduler: Scheduler,
    req: Req,
    last_chunk: bool = False,
    *args: object,
    **kwargs: object,
) -> None:
    if last_chunk:
        mark_last_send(req, len(req.origin_input_ids) - req.start_send_idx)
    else:
        setattr(req, _AHEAD, True)
    original(scheduler, req, last_chunk, *args, **kwargs)


def _note_arrival(
    original: Original[None], manager: SendingManager, bootstrap_room: int, status: int
) -> None:
    from sglang.srt.disaggregation.base.conn import KVPoll

    if status == KVPoll.Success:
        at = current().get(Arrived).at
        at[bootstrap_room] = time.perf_counter()
        while len(at) > MOST_ROOMS:
            at.popitem(last=False)
    original(manager, bootstrap_room, status)


def _report_finished(
    original: Original[list[Req]], scheduler: Scheduler, *args: object, **kwargs: object
) -> list[Req]:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    done: list[Req] = original(scheduler, *args, **kwargs)
    now, arrived = time.perf_counter(), of(scheduler).get(Arrived).at
    for req in done:
        there = arrived.pop(req.bootstrap_room, now)
        began, tokens = getattr(req, _LAST, (None, 0))
        if began is None or isinstance(req.finished_reason, FINISH_ABORT):
            continue
        seconds = max(there - began, 0.0)
        of(scheduler).get(PrefillPace).sent(tokens, seconds)
        moved = req.disagg_kv_sender.get_transfer_metric().transfer_total_bytes
        scheduler.ipc_channels.send_to_tokenizer.send_output(
            KvTransfer(
                rid=req.rid,
                dp_rank=layout.rank(scheduler),
                tokens=len(req.origin_input_ids),
                bytes=int(moved or 0),
                seconds=seconds,
                ahead=hasattr(req, _AHEAD),
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
            _mark_send,
            ("self", "req", "last_chunk"),
        ),
        Hook(
            "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
            ".process_disagg_prefill_inflight_queue",
            _report_finished,
            ("self",),
        ),
        Hook(
            "sglang.srt.disaggregation.common.conn.CommonKVManager.update_status",
            _note_arrival,
            ("self", "bootstrap_room", "status"),
        ),
    ),
    requires=(
        "sglang.srt.managers.scheduler_components.output_sender.SenderWrapper.send_output",
        "sglang.srt.disaggregation.base.conn.BaseKVSender.get_transfer_metric",
        "sglang.srt.managers.schedule_batch.FINISH_ABORT",
    ),
)
