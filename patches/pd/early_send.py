"""Hand a parked request's KV to the transfer engine when its decode worker asks for it.

A late-bound request waits in `disagg_prefill_inflight_queue`, its KV locked, for the decode worker
that the router chooses. SGLang looks once a round of the prefill scheduler's loop whether that one
has named its pages, and a round takes as long as the forward in it: the first token of one user
waits until another user's prompt is through, on a GPU for a chunk of thousands of tokens.

Mooncake hears of the pages in a thread of its own, and another one moves the KV. All that lies
between is which pages to send, and that is known when the request is parked: it is written down
then (`Parked`), and the first of these threads queues the transfer. The scheduler finds it under
way in its next round. Whoever comes first of the two has the request, under one lock.

Left to the scheduler, as before: other transfer engines, models with state beside their KV
(sliding windows, Mamba, sparse indices), staging buffers, decode context parallelism, checksums,
and the hierarchical cache that writes through, since a parked request is not in its tree yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from patches.base import EITHER, Hook, Patch, Variant
from patches.kv_row import kv_row, physical
from patches.layers import Original
from patches.pd.kv_transfer import mark_last_send
from patches.pd.late_binding import newly_finished
from patches.scheduler_state import current, of
from patches.sglang_types import Batch, Req, Scheduler, SendingManager
from toolkit.limited_logs import limited_logger

if TYPE_CHECKING:
    from torch import Tensor


log = limited_logger("toolkit.kv")

MIXIN = "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
MANAGER = "sglang.srt.disaggregation.common.conn.CommonKVManager"
QUEUE = "sglang.srt.disaggregation.prefill.PrefillBootstrapQueue"
MOONCAKE = "sglang.srt.disaggregation.mooncake.conn.MooncakeKVSender"
_SENT = "_toolkit_sent_early"


@dataclass(frozen=True, slots=True)
class Parked:
    """A finished prefill without a decode worker. `slots`: int tensor [prompt tokens] on the host,
    where in the KV pool they lie, locked until the transfer has ended."""

    req: Req
    slots: Tensor
    page_size: int


@dataclass
class ParkedState:
    """Finished prefills by bootstrap room. An entry leaves when it is sent, or when the scheduler
    sees its room do anything. A thread of the KV manager sends: whoever reads holds `lock`."""

    by_room: dict[int, Parked] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)


def _park_finished(
    original: Original[None], scheduler: Scheduler, batch: Batch, result: object
) -> None:
    for req in newly_finished(original, scheduler, batch, result):
        if not req.pending_bootstrap or not _eligible(scheduler, req):
            continue
        scheduler.disagg_metadata_buffers.set_buf(req)
        pool, allocator = scheduler.req_to_token_pool, scheduler.token_to_kv_pool_allocator
        end = min(computed(req), len(req.origin_input_ids))
        slots = pool.req_to_token[kv_row(req), :end]
        slots = physical(allocator, slots).cpu()
        parked = Parked(req, slots, allocator.page_size)
        kept = of(scheduler).get(ParkedState)
        with kept.lock:
            kept.by_room[req.bootstrap_room] = parked


def _writes_through(scheduler: Scheduler) -> bool:
    from sglang.srt.disaggregation import prefill

    writes = getattr(prefill, "_uses_write_through_cache", None)
    if writes is not None:
        return bool(writes(scheduler.tree_cache))
    # Before: a prompt that waits for its decode worker is in no tree either way.
    return bool(getattr(scheduler.tree_cache, "cache_controller", None))


def computed(req: Req) -> int:
    """Tokens up to the end of the chunk that has just run; from 0.5.22 on it is a plain number."""
    return int(req.extend_end if hasattr(req, "extend_end") else req.extend_range.end)


def _eligible(scheduler: Scheduler, req: Req) -> bool:
    from sglang.srt.disaggregation import prefill

    sender = req.disagg_kv_sender
    kind = type(sender)
    return (
        f"{kind.__module__}.{kind.__qualname__}" == MOONCAKE
        and req.metadata_buffer_index >= 0
        and not sender.kv_mgr.kv_args.state_types
        and not scheduler.enable_staging
        and getattr(scheduler, "kv_checksum_computer", None) is None
        and not _writes_through(scheduler)
        and not prefill.should_force_retry(req)
    )


def all_parked(scheduler: Scheduler) -> bool:
    """Whether a prefill worker has nothing but requests that a thread sends once they are asked
    for: its scheduler can do nothing for any of them."""
    queue = scheduler.disagg_prefill_inflight_queue
    if not queue or scheduler.waiting_queue or scheduler.disagg_prefill_bootstrap_queue.queue:
        return False
    kept = of(scheduler).get(ParkedState)
    with kept.lock:
        return all(req.bootstrap_room in kept.by_room for req in queue)


def _send_when_asked(
    original: Original[None], manager: SendingManager, bootstrap_room: int, status: int
) -> None:
    from sglang.srt.disaggregation.base.conn import KVPoll

    # Before the status is there to be seen: the scheduler must find the request taken.
    asked = status == KVPoll.WaitingForInput
    parked = _take(bootstrap_room) if asked else None
    original(manager, bootstrap_room, status)
    if parked is None:
        return
    try:
        _send(parked)
    except Exception as error:  # the thread serves every other request too
        log.exception("the KV of %s was not sent", parked.req.rid)
        manager.record_failure(bootstrap_room, f"{type(error).__name__}: {error}")
        manager.update_status(bootstrap_room, KVPoll.Failed)


def _take(room: int) -> Parked | None:
    """Who is parked for this room, from now on this thread's to send."""
    kept = current().get(ParkedState)
    with kept.lock:
        parked = kept.by_room.get(room)
        if parked is None or _in_pieces(parked.req.disagg_kv_sender):
            return None
        setattr(parked.req, _SENT, True)
        return kept.by_room.pop(room)


