"""Tell the router that a prefill has run, before any decode worker is known.

With `--optimistic-prefill-attempts` the prefill forward runs without a decode's handshake and the
finished request is parked with its KV locked. SGLang answers the prefill's HTTP request only after
the KV transfer, so nobody outside learns that the forward is done. This hook sends a
`PrefillDone` from the scheduler straight to the HTTP process, which puts it on the worker's event
stream (`patches.streams.event_stream`); the router then chooses the decode worker.
"""

from patches.base import EITHER, Hook, Patch
from patches.dp import layout
from patches.experts.signature import take
from patches.layers import Original
from patches.sglang_types import Batch, Req, Result, Scheduler
from toolkit.contract.events import PrefillDone


def newly_finished(
    original: Original[None], scheduler: Scheduler, batch: Batch, result: object
) -> list[Req]:
    """Process the batch; the requests whose prefill it has finished, each now in transfer or
    waiting for a decode worker."""
    before = {id(req) for req in scheduler.disagg_prefill_inflight_queue}
    original(scheduler, batch, result)
    return [req for req in scheduler.disagg_prefill_inflight_queue if id(req) not in before]


def _announce_finished_prefills(
    original: Original[None], scheduler: Scheduler, batch: Batch, result: Result
) -> None:

    counted = take(result)
    finished = newly_finished(original, scheduler, batch, result)  # waits for the counts' copy
    signatures = counted.wire() if counted is not None else {}
    dp_rank = layout.rank(scheduler)
    for req in finished:
        # Only the rank that talks to the tokenizer has a socket; on the others this is a no-op.
        scheduler.ipc_channels.send_to_tokenizer.send_output(
            PrefillDone(
                rid=req.rid,
                dp_rank=dp_rank,
                prompt_tokens=len(req.origin_input_ids),
                cached_tokens=req.cached_tokens,
                signature=signatures.get(req.rid),
                room=req.bootstrap_room,
            ),
            req,
        )


PATCH = Patch(
    name="late_binding",
    why="the decode worker is chosen after the prefill, so somebody must hear that it is done",
    after={
        "first_token": "the token goes out first: a client waits for it",
    },
    processes=EITHER,
    hooks=(
        Hook(
            "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
            ".process_batch_result_disagg_prefill",
            _announce_finished_prefills,
            ("self", "batch", "result"),
        ),
    ),
    requires=(
        "sglang.srt.managers.scheduler_components.output_sender.SenderWrapper.send_output",
        "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
        ".process_disagg_prefill_inflight_queue",
    ),
)
