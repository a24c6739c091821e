"""Output that a rank holds back: of a request that has stopped here, as another rank goes on with
it.

Its KV stays, and it is decoded on meanwhile: if the other one fails, its client gets at once what
was held back. Who ends the hold is the router, by `End` or by dropping the request, or this rank
itself where the KV has not got across (`patches.move.outgoing`). So no client ever has tokens of
both.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from patches.base import EITHER, Hook, Patch
from patches.layers import Original
from patches.scheduler_state import current, of
from patches.sglang_types import Abort, Req, Scheduler
from toolkit.contract.variables import MOVE_VARIABLE

HOLD_S = 15.0
"""The router says what comes of a move within seconds; where it does not, the request goes on."""
STREAMER = "sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer"


@dataclass(frozen=True, slots=True)
class Held:
    """One request's output. `room`: of the move for which it has stopped."""

    req: Req
    room: int
    since: float


@dataclass
class HeldState:
    """Whose output is held back, by request id."""

    by_request: dict[str, Held] = field(default_factory=dict)


def hold(scheduler: Scheduler, req: Req, room: int) -> None:
    """From now on its client gets nothing from here."""
    of(scheduler).get(HeldState).by_request[req.rid] = Held(req, room, time.perf_counter())


def let_go(scheduler: Scheduler, rid: str, room: int) -> None:
    """It goes on here: with its next step its client gets what was held back, and at once if it has
    ended meanwhile."""
    kept = of(scheduler).get(HeldState).by_request
    held = kept.get(rid)
    if held is None or held.room != room:
        return
    del kept[rid]
    if held.req.finished():
        scheduler.output_streamer.stream_output([held.req], held.req.return_logprob)


def holds(scheduler: Scheduler, rid: str) -> bool:
    """Whether this request's output is held back."""
    return rid in of(scheduler).get(HeldState).by_request


def overdue(scheduler: Scheduler) -> list[Held]:
    """Those of which the router has said nothing for too long."""
    kept = of(scheduler).get(HeldState).by_request
    if not kept:
        return []
    until = time.perf_counter() - HOLD_S
    return [held for held in kept.values() if held.since < until]


def _passes(req: Req) -> bool:
    kept = current().get(HeldState).by_request
    held = kept.get(req.rid)
    if held is None or held.req is not req:
        return True
    if req.finished_reason is None or req.finished_reason.to_json().get("type") != "abort":
        return False
    del kept[req.rid]  # the HTTP server waits for the end of what it has aborted
    return True


def _stream(
    original: Original[None], streamer: object, reqs: Sequence[Req], *args: object, **kwargs: object
) -> None:
    if current().get(HeldState).by_request:
        reqs = [req for req in reqs if _passes(req)]
    original(streamer, reqs, *args, **kwargs)


def _abort(original: Original[None], scheduler: Scheduler, recv_req: Abort) -> None:
    original(scheduler, recv_req)
    for rid, held in list(of(scheduler).get(HeldState).by_request.items()):
        # What still runs ends with its next step, and passes then.
        if held.req.finished() and (recv_req.abort_all or rid.startswith(recv_req.rid)):
            let_go(scheduler, rid, held.room)


PATCH = Patch(
    name="move_held",
    why="what a request that goes on elsewhere generates here is not sent to its client",
    processes=EITHER,
    variable=MOVE_VARIABLE,
    independent_of={
        "preempt_admission": "it drops prompts that wait on a prefill worker; what is held back "
        "here decodes",
    },
    hooks=(
        Hook(f"{STREAMER}.stream_output", _stream, ("self", "reqs", "return_logprob")),
        Hook(
            "sglang.srt.managers.scheduler.Scheduler.abort_request",
            _abort,
            ("self", "recv_req"),
        ),
    ),
)
