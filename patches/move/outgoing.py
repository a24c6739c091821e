"""A decode rank sends a running request's KV to another decode rank, and decodes on meanwhile.

The router names a token: the target is to have the KV of the prompt and of `count` output tokens,
and goes on behind the one after them. It posts the request there with the ids that it has, and with
placeholders for those that are still to come; so the target can say at once where the KV is to go,
and most of it is sent while this rank decodes those tokens. When the token after them is known,
their KV is complete, and the rest follows: their rows, and their ids in the request's metadata. So
the client waits for the last rows only, however long the context.

This rank alone decides whether the move takes place, at that very token: if the target has not said
by then where the KV is to go, or what was sent before is still on its way, it does not, and the
request goes on here as if nothing had been. It also goes on here after a move that does: the router
tells it to stop once the target has generated a token, and has its answer from here as long as the
target has not.

KV that is being sent must stay what it is. A request that ends before the last rows left only ends
its move; one that ends while they leave (a matter of milliseconds) keeps its KV until they have.
"""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass, field
from typing import Any

from patches.base import EITHER, Hook, Patch
from patches.dp import layout
from patches.kv_row import kv_row, physical
from patches.move.manager import obstacle, on_its_way, sending_manager
from patches.move.order import MoveOrder
from toolkit.contract.events import Moving
from toolkit.contract.variables import MOVE_VARIABLE
from toolkit.limited_logs import limited_logger

log = limited_logger("toolkit.move")

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
LAST_ROWS_S = 2.0
"""A request that has ended waits so long for its last rows to leave. They go to a target that has
answered a moment ago; who is dead by then gets nothing that anybody would read."""
LOOK_S = 0.0005
QUIET = 3
"""Tokens before the cut in which nothing more is sent."""
REST = 256
"""Tokens beside those that are late that may be sent while the client waits."""
AT_A_TIME = 8
"""Moves from one rank; the router's bound is lower."""


@dataclass
class Outgoing:
    """One move. `sent` pages are on their way, of `pages`; `row`: its row of metadata, -1 until
    the target has said where the KV is to go."""

    req: Any
    order: MoveOrder
    sender: Any
    began: float
    row: int = -1
    pages: int = 0
    sent: int = 0
    skipped: int = 0
    """Tokens at the beginning that the target has."""
    cut_at: float = 0.0
    """When the last rows left; 0: they have not."""

    @property
    def rows(self) -> int:
        """Tokens whose KV the target is to have."""
        return len(self.req.origin_input_ids) + self.order.count

    @property
    def complete(self) -> int:
        """Tokens whose KV is complete: that of the last output token is still being computed."""
        return len(self.req.origin_input_ids) + len(self.req.output_ids) - 1

    def poll(self) -> int:
        """How far this rank is, as `KVPoll`; of ranks that share the request the least far counts.
        Before the cut: Bootstrapping while the target has not said where the KV is to go, or while
        something is on its way, else WaitingForInput."""
        from sglang.srt.disaggregation.base.conn import KVPoll

        told = int(self.sender.poll())
        if self.row < 0 or self.cut_at or told == KVPoll.Failed:
            return told
        busy = on_its_way(self.sender.kv_mgr, self.order.room)
        return int(KVPoll.Bootstrapping if busy else KVPoll.WaitingForInput)

    @property
    def due(self) -> bool:
        """Whether the token after the last one that goes along is known."""
        return len(self.req.output_ids) > self.order.count


@dataclass
class Rank:
    """Of this rank. `manager`: None where it cannot send, for the reason `why`."""

    scheduler: Any = None
    manager: Any = None
    why: str = "it has not started"
    moves: dict[str, Outgoing] = field(default_factory=dict)


RANK = Rank()


def _start(original: Any, scheduler: Any) -> None:
    original(scheduler)
    RANK.scheduler, RANK.why = scheduler, obstacle(scheduler)
    if RANK.why:
        log.warning("requests cannot be sent elsewhere from this rank: %s", RANK.why)
    else:
        RANK.manager = sending_manager(scheduler)


def _take_orders(original: Any, scheduler: Any) -> None:
    original(scheduler)
    dispatcher = scheduler._request_dispatcher
    dispatcher += type(dispatcher)([(MoveOrder, lambda order: begin(scheduler, order))])


