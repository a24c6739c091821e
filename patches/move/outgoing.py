"""A decode rank sends a running request's KV to another decode rank, and decodes on meanwhile.

The router posts the request to the target with the ids that it has and with places for more, so the
target can say where the KV is to go. Then the KV is sent in rounds, each with the pages that were
completed since the round before. When what is left is little, by the rates that this move has had
(`toolkit.policies.precopy`), the request stops: the last rows follow, with the number of its tokens
and the last of their ids in the request's metadata, and from here on its client gets nothing more
from this rank (`patches.move.held`). The rank decodes on all the same: as long as the target has
not generated a token the request can go on here at once.

This rank alone decides at which token the request stops, or that it cannot. Ranks that share a
request measure each for itself, and do what the least hopeful of them says.

KV that is being sent must stay what it is. A request that ends before the last rows left only ends
its move; one that ends while they leave (a matter of milliseconds) keeps its KV until they have.
"""

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from patches.base import EITHER, Hook, Patch
from patches.dp import layout
from patches.layers import Original
from patches.move import draft_state, held
from patches.move.copying import FAILED, SENT, Outgoing, StepTimes
from patches.move.incoming import learn
from patches.move.manager import CountingManager, MoveSender, obstacle, sending_manager
from patches.scheduler_state import current, of
from patches.sglang_types import Batch, Req, Scheduler
from toolkit.contract.addresses import host_port
from toolkit.contract.events import MoveState, Moving
from toolkit.contract.move_orders import End, Ids, Send
from toolkit.contract.variables import MOVE_VARIABLE
from toolkit.limited_logs import limited_logger
from toolkit.policies.precopy import Act

log = limited_logger("toolkit.move")

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
LAST_ROWS_S = 2.0
"""A request that has ended waits so long for its last rows to leave. They go to a target that has
answered a moment ago; who is dead by then gets nothing that anybody would read."""
LOOK_S = 0.0005
AT_A_TIME = 8
"""Moves from one rank; the router's bound is lower."""


@dataclass
class MovingState:
    """Requests that go on elsewhere. `manager`: None where the rank cannot send, for the reason
    `why`. `moves` are by request id, `steps` the rank's."""

    manager: CountingManager | None = None
    why: str = "it has not started"
    moves: dict[str, Outgoing] = field(default_factory=dict)
    steps: StepTimes = field(default_factory=StepTimes)


def _start(original: Original[None], scheduler: Scheduler) -> None:
    original(scheduler)
    moving = of(scheduler).get(MovingState)
    moving.why = obstacle(scheduler)
    if moving.why:
        log.warning("requests cannot be sent elsewhere from this rank: %s", moving.why)
    else:
        moving.manager = sending_manager(scheduler)
        moving.steps.most = draft_state.most_a_step(scheduler)


def _take_orders(original: Original[None], scheduler: Scheduler) -> None:
    original(scheduler)
    dispatcher = scheduler._request_dispatcher
    orders = [
        (Send, lambda order: begin(scheduler, order)),
        (End, lambda order: end(scheduler, order)),
        (Ids, lambda order: learn(scheduler, order)),
    ]
    dispatcher += type(dispatcher)(orders)


def begin(scheduler: Scheduler, order: Send) -> None:
    """Take an order up; a refusal goes to the router. Who does not have the request is silent: one
    rank of several does, or it has ended, of which the router hears anyway."""
    req = next((req for req in scheduler.running_batch.reqs if req.rid == order.rid), None)
    if req is None or req.finished():
        return
    moving = of(scheduler).get(MovingState)
    if moving.manager is None:
        _tell(scheduler, req, Moving(order.rid, "unable", order.room, moving.why))
        return
    reason = _refusal(scheduler, req, order)
    if reason:
        _tell(scheduler, req, Moving(order.rid, "refused", order.room, reason))
        return
    from sglang.srt.disaggregation.utils import KVClassType, get_kv_class

    kind: Callable[..., MoveSender] = get_kv_class(scheduler.transfer_backend, KVClassType.SENDER)
    sender = kind(
        mgr=moving.manager,
        bootstrap_addr=host_port(moving.manager.bootstrap_host, moving.manager.bootstrap_port),
        bootstrap_room=order.room,
        req_has_disagg_prefill_dp_rank=True,
        **_of_older_releases(kind),
    )
    now = time.perf_counter()
    page = int(scheduler.token_to_kv_pool_allocator.page_size)
    moving.moves[order.rid] = Outgoing(req, order, sender, now, page, moving.steps)


