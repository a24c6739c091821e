"""Stop a best-effort prefill between two layers for a latency-sensitive request that has come.

While a batch of best-effort prompts runs, the scheduler looks at what has arrived every `slice`
layers, in a hook that the model calls before a layer. A policy says whether the batch yields
(`toolkit.policies.preemption`). Then latency-sensitive requests are prefilled there and then, with
the scheduler's own functions, to their first token, and the batch goes on. What it has computed
lies where it lay: hidden states and residual in the frames of the call that was interrupted, its KV
in its slots. Nothing is computed twice, and no model needs to know of it (SGLang's own
`forward_split_prefill` is there for some only).

What a forward keeps elsewhere is put back: the attention backend's plan is made anew and its
context put back, the experts that its first layers have chosen are copied out of the capturer's
buffer and back, the patches' notes of the batch that is launched likewise.

Requests only: what else came (an abort, a flush, new weights) must not meet half a forward, and
what came after it must not overtake it, so it stays for the loop's own look.

Tensor-parallel ranks see the same requests at the same boundary (the first one hands them on, as
SGLang does between steps), and go by what the first one says where clocks or a policy decide. Not
where ranks pad each step to one another (DP attention), nor where a half-done prompt may be left
without its next chunk (sliding-window KV pools).

On a GPU layers are launched ahead of what is computed. So each boundary waits until the slice
before the last one is through: one slice is in the queue, another one runs, and who comes waits for
two at most.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from patches.base import EITHER, Hook, Patch
from patches.classes import best_effort, latency_sensitive
from patches.dp import layout
from patches.environment import on_cpu
from patches.experts.signature_state import SignatureState
from patches.layers import Original
from patches.preempt import gave_way
from patches.preempt.admission import only
from patches.preempt.boundary_state import BestEffortBatch, BoundaryState
from patches.scheduler_state import current, of
from patches.sglang_types import Batch, Layer, Req, Scheduler
from patches.steps import step_log, stops
from patches.steps.sent_time import sent_at
from toolkit.contract.preempting import Preempting
from toolkit.contract.variables import PREEMPT_VARIABLE
from toolkit.limited_logs import limited_logger
from toolkit.policies.preemption.boundary import Boundary, Urgent
from toolkit.policies.preemption.bounds import Bounds, Paused
from toolkit.policies.preemption.named import boundary_policy

log = limited_logger("toolkit.preempt")

_PAUSED = "_toolkit_paused"
SOONEST_S = 0.001
"""Between two looks: where layers are shorter, a look at each would cost more than it is worth."""
AHEAD = 2
"""Boundaries whose GPU work may be under way when the next one looks."""


def _begin(original: Original[None], scheduler: Scheduler) -> None:
    asked = Preempting.read(os.environ.get(PREEMPT_VARIABLE, ""))
    if asked is not None:
        if reason := obstacle(scheduler):
            log.warning("Best-effort prefills are stopped between chunks only: %s", reason)
        else:
            look_between_layers(scheduler, asked)
    original(scheduler)


WATCHED = ("input_blocker", "scripted_scheduler_hook", "recv_skipper")
"""Fields of the request receiver by which requests may come in another way."""


def obstacle(scheduler: Scheduler) -> str:
    """Why prefills cannot be stopped between layers here; empty if they can."""
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_parallel

    parallel, receiver = get_parallel(), scheduler.request_receiver
    reasons = {
        "with DP attention all ranks take each step together": layout.together(parallel),
        "pipeline stages": parallel.pp_size > 1,
        "context parallelism": parallel.attn_cp_size > 1,
        "sliding-window KV": scheduler.is_hybrid_swa,
        "the model keeps a state beside the KV of its tokens": scheduler.is_hybrid_ssm,
        "the overlap scheduler launches a whole prompt ahead": scheduler.enable_overlap,
        "adapters (LoRA)": scheduler.enable_lora,
        "the model takes more than text": scheduler.model_config.is_multimodal,
        "it is a decode worker": scheduler.disaggregation_mode.value == "decode",
        "its model has no list of layers": layers_of(scheduler) is None,
        "its requests come in another way": any(
            getattr(receiver, field) is not None for field in WATCHED
        )
        or envs.SGLANG_RUST_SERVER.get(),
    }
    return ", ".join(reason for reason, there in reasons.items() if there)


def layers_of(scheduler: Scheduler) -> Sequence[Layer] | None:
    """The model's layers, in order; None where it keeps them otherwise."""
    inner = getattr(scheduler.tp_worker.model_runner.model, "model", None)
    layers: Sequence[Layer] | None = getattr(inner, "layers", None)
    return layers if layers is not None and hasattr(layers, "__len__") and len(layers) > 1 else None


