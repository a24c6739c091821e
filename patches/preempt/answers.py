"""Pause best-effort answers on a decode worker for latency-sensitive requests that find no room.

SGLang lets requests in one by one, in order of arrival, and who finds no slot or no KV waits for
the end of an answer. Here latency-sensitive requests are let in first. Where one of them finds no
room, as many best-effort answers as make it stand still, by SGLang's own retraction: their KV goes
to host memory and comes back as it was, nothing is computed twice. They go on when no
latency-sensitive request waits.

An answer is paused `pauses` times, and for `seconds` in all, at most; it then keeps its place, and
takes it back before anybody new is let in. So long a best-effort request waits behind others to be
let in, too.

Of a DP rank of several processes each decides by itself, by what all of them see alike: the queues
and the number of steps, never by clocks. There `seconds` are counted in steps of STEP_S.
"""

import inspect
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from patches.base import EITHER, Hook, Patch, Variant
from patches.classes import best_effort, latency_sensitive
from patches.layers import Original
from patches.pd import host_receive
from patches.preempt import gave_way
from patches.scheduler_state import of
from patches.sglang_types import Batch, DecodeRequest, PreallocQueue, Req, Scheduler
from toolkit.contract.preempting import Preempting
from toolkit.contract.variables import PAUSE_VARIABLE
from toolkit.limited_logs import limited_logger

log = limited_logger("toolkit.preempt")

STEP_S = 0.03
_PAUSE = "_toolkit_pause"
SCHEDULER = "sglang.srt.managers.scheduler"
DECODE = "sglang.srt.disaggregation.decode"
MIXIN = f"{DECODE}.SchedulerDisaggregationDecodeMixin"


@dataclass(slots=True)
class Pause:
    """Of one answer. `since`: when it was paused, None while it goes on; `entered`: when it was
    first seen to wait for its place. Times as `_now` has them."""

    pauses: int = 0
    seconds: float = 0.0
    since: float | None = None
    entered: float | None = None


@dataclass
class PausingState:
    """`asked`: when answers are paused; None: they are not."""

    asked: Preempting | None = None


def _begin(original: Original[None], scheduler: Scheduler) -> None:
    asked = Preempting.read(os.environ.get(PAUSE_VARIABLE, ""))
    if asked is not None:
        if reason := obstacle(scheduler):
            log.warning("Best-effort answers are not paused here: %s", reason)
        else:
            of(scheduler).get(PausingState).asked = asked
    original(scheduler)


def obstacle(scheduler: Scheduler) -> str:
    """Why answers cannot be paused here; empty if they can."""
    from sglang.srt.runtime_context import get_disagg, get_parallel

    disagg = get_disagg()
    reasons = {
        "it is no decode worker": scheduler.disaggregation_mode.value != "decode",
        "pipeline stages": get_parallel().pp_size > 1,
        "no backup of KV (--disaggregation-decode-retraction-backup none)": (
            getattr(disagg, "disaggregation_decode_retraction_backup", "") == "none"
        ),
        "KV comes to host memory first": host_receive.on(scheduler),
        "sparse attention with KV in host memory": scheduler.enable_hisparse,
        "its model keeps a recurrent state": scheduler.is_hybrid_ssm,
    }
    return ", ".join(reason for reason, there in reasons.items() if there)


def _now(scheduler: Scheduler) -> float:
    from sglang.srt.runtime_context import get_parallel

    if get_parallel().attn_tp_size > 1:
        return float(scheduler.forward_ct) * STEP_S
    return time.monotonic()


def _pause_of(req: Req) -> Pause:
    found = getattr(req, _PAUSE, None)
    if found is None:
        found = Pause()
        setattr(req, _PAUSE, found)
    return found


def _waiting(scheduler: Scheduler) -> list[Req]:
    """The latency-sensitive ones that are here and do not decode yet."""
    queued = [each.req for each in scheduler.disagg_decode_prealloc_queue.queue]
    coming = [each.req for each in scheduler.disagg_decode_transfer_queue.queue]
    here = [*queued, *coming, *scheduler.waiting_queue]
    return [req for req in here if latency_sensitive(req) and not req.finished()]


