"""Shortest job first with aging in a worker's waiting queue (Gimbal, III C, Algorithm 2).

SGLang has `hrrn`, which ages by prefill tokens, but gives up beyond 128 waiting requests, needs a
radix cache and cannot be combined with priorities. Here a worker that the launcher told so
(`TOOLKIT_WAITING=sjf:AGE_S[:CLASS_AGE_S]`) runs with SGLang's `fcfs`, and after its
`calc_priority` the queue is put into the order of `toolkit.policies.sjf`: by uncached prompt
tokens, who has waited AGE_S before. What is running, in chunks too, is left alone.

Age: each attention-TP rank sorts a queue of its own, and ranks that differ hang the collective, so
none may look at its clock. The rank that receives the requests sends its clock along with them, in
the same broadcast (`recv_requests`, whose `local_reqs` are for such events), at most every TICK_MS,
and all ranks take it up before the same pass. So the counter that ages is time, in ms, the same on
all ranks, and AGE_S needs no conversion by a rate of prefill that nobody knows before traffic has
come. The bound of `ShortestFirst` holds with B, G and L as the times that these tokens take: what
comes more than AGE_S after a request never goes before it in its class.

Prefill workers under PD: requests come through the bootstrap queue, where they wait for a metadata
buffer (2 x max_running_requests of them) before they are in the waiting queue. When buffers are
short they are given out in the same order, by whole prompts (a match there would change whether
SGLang runs the prompt before its decode worker is known). A request's age runs from its arrival in
the worker. Decode workers compute no prompts: `check_worker` refuses there.

Cost: 3 ms of CPU a round with 1,000 waiting, 1 ms while nothing is computed
(`tests/benchmarks/sjf_round.py`).
"""

import inspect
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from patches.base import EITHER, Hook, Patch, PatchError, Variant, refuse, resolve
from patches.flags import WRITTEN
from patches.layers import Original
from patches.pd.waiting_order import WaitingOrder, arrived
from patches.scheduler_state import current
from patches.sglang_types import (
    Batch,
    BootstrapQueue,
    PrefixCache,
    Req,
    SchedulePolicy,
    Scheduler,
    ServerArgs,
)
from toolkit.contract.variables import WAITING_VARIABLE
from toolkit.contract.waiting import Waiting
from toolkit.limited_logs import limited_logger
from toolkit.policies.sjf import ShortestFirst

log = limited_logger("toolkit.waiting")

RECEIVER = "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver"
POLICY = "sglang.srt.managers.schedule_policy"
TICK_MS = 20
LOG_EVERY_MS = 60_000


@dataclass(frozen=True, slots=True)
class Tick:
    """The receiving rank's monotonic clock, ms, on its way to those that share its queue."""

    ms: int


@dataclass
class WaitingState:
    """`order` is None where SGLang's own stays, `read`: it is known which. `clock`: the newest
    Tick, ms; `logged`: the one at which the log has a line."""

    order: WaitingOrder | None = None
    clock: int = 0
    logged: int = 0
    read: bool = False


def wanted() -> Waiting:
    """The order that the launcher asked for. PatchError: the variable is none of `Waiting.text`."""
    text = os.environ.get(WAITING_VARIABLE, "")
    try:
        return Waiting.read(text)
    except ValueError as error:
        raise PatchError(
            f"{WAITING_VARIABLE}={text} must be sjf:AGE_S or sjf:AGE_S:CLASS_AGE_S, ages in "
            "seconds of at least 0, such as sjf:5"
        ) from error


def check_worker(server_args: ServerArgs) -> None:
    """Refuse a worker whose queue cannot be ordered so; in the main process, before it starts."""
    try:
        chosen = wanted()
    except PatchError as error:
        refuse(str(error))
    if chosen.order == "fcfs":
        return
    if not _shares_clock():
        refuse(
            f"{WAITING_VARIABLE}: this release of SGLang sends no clock along with requests (from "
            "0.5.20 on): leave it out"
        )
    if server_args.disaggregation_mode == "decode":
        refuse(
            f"{WAITING_VARIABLE}: a decode worker prefills nothing: set it for prefill (or "
            "plain) ones"
        )
    if server_args.schedule_policy != "fcfs":
        refuse(
            f"{WAITING_VARIABLE} and --schedule-policy {server_args.schedule_policy} both order "
            "the waiting requests: leave one of them out"
        )
    if server_args.pp_size > 1:
        refuse(
            f"{WAITING_VARIABLE} is unproven with --pp-size {server_args.pp_size}: leave one of "
            "them out"
        )


def _shares_clock() -> bool:
    parameters = inspect.signature(resolve(f"{RECEIVER}.recv_requests")).parameters
    return "local_reqs" in parameters


def _order() -> WaitingOrder | None:
    state = current().get(WaitingState)
    if not state.read:
        state.read = True
        chosen = wanted()
        if chosen.order == "sjf":
            ages = [chosen.age_s, chosen.class_age_s]
            age, class_age = (float("inf") if s is None else 1000 * s for s in ages)
            state.order = WaitingOrder(ShortestFirst(age, class_age))
    return state.order