def look_between_layers(scheduler: Scheduler, asked: Preempting) -> None:
    """The loop's own look precedes the first layer."""
    state = of(scheduler).get(BoundaryState)
    state.policy = boundary_policy(asked.policy)
    state.bounds, state.slice = Bounds(asked.pauses, asked.seconds), asked.slice
    state.experts = asked.experts
    if asked.experts and _ranks() > 1:
        state.experts = 0  # with expert parallelism ranks have different ones, and would not meet
        log.warning("No looks between experts: its DP rank is of several processes")
    state.slo_s = float("inf") if asked.slo_s is None else asked.slo_s
    layers = layers_of(scheduler) or ()
    state.layers = len(layers)
    for index, layer in enumerate(layers):
        if index % asked.slice == 0 or state.experts:
            layer.register_forward_pre_hook(_hook(scheduler, index, asked.slice), with_kwargs=True)


def _hook(scheduler: Scheduler, done: int, every: int) -> Callable[..., None]:
    def before(_layer: object, given: tuple[object, ...], named: dict[str, object]) -> None:
        _before(scheduler, done, (*given, *named.values()), done % every == 0)

    return before


def _note_batch(
    original: Original[object],
    scheduler: Scheduler,
    batch: Batch,
    *args: object,
    **kwargs: object,
) -> object:
    state = of(scheduler).get(BoundaryState)
    if state.policy is None or state.running is not None:
        return original(scheduler, batch, *args, **kwargs)
    extend = batch.forward_mode.is_extend() and not batch.forward_mode.is_mixed()
    if not extend or not batch.reqs or not all(map(best_effort, batch.reqs)):
        return original(scheduler, batch, *args, **kwargs)
    now = time.monotonic()
    state.running = BestEffortBatch(batch, now, now)
    try:
        return original(scheduler, batch, *args, **kwargs)
    finally:
        state.running = state.forward = None


def _before(scheduler: Scheduler, done: int, given: tuple[object, ...], slice_over: bool) -> None:
    """Before layer `done` of whatever forward runs; `given`: what the layer is called with."""
    state = of(scheduler).get(BoundaryState)
    if state.running is None:
        return
    state.done = done
    state.forward = next(each for each in given if hasattr(each, "forward_mode"))  # type: ignore[assignment]
    if done and slice_over:
        look(scheduler)


def look(scheduler: Scheduler | None) -> None:
    """Whether the best-effort batch that runs yields; if it does, run latency-sensitive
    requests."""
    if scheduler is None:
        return
    state = of(scheduler).get(BoundaryState)
    running, done = state.running, state.done
    if running is None:
        return
    if _ranks() == 1 and time.monotonic() - running.at < SOONEST_S:
        return  # several ranks must look at the same boundaries, and have clocks of their own
    _wait_for_gpu(running)
    now = time.monotonic()
    running.slice_s, running.at = now - running.at, now
    _take_in(scheduler)
    if _yields(scheduler, running, done):
        _pause(scheduler, running, done)
        running.at = time.monotonic()


def _wait_for_gpu(running: BestEffortBatch) -> None:
    if on_cpu():
        return
    import torch

    event = torch.cuda.Event()
    event.record()
    running.events.append(event)
    if len(running.events) >= AHEAD:
        running.events.popleft().synchronize()


def _take_in(scheduler: Scheduler) -> None:
    """Take in the requests that have come."""
    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput

    kept = of(scheduler).get(BoundaryState).kept
    kept.extend(scheduler.request_receiver.recv_requests())
    taken = []
    while kept and isinstance(kept[0], TokenizedGenerateReqInput):
        taken.append(kept.popleft())
    if taken:
        scheduler.process_input_requests(taken)
    _bootstrap(scheduler)


def _bootstrap(scheduler: Scheduler) -> None:
    """Prefill workers: what has come waits for its metadata buffer first."""
    if scheduler.disaggregation_mode.value != "prefill":
        return
    queue = scheduler.disagg_prefill_bootstrap_queue
    if any(map(latency_sensitive, queue.queue)):
        scheduler.waiting_queue.extend(queue.pop_bootstrapped())


def _yields(scheduler: Scheduler, running: BestEffortBatch, done: int) -> bool:
    waiting = [req for req in scheduler.waiting_queue if latency_sensitive(req)]
    if not waiting:
        return False
    return _agreed(lambda: _says_yield(of(scheduler).get(BoundaryState), running, done, waiting))