def end(scheduler: Scheduler, order: End) -> None:
    """Nothing comes of a move: the request goes on here, if it was to stop."""
    move = of(scheduler).get(MovingState).moves.get(order.rid)
    if move is not None and move.order.room == order.room:
        move.sender.abort()
        _close(scheduler, move)
    held.let_go(scheduler, order.rid, order.room)


def _of_older_releases(kind: Callable[..., MoveSender]) -> dict[str, object]:
    """Arguments of a sender that it had up to 0.5.21; nobody reads them."""
    from sglang.srt.runtime_context import get_parallel

    if "dest_tp_ranks" not in inspect.signature(kind).parameters:
        return {}
    parallel = get_parallel()
    return {"dest_tp_ranks": [parallel.tp_rank], "pp_rank": parallel.pp_rank}


def _refusal(scheduler: Scheduler, req: Req, order: Send) -> str:
    moves = of(scheduler).get(MovingState).moves
    if order.rid in moves or held.holds(scheduler, order.rid):
        return "it is being moved"
    if len(moves) >= AT_A_TIME:
        return f"{AT_A_TIME} requests are being moved"
    if len(req.output_ids) < order.known:
        return f"it has {len(req.output_ids)} tokens, and not {order.known}"
    beams = getattr(req, "beam_group", None) is not None  # none in 0.5.17
    if req.return_logprob or beams or req.multimodal_inputs is not None:
        return "only text without log probabilities or beams can be moved"
    return ""


def advance(scheduler: Scheduler) -> None:
    """Take every move as far as it goes now. Ranks that share requests call this alike."""
    for each in held.overdue(scheduler):
        event = Moving(each.req.rid, "failed", each.room, "nobody said what comes of it")
        _tell(scheduler, each.req, event)
        held.let_go(scheduler, each.req.rid, each.room)
    moves = list(of(scheduler).get(MovingState).moves.values())
    if not moves:
        return
    from sglang.srt.disaggregation.utils import poll_and_all_reduce

    acts = poll_and_all_reduce(moves, scheduler.attn_tp_cpu_group)
    for move, act in zip(moves, acts, strict=True):
        _do(scheduler, move, act)


def _do(scheduler: Scheduler, move: Outgoing, act: int) -> None:
    if act == FAILED:
        _end(scheduler, move, "failed", move.failure())
    elif act == SENT:
        _end(scheduler, move, "sent")
    elif act in (Act.GIVE_UP, Act.REPLAY):
        _call_off(scheduler, move, "slow" if act == Act.GIVE_UP else "replay", move.then.reason)
    elif act == Act.SEND:
        if move.row < 0 and not move.open(scheduler):
            _call_off(scheduler, move, "refused", "all rows of metadata are in use")
        else:
            move.send_round(scheduler)
    elif act == Act.STOP:
        held.hold(scheduler, move.req, move.order.room)
        move.stop(scheduler)
        _tell(scheduler, move.req, move.event("cut"))


def _call_off(scheduler: Scheduler, move: Outgoing, state: MoveState, reason: str) -> None:
    move.sender.abort()
    _end(scheduler, move, state, reason or "another rank of it cannot send its part in time")


def _end(scheduler: Scheduler, move: Outgoing, state: MoveState, reason: str = "") -> None:
    event = move.event(state, reason)
    _close(scheduler, move)
    _tell(scheduler, move.req, event)
    if state != "sent":
        held.let_go(scheduler, move.order.rid, move.order.room)


def _close(scheduler: Scheduler, move: Outgoing) -> None:
    del of(scheduler).get(MovingState).moves[move.order.rid]
    move.close(scheduler)


def _tell(scheduler: Scheduler, req: Req, event: Moving) -> None:
    import msgspec

    event = msgspec.structs.replace(event, dp_rank=layout.rank(scheduler))
    # Only the rank that talks to the tokenizer has a socket; on the others this is a no-op.
    scheduler.ipc_channels.send_to_tokenizer.send_output(event, req)