def begin(scheduler: Any, order: MoveOrder) -> None:
    """Take an order up; a refusal goes to the router. Who does not have the request is silent: one
    rank of several does, or it has ended, of which the router hears anyway."""
    req = next((req for req in scheduler.running_batch.reqs if req.rid == order.rid), None)
    if req is None or req.finished():
        return
    if RANK.manager is None:
        _tell(scheduler, req, Moving(order.rid, "unable", order.room, RANK.why))
        return
    reason = _refusal(req, order)
    if reason:
        _tell(scheduler, req, Moving(order.rid, "refused", order.room, reason))
        return
    from sglang.srt.disaggregation.utils import KVClassType, get_kv_class

    kind: Any = get_kv_class(scheduler.transfer_backend, KVClassType.SENDER)
    sender = kind(
        mgr=RANK.manager,
        bootstrap_addr=f"{RANK.manager.bootstrap_host}:{RANK.manager.bootstrap_port}",
        bootstrap_room=order.room,
        req_has_disagg_prefill_dp_rank=True,
        **_of_older_releases(kind),
    )
    RANK.moves[order.rid] = Outgoing(req, order, sender, time.perf_counter())


def _of_older_releases(kind: Any) -> dict[str, Any]:
    """Arguments of a sender that it had up to 0.5.21; nobody reads them."""
    from sglang.srt.runtime_context import get_parallel

    if "dest_tp_ranks" not in inspect.signature(kind).parameters:
        return {}
    parallel = get_parallel()
    return {"dest_tp_ranks": [parallel.tp_rank], "pp_rank": parallel.pp_rank}


def _refusal(req: Any, order: MoveOrder) -> str:
    if order.rid in RANK.moves:
        return "it is being moved"
    if len(RANK.moves) >= AT_A_TIME:
        return f"{AT_A_TIME} requests are being moved"
    if len(req.output_ids) > order.count:
        return "it is past that token"
    beams = getattr(req, "beam_group", None) is not None  # none in 0.5.17
    if req.return_logprob or beams or req.multimodal_inputs is not None:
        return "only text without log probabilities or beams can be moved"
    return ""


def advance(scheduler: Any) -> None:
    """Take every move as far as it goes now. Ranks that share requests call this alike."""
    if not RANK.moves:
        return
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.disaggregation.utils import poll_and_all_reduce

    moves = list(RANK.moves.values())
    polls = poll_and_all_reduce(moves, scheduler.attn_tp_cpu_group)
    for move, poll in zip(moves, polls, strict=True):
        if poll == KVPoll.Failed:
            _end(scheduler, move, "failed", _failure(move))
        elif move.cut_at:
            if poll == KVPoll.Success:
                _end(scheduler, move, "sent")
        else:
            _go_on(scheduler, move, ready=poll == KVPoll.WaitingForInput)


def _go_on(scheduler: Any, move: Outgoing, ready: bool) -> None:
    if move.row < 0 and ready and not _open(scheduler, move):
        return
    if move.due and (not ready or _much_left(scheduler, move)):
        move.sender.abort()
        where = "the target had not said where it is to go"
        _end(scheduler, move, "late", where if move.row < 0 else "the KV was still on its way")
    elif move.due:
        _cut(scheduler, move)
    elif move.row >= 0:
        _send_some(scheduler, move)


def _much_left(scheduler: Any, move: Outgoing) -> bool:
    """Whether the target has said only just now where the KV is to go: all would be sent while the
    client waits."""
    left = move.pages - move.sent
    return left * _page_size(scheduler) > move.order.late + REST


def _open(scheduler: Any, move: Outgoing) -> bool:
    """The target has said where the KV is to go. False, and the move is over, when this rank has no
    row of metadata left."""
    from sglang.srt.mem_cache.common import kv_to_page_num

    row = scheduler.req_to_metadata_buffer_idx_allocator.alloc()
    if row is None:
        move.sender.abort()
        _end(scheduler, move, "refused", "all rows of metadata are in use")
        return False
    move.row, move.skipped = row, move.sender.pop_decode_prefix_len()
    move.pages = kv_to_page_num(move.rows - move.skipped, _page_size(scheduler))
    move.sender.init(move.pages, row)
    return True


def _send_some(scheduler: Any, move: Outgoing) -> None:
    """Whole pages that are complete, never the last one: with it goes the metadata. Not shortly
    before the cut either: what is still on its way then would call it off."""
    if move.order.count - len(move.req.output_ids) < QUIET:
        return
    whole = (min(move.complete, move.rows) - move.skipped) // _page_size(scheduler)
    _send(scheduler, move, min(whole, move.pages - 1))