def _ranks() -> int:
    from sglang.srt.runtime_context import get_parallel

    return int(get_parallel().tp_size)


def _agreed(says: Callable[[], bool]) -> bool:
    """What the first of the ranks that run the batch says."""
    if _ranks() == 1:
        return says()
    from sglang.srt.distributed.parallel_state import get_tp_group
    from sglang.srt.utils import broadcast_pyobj

    group = get_tp_group()
    said = [says()] if group.rank == group.ranks[0] else []
    (agreed,) = broadcast_pyobj(said, group.rank, group.cpu_group, src=group.ranks[0])
    return bool(agreed)


def _says_yield(
    kept: BoundaryState, running: BestEffortBatch, done: int, waiting: list[Req]
) -> bool:
    if not all(kept.bounds.may_begin(_paused(req)) for req in running.batch.reqs):
        return False
    now = time.monotonic()
    state = Boundary(
        done=done,
        layers=kept.layers,
        slice=kept.slice,
        slice_s=running.slice_s,
        ran_s=now - running.began - running.paused_s,
        paused_s=running.paused_s,
        pauses=running.pauses,
        urgent=tuple(
            Urgent(
                tokens=len(req.origin_input_ids),
                waited_s=now - (sent_at(req) or now),
                takes_s=len(req.origin_input_ids) * kept.rate_s,
                slo_s=kept.slo_s,
            )
            for req in waiting
        ),
    )
    assert kept.policy is not None
    try:
        said = kept.policy(state)
    except Exception as error:  # somebody's own
        log.error("the boundary policy failed, so nothing yields: %s", type(error).__name__)
        return False
    return said == "yield"


def _paused(req: Req) -> Paused:
    paused = getattr(req, _PAUSED, None)
    if paused is None:
        paused = Paused()
        setattr(req, _PAUSED, paused)
    return paused


def _pause(scheduler: Scheduler, running: BestEffortBatch, done: int) -> None:
    """Prefill latency-sensitive requests, batch after batch, as long as the bounds allow."""
    began, began_cpu = time.monotonic(), time.thread_time()
    running.pauses += 1
    step_log.step_log().begin_anew()
    with _put_back(scheduler, running):
        last = None
        while True:
            half = last is not None and scheduler.chunked_req is not None
            fresh = _may_begin(scheduler, running, began)
            # Of one that has begun the rest follows, by itself once the time is used up.
            batch = _urgent_batch(scheduler, last, fresh) if half or fresh else None
            if batch is None:
                break
            _run(scheduler, batch)
            last = batch
            _take_in(scheduler)  # who came meanwhile need not wait for another slice
    stop = stops.Stop(began, time.monotonic(), time.thread_time() - began_cpu, done)
    stops.note(running.batch, stop)
    stood = stop.seconds
    reqs = running.batch.reqs
    gave_way.tell(scheduler, reqs[0], "prompt", len(reqs), stood)
    running.paused_s += stood
    for req in reqs:
        paused = _paused(req)
        paused.pauses += 1
        paused.seconds += stood


def _may_begin(scheduler: Scheduler, running: BestEffortBatch, began: float) -> bool:
    """Whether one more of latency-sensitive requests may begin in this pause."""
    if not any(map(latency_sensitive, scheduler.waiting_queue)):
        return False

    def says() -> bool:
        since = time.monotonic() - began
        bounds = of(scheduler).get(BoundaryState).bounds
        return all(bounds.may_go_on(_paused(req), since) for req in running.batch.reqs)

    return _agreed(says)


def _urgent_batch(scheduler: Scheduler, last: Batch | None, fresh: bool) -> Batch | None:
    """The next batch of latency-sensitive requests, None when none of them finds room. `fresh`:
    those too that have not begun."""
    these = [req for req in scheduler.waiting_queue if latency_sensitive(req)] if fresh else []
    with only(scheduler, these):
        if scheduler.disaggregation_mode.value == "prefill":
            plan = scheduler.get_next_disagg_prefill_batch_to_run(
                running_batch=scheduler.running_batch, last_batch=last
            )
        else:
            if scheduler.chunked_req is not None:
                scheduler.stash_chunked_request(scheduler.chunked_req)
            plan = scheduler.get_new_batch_prefill(scheduler.running_batch)
    scheduler.running_batch = plan.running_batch
    return plan.batch_to_run