def _in_pieces(sender: object) -> bool:
    """Whether it sends no more than so many tokens at a time (DCP; not yet in 0.5.20)."""
    most = getattr(sender, "get_max_transfer_tokens", None)
    return most is not None and most() is not None


def _send(parked: Parked) -> None:
    """What SGLang's `finalize_bootstrap` and `_send_kv_chunk` do, but for `pending_bootstrap`: that
    changes in the scheduler, in the same round on all ranks."""
    from sglang.srt.mem_cache.common import kv_to_page_indices, kv_to_page_num

    req = parked.req
    sender = req.disagg_kv_sender
    req.time_stats.set_bootstrap_done_time()
    skipped = sender.pop_decode_prefix_len()
    req.disagg_decode_prefix_len = skipped
    req.start_send_idx = len(parked.slots)
    pages = kv_to_page_num(len(parked.slots) - skipped, parked.page_size)
    sender.init(pages, req.metadata_buffer_index)
    slots = parked.slots[skipped:]
    mark_last_send(req, len(slots))
    sender.send(kv_to_page_indices(slots, parked.page_size), [], num_kv_tokens=len(slots))


def _find_sent(original: Original[bool], scheduler: Scheduler, req: Req, poll: object) -> bool:
    from sglang.srt.disaggregation.base.conn import KVPoll

    # Over all ranks: the slowest has not heard of the decode worker yet.
    if poll == KVPoll.Bootstrapping:
        return original(scheduler, req, poll)
    kept = current().get(ParkedState)
    with kept.lock:
        kept.by_room.pop(req.bootstrap_room, None)
        sent = getattr(req, _SENT, False)
    if not sent:
        return original(scheduler, req, poll)
    # Whatever became of the transfer, the next round reads it as that of any other.
    req.pending_bootstrap = False
    return True


def _send_once(
    original: Original[None], scheduler: Scheduler, req: Req, *args: object, **kwargs: object
) -> None:
    if getattr(req, _SENT, False):
        # 0.5.17 has no such note.
        getattr(scheduler, "disagg_prefill_pending_chunk_rids", set()).discard(req.rid)
    else:
        original(scheduler, req, *args, **kwargs)


PATCH = Patch(
    name="early_send",
    why="a late-bound request's KV waits for the end of the forward that runs",
    gain="a finished prompt's KV leaves at once",
    needs=("late_binding", "kv_transfer", "parked"),
    after={
        "prefill_only": "a request for one token is gone by then: nobody asks for its KV",
        "kv_transfer": "what a thread has sent is not marked again",
    },
    processes=EITHER,
    hooks=(
        Hook(
            f"{MIXIN}.process_batch_result_disagg_prefill",
            _park_finished,
            ("self", "batch", "result"),
        ),
        Hook(f"{MANAGER}.update_status", _send_when_asked, ("self", "bootstrap_room", "status")),
        Hook(f"{MIXIN}.handle_pending_bootstrap", _find_sent, ("self", "req", "poll")),
        Hook(f"{MIXIN}.send_kv_chunk", _send_once, ("self", "req", "last_chunk")),
    ),
    requires=(
        f"{MIXIN}.process_disagg_prefill_inflight_queue",
        f"{QUEUE}.finalize_bootstrap",
        f"{MOONCAKE}.send",
        f"{MOONCAKE}.init",
        f"{MOONCAKE}.pop_decode_prefix_len",
        f"{MANAGER}.record_failure",
        "sglang.srt.disaggregation.prefill.should_force_retry",
        "sglang.srt.disaggregation.utils.MetadataBuffers.set_buf",
        "sglang.srt.mem_cache.common.kv_to_page_indices",
        "sglang.srt.mem_cache.common.kv_to_page_num",
    ),
    variants=(
        Variant(
            "from 0.5.21",
            requires=(
                f"{MIXIN}._send_kv_chunk",
                f"{QUEUE}._num_pages_to_send",
                f"{MOONCAKE}.get_max_transfer_tokens",
                "sglang.srt.disaggregation.prefill._uses_write_through_cache",
            ),
        ),
        Variant("to 0.5.20", requires=(f"{MIXIN}.send_kv_chunk",)),
    ),
)