def _cut(scheduler: Any, move: Outgoing) -> None:
    req, order, row = move.req, move.order, move.row
    buffers = scheduler.disagg_metadata_buffers
    buffers.cached_tokens[row].zero_()
    buffers.output_ids[row, 0] = req.output_ids[order.count]
    # Log probabilities of a first token travel here; requests that want them are not moved.
    late = buffers.output_top_logprobs_idx[row]
    late[0] = order.late
    for place, token in enumerate(req.output_ids[order.count - order.late : order.count], 1):
        late[place] = token
    buffers.bootstrap_room[row, 0] = order.room
    move.cut_at = time.perf_counter()
    _send(scheduler, move, move.pages)
    _tell(scheduler, req, Moving(order.rid, "cut", order.room, tokens=move.rows))


def _send(scheduler: Any, move: Outgoing, upto: int) -> None:
    """All pages before `upto` that are not on their way yet."""
    from sglang.srt.mem_cache.common import kv_to_page_indices

    if upto <= move.sent:
        return
    size, allocator = _page_size(scheduler), scheduler.token_to_kv_pool_allocator
    begin = move.skipped + move.sent * size
    end = min(move.skipped + upto * size, move.rows)
    rows = scheduler.req_to_token_pool.req_to_token[kv_row(move.req), begin:end]
    pages = kv_to_page_indices(physical(allocator, rows), size)
    move.sender.send(pages, num_kv_tokens=end - begin)
    move.sent = upto


def _page_size(scheduler: Any) -> int:
    return int(scheduler.token_to_kv_pool_allocator.page_size)


def _failure(move: Outgoing) -> str:
    try:
        move.sender.failure_exception()
    except Exception as error:  # that is how it says what was wrong
        return str(error)
    return "the KV could not be sent"


def _end(scheduler: Any, move: Outgoing, state: Any, reason: str = "") -> None:
    order, now = move.order, time.perf_counter()
    del RANK.moves[order.rid]
    metric = move.sender.get_transfer_metric()
    move.sender.clear()
    if move.row >= 0:
        # Whoever gets the row next must see that nothing has come yet.
        scheduler.disagg_metadata_buffers.bootstrap_room[move.row] = 0
        scheduler.req_to_metadata_buffer_idx_allocator.free(move.row)
    news = Moving(
        order.rid,
        state,
        order.room,
        reason,
        tokens=move.rows if state == "sent" else 0,
        bytes=int(metric.transfer_total_bytes or 0),
        seconds=now - move.began,
        last_s=now - move.cut_at if state == "sent" else 0.0,
    )
    _tell(scheduler, move.req, news)


def _tell(scheduler: Any, req: Any, news: Moving) -> None:
    import msgspec

    news = msgspec.structs.replace(news, dp_rank=layout.rank(scheduler))
    # Only the rank that talks to the tokenizer has a socket; on the others this is a no-op.
    scheduler.ipc_channels.send_to_tokenizer.send_output(news, req)


def leave(scheduler: Any, req: Any) -> None:
    """The request's KV is about to be given back."""
    move = RANK.moves.get(req.rid)
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
        _end(scheduler, move, "failed", _failure(move))
    else:
        move.sender.abort()
        _end(scheduler, move, "gone", "the request ended or was put aside")


def _after_step(original: Any, scheduler: Any, batch: Any, result: Any) -> None:
    original(scheduler, batch, result)
    advance(scheduler)


def _before_queue(original: Any, scheduler: Any) -> None:
    advance(scheduler)
    original(scheduler)


def _release(original: Any, req: Any, tree_cache: Any, *args: Any, **kwargs: Any) -> None:
    if RANK.moves:
        leave(RANK.scheduler, req)
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
        "sglang.srt.disaggregation.mooncake.conn.MooncakeKVSender.send",
        "sglang.srt.disaggregation.mooncake.conn.MooncakeKVSender.poll",
        "sglang.srt.disaggregation.common.utils.FastQueue",
        "sglang.srt.disaggregation.common.conn.CommonKVSender.pop_decode_prefix_len",
        "sglang.srt.disaggregation.utils.poll_and_all_reduce",
        "sglang.srt.disaggregation.utils.ReqToMetadataIdxAllocator.alloc",
        "sglang.srt.disaggregation.utils.MetadataBuffers.get_buf_infos",
        "sglang.srt.mem_cache.common.kv_to_page_indices",
        "sglang.srt.mem_cache.common.kv_to_page_num",
    ),
)