def _process_queue(original: Original[None], scheduler: Scheduler) -> None:
    """Latency-sensitive requests are let in first; paused answers stay so as long as one of them
    waits."""
    asked = of(scheduler).get(PausingState).asked
    if asked is None:
        original(scheduler)
        return
    queue, now = scheduler.disagg_decode_prealloc_queue, _now(scheduler)
    _in_order(queue, now, asked.seconds)
    with _held(queue, now, asked.seconds, bool(_waiting(scheduler))):
        original(scheduler)


def _in_order(queue: PreallocQueue, now: float, wait_limit: float) -> None:
    """Best-effort requests behind all others; those that have waited long enough before them."""

    def line(each: DecodeRequest) -> int:
        if not best_effort(each.req):
            return 1
        pause = _pause_of(each.req)
        pause.entered = now if pause.entered is None else pause.entered
        return 2 if now - pause.entered < wait_limit else 0

    if any(best_effort(each.req) for each in queue.queue):
        queue.queue.sort(key=line)


@contextmanager
def _held(queue: PreallocQueue, now: float, most: float, somebody: bool) -> Iterator[None]:
    """While `somebody` latency-sensitive waits SGLang does not see the answers that may stand
    still: as long as it does, it lets nobody in."""
    held = [req for req in queue.retracted_queue if somebody and _may_stand(req, now, most)]
    kept = {id(req) for req in held}
    queue.retracted_queue = [req for req in queue.retracted_queue if id(req) not in kept]
    before = [req for req in queue.retracted_queue if best_effort(req)]
    try:
        yield
    finally:
        left = {id(req) for req in queue.retracted_queue}
        for req in before:
            if id(req) not in left:
                _goes_on(queue.scheduler, req, now)
        queue.retracted_queue = [*held, *queue.retracted_queue]


def _may_stand(req: Req, now: float, most: float) -> bool:
    if not best_effort(req):
        return False
    pause = _pause_of(req)
    since = 0.0 if pause.since is None else now - pause.since
    return pause.seconds + since < most


def _goes_on(scheduler: Scheduler, req: Req, now: float) -> None:
    pause = _pause_of(req)
    if pause.since is not None:
        stood = now - pause.since
        pause.seconds += stood
        pause.since = None
        gave_way.tell(scheduler, req, "answer", seconds=stood)


def _next_batch(original: Original[object], scheduler: Scheduler, running_batch: Batch) -> object:
    asked = of(scheduler).get(PausingState).asked
    if asked is not None and _waiting(scheduler):
        running_batch.filter_batch()
        if not running_batch.is_empty():
            _make_room(scheduler, running_batch, asked)
        scheduler.waiting_queue.sort(key=best_effort)  # whose KV is here, and who wants a slot
    return original(scheduler, running_batch)


def _make_room(scheduler: Scheduler, batch: Batch, asked: Preempting) -> None:
    slots, tokens = _short(scheduler, batch)
    now, freed = _now(scheduler), 0
    victims: list[int] = []
    for place in _order(batch, asked, now):
        if len(victims) >= slots and freed >= tokens:
            break
        victims.append(place)
        freed += batch.reqs[place].seqlen
    if victims:
        _pause(scheduler, batch, victims, now)


def _short(scheduler: Scheduler, batch: Batch) -> tuple[int, int]:
    """Slots and KV tokens that latency-sensitive requests lack."""
    queue = scheduler.disagg_decode_prealloc_queue
    urgent = [req for req in scheduler.waiting_queue if latency_sensitive(req)]
    most = min(scheduler.req_to_token_pool.size, scheduler.max_running_requests)
    slots = max(0, len(urgent) - max(0, most - batch.batch_size())) if urgent else 0
    left_out = [
        each.req
        for each in queue.queue
        if each.waiting_for_input and latency_sensitive(each.req) and not each.req.finished()
    ]
    if not left_out or queue.req_to_metadata_buffer_idx_allocator.available_size() <= 0:
        return slots, 0
    rows = len(left_out) - scheduler.req_to_token_pool.available_size()
    needed = sum(queue._prealloc_required_tokens(req)[0] for req in left_out)
    budget: int = queue._allocatable_token_budgets(count_retracted=False)
    return max(slots, rows, 0), max(0, needed - budget)