def leave(scheduler: Scheduler, req: Req) -> None:
    """The request's KV is about to be given back."""
    move = of(scheduler).get(MovingState).moves.get(req.rid)
    if move is None or move.req is not req:
        return
    from sglang.srt.disaggregation.base.conn import KVPoll

    until = time.perf_counter() + LAST_ROWS_S
    poll = move.sender.poll()
    while move.cut_at and poll not in (KVPoll.Success, KVPoll.Failed):
        if time.perf_counter() > until:
            break
        time.sleep(LOOK_S)
        poll = move.sender.poll()
    if move.cut_at and poll == KVPoll.Success:
        _end(scheduler, move, "sent")
    elif move.cut_at and poll == KVPoll.Failed:
        _end(scheduler, move, "failed", move.failure())
    else:
        _call_off(scheduler, move, "gone", "the request ended or was put aside")


def _after_step(
    original: Original[None], scheduler: Scheduler, batch: Batch, result: object
) -> None:
    steps = of(scheduler).get(MovingState).steps
    if scheduler.spec_algorithm.is_none() or not batch.forward_mode.is_decode():
        original(scheduler, batch, result)
        steps.stepped(time.perf_counter())
    else:
        running = [req for req in batch.reqs if not req.finished()]
        had = sum(len(req.output_ids) for req in running)
        original(scheduler, batch, result)
        given = sum(len(req.output_ids) for req in running) - had
        steps.stepped(time.perf_counter(), given / max(1, len(running)))
    advance(scheduler)


def _before_queue(original: Original[None], scheduler: Scheduler) -> None:
    if not scheduler.running_batch.reqs:
        of(scheduler).get(MovingState).steps.paused()
    advance(scheduler)
    original(scheduler)


def _release(
    original: Original[None], req: Req, tree_cache: object, *args: object, **kwargs: object
) -> None:
    state = current()
    if state.get(MovingState).moves and state.scheduler is not None:
        leave(state.scheduler, req)
    original(req, tree_cache, *args, **kwargs)


PATCH = Patch(
    name="move_outgoing",
    why="a running request's KV goes to another decode worker while it is decoded on",
    after={
        "step_log": "the step has ended before moves are looked at",
    },
    independent_of={
        "early_place": "one is about requests that run, the other about those that wait",
    },
    processes=EITHER,
    variable=MOVE_VARIABLE,
    hooks=(
        Hook(f"{SCHEDULER}.init_disaggregation", _start, ("self",)),
        Hook(f"{SCHEDULER}.init_request_dispatcher", _take_orders, ("self",)),
        Hook(f"{SCHEDULER}.process_batch_result", _after_step, ("self", "batch", "result")),
        Hook(
            "sglang.srt.disaggregation.decode.SchedulerDisaggregationDecodeMixin"
            ".process_decode_queue",
            _before_queue,
            ("self",),
        ),
        Hook(
            "sglang.srt.mem_cache.common.release_kv_cache",
            _release,
            ("req", "tree_cache"),
        ),
    ),
    requires=(
        "sglang.srt.disaggregation.mooncake.conn.MooncakeKVManager.register_buffer_to_engine",
        "sglang.srt.disaggregation.mooncake.conn.MooncakeKVManager.add_transfer_request",
        "sglang.srt.disaggregation.mooncake.conn.MooncakeKVManager.transfer_worker",
        "sglang.srt.disaggregation.mooncake.conn.MooncakeKVSender.send",
        "sglang.srt.disaggregation.mooncake.conn.MooncakeKVSender.poll",
        "sglang.srt.disaggregation.common.conn.CommonKVSender.pop_decode_prefix_len",
        "sglang.srt.disaggregation.utils.poll_and_all_reduce",
        "sglang.srt.disaggregation.utils.ReqToMetadataIdxAllocator.alloc",
        "sglang.srt.disaggregation.utils.MetadataBuffers.get_buf_infos",
        "sglang.srt.mem_cache.common.kv_to_page_indices",
    ),
)