def _share_clock(
    original: Original[list[object]], receiver: object, local_reqs: list[object] | None = None
) -> list[object]:
    if _order() is None:
        return original(receiver, local_reqs)
    state = current().get(WaitingState)
    if _leads():
        now = int(time.monotonic() * 1000)
        if now - state.clock >= TICK_MS:
            local_reqs = [*(local_reqs or ()), Tick(now)]
    received = original(receiver, local_reqs)
    for tick in [each for each in received if isinstance(each, Tick)]:
        state.clock = tick.ms
    return [each for each in received if not isinstance(each, Tick)]


def _leads() -> bool:
    """Whether this is the rank that receives requests for those that share its waiting queue."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    return bool(parallel.pp_rank == 0 and parallel.attn_tp_rank == 0 and parallel.attn_cp_rank == 0)


def _note_arrival(
    original: Original[None], scheduler: Scheduler, req: Req, *args: object, **kwargs: object
) -> None:
    if _order() is not None:
        arrived(req, current().get(WaitingState).clock)
    original(scheduler, req, *args, **kwargs)


def _shortest_first(
    original: Original[None],
    policy: SchedulePolicy,
    waiting_queue: list[Req],
    running_batch: Batch | None = None,
    processed_tokens: int | None = None,
) -> None:
    order = _order()
    if processed_tokens is None:  # a queue without prompts to compute (decode, diffusion)
        original(policy, waiting_queue, running_batch)
        return
    original(policy, waiting_queue, running_batch, processed_tokens)
    if order is None:
        return
    cache = policy.tree_cache
    if not getattr(cache, "disable", True) and not cache.supports_fast_match_prefix():
        match = _prefix_match(cache)
        # To match a streaming session's request is to take over the session's KV.
        order.match(
            [req for req in waiting_queue if getattr(req, "session", None) is None],
            processed_tokens,
            match,
        )
    sign = -policy.priority_sign if policy.enable_priority_scheduling else 0
    order.sort(waiting_queue, current().get(WaitingState).clock, sign)
    _say(order, len(waiting_queue))


def _prefix_match(cache: PrefixCache) -> Callable[[Req], object]:
    """How SGLang finds what of a request's prompt is cached; it moved in 0.5.22."""
    from sglang.srt.managers import schedule_policy

    older = getattr(schedule_policy, "match_prefix_for_req", None)
    if older is not None:
        return lambda req: older(cache, req, include_req=True)
    from sglang.srt.mem_cache.common import match_kv_cache

    return lambda req: match_kv_cache(req, cache)


def _share_out_buffers(
    original: Original[object], queue: BootstrapQueue, *args: object, **kwargs: object
) -> object:
    order, reqs = _order(), queue.queue
    buffers = queue.req_to_metadata_buffer_idx_allocator
    if order is not None and len(reqs) > buffers.available_size():
        scheduler = queue.scheduler
        sign = -1 if scheduler.schedule_low_priority_values_first else 1
        sign = sign if scheduler.enable_priority_scheduling else 0
        order.sort(reqs, current().get(WaitingState).clock, sign)
    return original(queue, *args, **kwargs)


def _say(order: WaitingOrder, waiting: int) -> None:
    """A line a minute at most, while requests wait, from the rank that leads."""
    state = current().get(WaitingState)
    if state.clock - state.logged < LOG_EVERY_MS or waiting < 2 or not _leads():
        return
    state.logged = state.clock
    tally = order.tally
    log.info(
        "Waiting queue, shortest first: %d wait; since the start %d of %d rounds not in the order "
        "of arrival, %d requests reached the age of %g s, longest wait %.1f s.",
        waiting,
        tally.reordered,
        tally.rounds,
        tally.aged,
        order.order.theta_age / 1000,
        tally.longest / 1000,
    )


HOOKS = (
    Hook(
        f"{POLICY}.SchedulePolicy.calc_priority",
        _shortest_first,
        ("self", "waiting_queue", "running_batch", "processed_tokens"),
    ),
    Hook(f"{RECEIVER}.recv_requests", _share_clock, ("self", "local_reqs")),
    Hook(
        "sglang.srt.managers.scheduler.Scheduler._add_request_to_queue",
        _note_arrival,
        ("self", "req"),
    ),
    Hook(
        "sglang.srt.disaggregation.prefill.PrefillBootstrapQueue.pop_bootstrapped",
        _share_out_buffers,
        ("self",),
    ),
)
OLDER_MATCH = (f"{POLICY}.match_prefix_for_req",)
PATCH = Patch(
    name="waiting_queue",
    why="short prompts wait for long ones, in the order of arrival",
    independent_of={
        "resume": "when a request came and what it brought have nothing to do with each other",
    },
    processes=EITHER,
    requires=(
        "sglang.srt.mem_cache.base_prefix_cache.BasePrefixCache.supports_fast_match_prefix",
        "sglang.srt.runtime_context.get_parallel",
        "sglang.srt.disaggregation.utils.ReqToMetadataIdxAllocator.available_size",
    ),
    variants=(
        Variant(
            "from 0.5.22", hooks=HOOKS, requires=("sglang.srt.mem_cache.common.match_kv_cache",)
        ),
        Variant("to 0.5.21", hooks=HOOKS, requires=OLDER_MATCH),
        # `check_worker` refuses whoever asks for an order.
        Variant("off in 0.5.17", requires=WRITTEN),
    ),
)