def _order(batch: Batch, asked: Preempting, now: float) -> list[int]:
    """Places of best-effort answers that may be paused, those that have least first (as SGLang
    retracts)."""

    def may(req: Req) -> bool:
        pause = _pause_of(req)
        within = pause.pauses < asked.pauses and pause.seconds < asked.seconds
        return (
            best_effort(req)
            and not req.finished()
            and getattr(req, "beam_group", None) is None
            and within
        )

    places = [place for place, req in enumerate(batch.reqs) if may(req)]
    return sorted(places, key=lambda at: (len(batch.reqs[at].output_ids), at))


def _pause(scheduler: Scheduler, batch: Batch, victims: list[int], now: float) -> None:
    """As `update_running_batch` retracts: KV to the host, the request to the retracted ones."""
    stopped = [batch.reqs[place] for place in victims]
    keep = [place for place in range(len(batch.reqs)) if place not in set(victims)]
    saved = {id(batch.reqs[at]): _put_aside(scheduler, batch, at, len(keep)) for at in victims}
    batch.filter_batch(keep_indices=keep)
    batch.batch_is_full = False
    for req in stopped:
        pause = _pause_of(req)
        pause.pauses += 1
        pause.since = now
        if saved[id(req)]:
            scheduler._add_request_to_queue(req, is_retracted=True)
        else:
            _lost(scheduler, req)
    gave_way.tell(scheduler, stopped[0], "answer", len(stopped))


def _put_aside(scheduler: Scheduler, batch: Batch, place: int, kept: int) -> bool:
    """Its KV to host memory; False where that has no room."""
    if "server_args" not in inspect.signature(batch.release_req).parameters:
        return bool(batch.release_req(place, kept))
    batch.release_req(place, kept, scheduler.server_args)  # 0.5.17 asks for no room, it takes it
    return True


def _lost(scheduler: Scheduler, req: Req) -> None:
    """No room for its KV in host memory: it ends as SGLang ends one that it cannot keep."""
    from http import HTTPStatus

    from sglang.srt.managers.schedule_batch import FINISH_ABORT
    from sglang.srt.managers.scheduler import _make_abort_req

    reason = FINISH_ABORT("No host memory for a paused answer. Retry later.", HTTPStatus(503))
    said = _make_abort_req(req, finished_reason=reason.to_json())
    scheduler.ipc_channels.send_to_tokenizer.send_output(said, req)


PATCH = Patch(
    name="preempt_answers",
    why="a decode worker full of best-effort answers lets nobody in for seconds",
    independent_of={
        "move_outgoing": "one is about requests that run, the other about those that wait",
        "cpu_background": "each makes something ready before the loop begins",
        "early_place": "each makes something ready before the loop begins",
        "preempt_boundary": "each makes something ready before the loop begins",
    },
    processes=EITHER,
    variable=PAUSE_VARIABLE,
    hooks=(
        Hook(f"{SCHEDULER}.dispatch_event_loop", _begin, ("scheduler",)),
        Hook(f"{MIXIN}.process_decode_queue", _process_queue, ("self",)),
        Hook(
            f"{MIXIN}.get_next_disagg_decode_batch_to_run", _next_batch, ("self", "running_batch")
        ),
    ),
    requires=(
        gave_way.REQUIRES,
        f"{SCHEDULER}.Scheduler._add_request_to_queue",
        f"{DECODE}.DecodePreallocQueue._allocatable_token_budgets",
        f"{DECODE}.DecodePreallocQueue._prealloc_required_tokens",
        "sglang.srt.managers.schedule_batch.FINISH_ABORT",
        "sglang.srt.managers.schedule_batch.ScheduleBatch.release_req",
        "sglang.srt.managers.schedule_batch.ScheduleBatch.filter_batch",
        "sglang.srt.runtime_context.get_disagg",
        "sglang.srt.runtime_context.get_parallel",
    ),
    variants=(
        Variant("from 0.5.20", requires=(f"{SCHEDULER}._make_abort_req",)),
        Variant("0.5.17", requires=("sglang.srt.managers.schedule_batch.Req.offload_kv_cache",)),
    ),
)