def _run(scheduler: Scheduler, batch: Batch) -> None:
    began = time.monotonic()
    result = scheduler.run_batch(batch)
    scheduler.process_batch_result(batch, result)
    if batch.extend_num_tokens:
        took = time.monotonic() - began
        of(scheduler).get(BoundaryState).rate_s = took / batch.extend_num_tokens
    if scheduler.disaggregation_mode.value == "prefill":
        scheduler.process_disagg_prefill_inflight_queue()
        return
    chunked = [] if scheduler.chunked_req is None else [scheduler.chunked_req]
    batch.filter_batch(chunked)
    if batch.is_empty():
        return
    if scheduler.running_batch.is_empty():
        scheduler.running_batch = batch
    else:
        scheduler.running_batch.merge_batch(batch)


@contextmanager
def _put_back(scheduler: Scheduler, running: BestEffortBatch) -> Iterator[None]:
    """What the forward that stands still keeps in shared places."""
    from sglang.srt.model_executor.forward_context import set_forward_context
    from sglang.srt.state_capturer.routed_experts import get_global_experts_capturer

    state = of(scheduler).get(BoundaryState)
    capturer, forward = get_global_experts_capturer(), state.forward
    assert forward is not None, "one stands still"
    buffer = None if capturer is None else capturer.device_cache.buffer
    rows = 0 if buffer is None else min(len(buffer), len(forward.input_ids))
    chosen = None if buffer is None else buffer[:rows].clone()
    kept = of(scheduler).get(SignatureState)
    noted, done = kept.batch, state.done
    chunked, scheduler.chunked_req = scheduler.chunked_req, None
    full, debug = scheduler.running_batch.batch_is_full, scheduler.cur_batch_for_debug
    state.running = None
    scheduler.running_batch.batch_is_full = False
    # A forward takes the context that there is for its own: a draft would write into the KV pool of
    # the model that stands still.
    context = set_forward_context(None)
    try:
        yield
    finally:
        set_forward_context(context)
        state.running, state.forward, state.done = running, forward, done
        scheduler.chunked_req = chunked
        scheduler.running_batch.batch_is_full = full
        scheduler.cur_batch_for_debug = debug
        kept.batch = noted
        if buffer is not None:
            buffer[:rows] = chosen
        scheduler.tp_worker.model_runner.attn_backend.init_forward_metadata(forward)


def _kept_first(
    original: Original[Iterable[object] | None], receiver: object, *args: object, **kwargs: object
) -> Iterable[object] | None:
    received = original(receiver, *args, **kwargs)
    state = current().get(BoundaryState)
    if not state.kept or state.running is not None:
        return received
    kept = list(state.kept)
    state.kept.clear()
    return kept + list(received or ())


SCHEDULER = "sglang.srt.managers.scheduler"
RECEIVER = "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver"
PATCH = Patch(
    name="preempt_boundary",
    why="a long best-effort prompt holds a worker, and who is latency-sensitive, for seconds",
    after={
        "waiting_queue": "what it kept has been through there already",
    },
    independent_of={
        "cpu_background": "each makes something ready before the loop begins",
        "early_place": "one stops prompts, the other runs on workers without any",
    },
    processes=EITHER,
    variable=PREEMPT_VARIABLE,
    hooks=(
        Hook(f"{SCHEDULER}.dispatch_event_loop", _begin, ("scheduler",)),
        Hook(f"{SCHEDULER}.Scheduler.run_batch", _note_batch, ("self", "batch")),
        Hook(f"{RECEIVER}.recv_requests", _kept_first, ("self",)),
    ),
    requires=(
        gave_way.REQUIRES,
        f"{SCHEDULER}.Scheduler.process_input_requests",
        f"{SCHEDULER}.Scheduler.process_batch_result",
        f"{SCHEDULER}.Scheduler.get_new_batch_prefill",
        "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
        ".get_next_disagg_prefill_batch_to_run",
        "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
        ".process_disagg_prefill_inflight_queue",
        "sglang.srt.disaggregation.prefill.PrefillBootstrapQueue.pop_bootstrapped",
        "sglang.srt.distributed.parallel_state.get_tp_group",
        *(f"{RECEIVER}.{field}" for field in WATCHED),
        "sglang.srt.managers.io_struct.TokenizedGenerateReqInput",
        "sglang.srt.runtime_context.get_parallel",
        "sglang.srt.model_executor.forward_context.set_forward_context",
        "sglang.srt.state_capturer.routed_experts.get_global_experts_capturer",
        "sglang.srt.utils.broadcast_pyobj",
    ),
)
