"""Give a request its place on a decode rank while a step runs, not only between two steps.

SGLang's decode loop looks at new requests once a step, and at KV that has arrived once a step. The
request that follows one that has ended comes some milliseconds after the step's result, just too
late for the look that belongs to it. It waits a step to be seen and another one for its KV, its
slot empty, its rank lighter than those that it then waits for at the barrier. Here a rank looks in
between too: who came gets a slot and pages and tells its prefill worker where they are, and the KV
comes while the same step still runs.

On a GPU that is where the loop waits for the result of the step before. On a CPU the forward keeps
the loop busy, so it looks between the layers of the model.

Requests only: what else came (an abort, a flush, new weights) must not meet half a forward, and
what came after it must not overtake it, so both stay for the loop's own look. A rank looks alone,
which is for one attention TP rank per DP rank; several of them would have to agree on what they
saw.
"""

from collections import deque
from dataclasses import dataclass, field

from patches.base import Hook, Patch, Process
from patches.environment import on_cpu
from patches.layers import Original
from patches.pd import host_receive
from patches.scheduler_state import current, of
from patches.sglang_types import Batch, Scheduler
from toolkit.contract.variables import EARLY_PLACE_VARIABLE
from toolkit.limited_logs import limited_logger

log = limited_logger("toolkit.decode")

WAIT_MS = 1
"""Between two looks at whether the GPU is done."""


@dataclass
class EarlyState:
    """`kept`: taken from the socket and left for the loop's own look, in order of arrival.
    `on_gpu`: the rank looks while it waits for a result."""

    kept: deque[object] = field(default_factory=deque)
    on_gpu: bool = False


def _begin(original: Original[None], scheduler: Scheduler) -> None:
    if reason := obstacle(scheduler):
        log.warning("early_place is off on this rank: %s", reason)
    elif on_cpu():
        look_between_layers(scheduler)
    else:
        of(scheduler).get(EarlyState).on_gpu = True
    original(scheduler)


def obstacle(scheduler: Scheduler) -> str:
    """Why this rank must not look by itself; empty if it may."""
    from sglang.srt.disaggregation.utils import DisaggregationMode
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_disagg, get_parallel

    parallel, disagg, receiver = get_parallel(), get_disagg(), scheduler.request_receiver
    reasons = {
        "it is no decode worker": scheduler.disaggregation_mode != DisaggregationMode.DECODE,
        "its DP rank is of several processes": parallel.pp_size > 1
        or parallel.attn_tp_size > 1
        or parallel.attn_cp_size > 1,
        "the model takes more than text": scheduler.model_config.is_multimodal,
        "a hierarchical cache on decode": scheduler.enable_decode_hicache
        or host_receive.on(scheduler),
        "it is told to look less often": disagg.disaggregation_decode_polling_interval > 1
        or receiver.recv_skipper is not None,
        "its requests come in another way": receiver.input_blocker is not None
        or receiver.scripted_scheduler_hook is not None
        or envs.SGLANG_RUST_SERVER.get(),
    }
    return ", ".join(reason for reason, there in reasons.items() if there)


def look_between_layers(scheduler: Scheduler) -> None:
    """On a CPU. The loop's own look precedes the first layer."""
    for layer in scheduler.tp_worker.model_runner.model.model.layers[1:]:
        layer.register_forward_pre_hook(lambda _layer, _given: look(scheduler))


def look(scheduler: Scheduler) -> None:
    """Take in the requests that are there, and give them places."""
    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput

    receiver = scheduler.request_receiver
    kept = of(scheduler).get(EarlyState).kept
    kept.extend(receiver._pull_raw_reqs())
    came = []
    while kept and isinstance(kept[0], TokenizedGenerateReqInput):
        came.append(kept.popleft())
    if not came:
        return
    receiver.unwrap_pickle_wrapper(came)
    scheduler.process_input_requests(came)
    queue = scheduler.disagg_decode_prealloc_queue
    if not queue.retracted_queue:  # they come first
        placed, _ = queue.pop_preallocated()
        scheduler.disagg_decode_transfer_queue.extend(placed)


def _kept_first(original: Original[list[object]], receiver: object) -> list[object]:
    kept = current().get(EarlyState).kept
    if not kept:
        return original(receiver)
    first = list(kept)
    kept.clear()
    return first + original(receiver)


def _look_while_it_computes(
    original: Original[None], scheduler: Scheduler, batch: Batch, result: object
) -> None:
    done = getattr(result, "copy_done", None)
    if of(scheduler).get(EarlyState).on_gpu and done is not None:
        while not done.query():
            if scheduler.request_receiver.recv_from_tokenizer.poll(WAIT_MS):
                look(scheduler)
    original(scheduler, batch, result)


SCHEDULER = "sglang.srt.managers.scheduler"
RECEIVER = "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver"
DECODE = "sglang.srt.disaggregation.decode"
PATCH = Patch(
    name="early_place",
    why="a slot stays empty until the loop has looked at its request, and again at its KV",
    gain="a decode slot is filled a step earlier",
    independent_of={
        "cpu_background": "each makes something ready before the loop begins",
    },
    processes=frozenset({Process.SCHEDULER}),
    variable=EARLY_PLACE_VARIABLE,
    hooks=(
        Hook(f"{SCHEDULER}.dispatch_event_loop", _begin, ("scheduler",)),
        Hook(f"{RECEIVER}._pull_raw_reqs", _kept_first, ("self",)),
        Hook(
            f"{SCHEDULER}.Scheduler.process_batch_result",
            _look_while_it_computes,
            ("self", "batch", "result"),
        ),
    ),
    requires=(
        f"{RECEIVER}.unwrap_pickle_wrapper",
        f"{SCHEDULER}.Scheduler.process_input_requests",
        f"{DECODE}.DecodePreallocQueue.pop_preallocated",
        f"{DECODE}.DecodeTransferQueue.extend",
        "sglang.srt.managers.io_struct.TokenizedGenerateReqInput",
    ),
)
