"""Who is in the next prefill batch: best-effort prompts, by themselves, when no others wait.

A batch that holds a prompt of another class is never stopped, so the two are not mixed. Between two
chunks of a best-effort prompt others go first, too: it is put aside with its KV, and goes on when
nobody else waits. On a worker that decodes, too, best-effort prompts wait for the answers of
latency-sensitive requests (QLLM, Algorithm 1: their decode steps before best-effort prompts). Once
WAIT_LIMIT batches or steps of others went before the best-effort prompts that wait, their next
batch goes first.

Ranks that share a queue see the same requests in it, in the same order, and count the same batches,
so they decide alike.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from patches.base import EITHER, Hook, Patch
from patches.classes import best_effort, latency_sensitive
from patches.layers import Original
from patches.scheduler_state import of
from patches.sglang_types import Abort, Batch, Plan, Req, Scheduler
from toolkit.contract.variables import PREEMPT_VARIABLE

WAIT_LIMIT = 64
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


@dataclass
class Aside:
    """`chunked`: a best-effort prompt, a part of which is computed. `passed`: batches and steps of
    others since a best-effort one, while such a one waits."""

    chunked: Req | None = None
    passed: int = 0


def _next_batch(original: Original[Plan], scheduler: Scheduler, running_batch: Batch) -> Plan:
    take_back(scheduler)
    aside = of(scheduler).get(Aside)
    chunked, waiting = scheduler.chunked_req, scheduler.waiting_queue
    best_effort_requests = [req for req in waiting if best_effort(req)]
    best_effort_chunk = chunked is not None and best_effort(chunked)
    if not best_effort_requests and not best_effort_chunk:
        aside.passed = 0
        return original(scheduler, running_batch)
    others = [req for req in waiting if not best_effort(req)]
    answering = any(latency_sensitive(req) and not req.finished() for req in running_batch.reqs)
    if not others and not answering and (chunked is None or best_effort_chunk):
        aside.passed = 0
        return original(scheduler, running_batch)
    if aside.passed >= WAIT_LIMIT and (chunked is None or best_effort_chunk):
        aside.passed = 0
        return _of(original, scheduler, running_batch, best_effort_requests)
    if best_effort_chunk:
        aside.chunked, scheduler.chunked_req = chunked, None
    plan = _of(original, scheduler, running_batch, others)
    none = plan.batch_to_run is None
    if none and not answering and best_effort_chunk and scheduler.chunked_req is None:
        # None of them finds room: it may be the prompt that is aside which has it.
        take_back(scheduler)
        return _of(original, scheduler, running_batch, best_effort_requests)
    aside.passed += answering or not none
    return plan


def take_back(scheduler: Scheduler) -> None:
    """The prompt that was put aside is the scheduler's again, unless another one is half done."""
    aside = of(scheduler).get(Aside)
    if aside.chunked is not None and scheduler.chunked_req is None:
        scheduler.chunked_req, aside.chunked = aside.chunked, None


def _of(
    original: Original[Plan], scheduler: Scheduler, running_batch: Batch, these: list[Req]
) -> Plan:
    """A batch of `these` alone."""
    with only(scheduler, these):
        return original(scheduler, running_batch)


@contextmanager
def only(scheduler: Scheduler, these: list[Req]) -> Iterator[None]:
    """As if nobody waited but `these`, some of whom SGLang takes out of the queue meanwhile."""
    order = {id(req): place for place, req in enumerate(scheduler.waiting_queue)}
    kept = {id(req) for req in these}
    others = [req for req in scheduler.waiting_queue if id(req) not in kept]
    scheduler.waiting_queue = list(these)
    try:
        yield
    finally:
        left = [*scheduler.waiting_queue, *others]
        left.sort(key=lambda req: order.get(id(req), len(order)))
        scheduler.waiting_queue = left


def _abort(original: Original[None], scheduler: Scheduler, recv_req: Abort) -> None:
    aside = of(scheduler).get(Aside).chunked
    if aside is None or not (recv_req.abort_all or aside.rid.startswith(recv_req.rid)):
        original(scheduler, recv_req)
        return
    kept, scheduler.chunked_req = scheduler.chunked_req, aside
    try:
        original(scheduler, recv_req)
    finally:
        scheduler.chunked_req = kept


def _not_idle(original: Original[None], scheduler: Scheduler) -> None:
    """A prompt that was put aside has KV, of which SGLang's check for leaks would know nothing."""
    if of(scheduler).get(Aside).chunked is None:
        original(scheduler)


def _pending_abort(original: Original[None], scheduler: Scheduler) -> None:
    aside = of(scheduler).get(Aside)
    if aside.chunked is not None and scheduler._pending_chunked_abort_req is aside.chunked:
        kept, scheduler.chunked_req = scheduler.chunked_req, aside.chunked
        original(scheduler)
        aside.chunked, scheduler.chunked_req = scheduler.chunked_req, kept
        return
    original(scheduler)


PATCH = Patch(
    name="preempt_admission",
    why="best-effort prompts stand behind all others, and a mixed batch could not be stopped",
    after={
        "cpu_idle": "a rank that has put a prompt aside is not idle",
        "step_log": "a rank that has put a prompt aside is not idle",
    },
    processes=EITHER,
    variable=PREEMPT_VARIABLE,
    hooks=(
        Hook(f"{SCHEDULER}.get_new_batch_prefill", _next_batch, ("self", "running_batch")),
        Hook(f"{SCHEDULER}.abort_request", _abort, ("self", "recv_req")),
        Hook(f"{SCHEDULER}.process_pending_chunked_abort", _pending_abort, ("self",)),
        Hook(f"{SCHEDULER}.on_idle", _not_idle, ("self",)),
    ),
)
