"""One request whose KV a decode rank sends to another one: what is sent, and what was measured."""

import statistics
import time
from collections import deque
from dataclasses import dataclass

from patches.kv_row import kv_row, physical
from patches.move import draft_state
from patches.move import row as metadata
from patches.move.manager import MoveSender
from patches.sglang_types import Req, Scheduler
from toolkit.contract.events import MoveState, Moving
from toolkit.contract.move_orders import Send
from toolkit.policies.precopy import Act, Copy, Next, next_act

FAILED, SENT = 0, 9
"""Of a move, beside the acts of `toolkit.policies.precopy`: the KV has not got across, or it has.
The least one counts of ranks that share the request."""


STEPS = 15
"""Of which the median is a rank's step time."""


class StepTimes:
    """How long a rank's last steps took, and how many tokens they gave each request. `most`: that
    one step may give it."""

    def __init__(self) -> None:
        self.most = 1
        self._last = 0.0
        self._times: deque[float] = deque(maxlen=STEPS)
        self._tokens: deque[float] = deque(maxlen=STEPS)

    def stepped(self, now: float, tokens: float = 1.0) -> None:
        """A step has ended."""
        if self._last:
            self._times.append(now - self._last)
            self._tokens.append(tokens)
        self._last = now

    def paused(self) -> None:
        """It has nothing to do; the next step's time would hold this pause."""
        self._last = 0.0

    @property
    def median_s(self) -> float:
        """0: none was measured."""
        return statistics.median(self._times) if self._times else 0.0

    @property
    def tokens(self) -> float:
        """In the mean; 1: none was measured."""
        return statistics.fmean(self._tokens) if self._tokens else 1.0


@dataclass
class Outgoing:
    """One move. `steps`: of the rank. `row`: its row of metadata, -1 until the target has said
    where the KV is to go; `sent`: pages that are sent or on their way."""

    req: Req
    order: Send
    sender: MoveSender
    began: float
    page_tokens: int
    steps: StepTimes
    row: int = -1
    sent: int = 0
    skipped: int = 0
    """Tokens at the beginning that the target has."""
    rounds: int = 0
    round_bytes: int = 0
    round_s: float = 0.0
    """Of the rounds that are over."""
    round_began: float = 0.0
    """When the one that is on its way was sent; 0: none is."""
    round_pages: int = 0
    fewest: int = 1 << 60
    """Pages that were left after a round."""
    stuck: int = 0
    """Rounds since then."""
    then: Next = Next(Act.WAIT)  # noqa: RUF009 (frozen)
    cut_at: float = 0.0
    """When the last rows left; 0: they have not."""
    outputs: int = 0
    """Of a move that has been cut: output tokens of which the target gets the KV."""
    last_bytes: int = 0

    @property
    def complete(self) -> int:
        """Tokens whose KV is complete: that of the last output token is still being computed."""
        return len(self.req.origin_input_ids) + len(self.req.output_ids) - 1

    @property
    def told_outputs(self) -> int:
        """Output tokens whose KV is complete."""
        return len(self.req.output_ids) - 1

    def copy(self, now: float) -> Copy:
        """As it stands."""
        order = self.order
        return Copy(
            page_tokens=self.page_tokens,
            page_bytes=int(self.sender.kv_mgr.kv_item_lens_sum),
            complete=self.complete - self.skipped,
            sent=self.sent,
            in_flight=self.round_began > 0,
            opened=self.row >= 0 and self.told_outputs >= order.known,
            rounds=self.rounds,
            round_bytes=self.round_bytes,
            round_s=self.round_s,
            stuck=self.stuck,
            step_s=self.steps.median_s,
            entire_s=now - self.began,
            reserve=order.known + order.late - self.told_outputs,
            replay_s=order.replay_s,
            step_tokens=self.steps.tokens,
            most_a_step=self.steps.most,
        )

    def poll(self) -> int:
        """What this rank would do now: an Act, FAILED or SENT."""
        from sglang.srt.disaggregation.base.conn import KVPoll

        told = int(self.sender.poll())
        if told == KVPoll.Failed:
            return FAILED
        if self.cut_at:
            return SENT if told == KVPoll.Success else int(Act.WAIT)
        self._count_round()
        self.then = next_act(self.copy(time.perf_counter()))
        if self.row < 0 and self.then.act == Act.WAIT and told >= KVPoll.WaitingForInput:
            self.then = Next(Act.SEND)
        return int(self.then.act)

    def _count_round(self) -> None:
        """Of a round that is over since the last look."""
        traffic, room = self.sender.kv_mgr.toolkit_traffic, self.order.room
        if not self.round_began or traffic.in_flight(room):
            return
        self.round_s += max(1e-6, traffic.done_at(room) - self.round_began)
        self.round_bytes += self.round_pages * int(self.sender.kv_mgr.kv_item_lens_sum)
        self.rounds += 1
        self.round_began = 0.0
        left = -(-(self.complete - self.skipped) // self.page_tokens) - self.sent
        self.stuck = 0 if left < self.fewest else self.stuck + 1
        self.fewest = min(self.fewest, left)

    def open(self, scheduler: Scheduler) -> bool:
        """The target has said where the KV is to go. False: this rank has no row of metadata
        left."""
        row = scheduler.req_to_metadata_buffer_idx_allocator.alloc()
        if row is None:
            return False
        self.row, self.skipped = row, self.sender.pop_decode_prefix_len()
        # More than the target has places for, so that no round is the last one.
        tokens = len(self.req.origin_input_ids) + self.order.known + self.order.late
        self.sender.init(-(-tokens // self.page_tokens) + 1, row)
        return True

    def send_round(self, scheduler: Scheduler) -> None:
        """What is complete by now, while the decode goes on."""
        now = time.perf_counter()
        due = self.copy(now).due
        if due:
            self.round_began, self.round_pages = now, due
            self._send(scheduler, self.sent + due)

    def stop(self, scheduler: Scheduler) -> None:
        """The request stops at its last complete token, and the rest goes over."""
        req, order, now = self.req, self.order, time.perf_counter()
        copy, outputs = self.copy(now), self.told_outputs
        ids = req.output_ids[max(order.known, outputs - metadata.LAST_IDS) : outputs]
        buffers = scheduler.disagg_metadata_buffers
        buffers.cached_tokens[self.row].zero_()
        buffers.output_ids[self.row, 0] = req.output_ids[outputs]
        metadata.write(buffers, self.row, outputs, ids)
        draft_state.write(scheduler, req, self.row)
        buffers.bootstrap_room[self.row, 0] = order.room
        self.outputs, self.last_bytes, self.cut_at = outputs, copy.left, now
        self.sender.init(copy.pages, self.row)  # now the next pages are the last ones
        self._send(scheduler, copy.pages)

    def _send(self, scheduler: Scheduler, upto: int) -> None:
        """All pages before `upto` that are not on their way yet."""
        from sglang.srt.mem_cache.common import kv_to_page_indices

        size, allocator = self.page_tokens, scheduler.token_to_kv_pool_allocator
        begin = self.skipped + self.sent * size
        end = min(self.skipped + upto * size, self.complete)
        rows = scheduler.req_to_token_pool.req_to_token[kv_row(self.req), begin:end]
        pages = kv_to_page_indices(physical(allocator, rows), size)
        self.sender.send(pages, num_kv_tokens=end - begin)
        self.sent = upto

    def failure(self) -> str:
        """Why the KV has not got across."""
        try:
            self.sender.failure_exception()
        except Exception as error:  # that is how it says what was wrong
            return str(error)
        return "the KV could not be sent"

    def event(self, state: MoveState, reason: str = "") -> Moving:
        """What the router hears."""
        now = time.perf_counter()
        copy, metric = self.copy(now), self.sender.get_transfer_metric()
        gone = state in ("cut", "sent")
        # Sooner than it was noticed, at the end of a step; now, where the thread has not said so
        # yet.
        sent_at = self.sender.kv_mgr.toolkit_traffic.done_at(self.order.room)
        sent_at = sent_at if sent_at >= self.cut_at else now
        return Moving(
            self.order.rid,
            state,
            self.order.room,
            reason,
            tokens=len(self.req.origin_input_ids) + self.outputs if gone else 0,
            bytes=int(metric.transfer_total_bytes or 0),
            seconds=now - self.began,
            last_s=sent_at - self.cut_at if state == "sent" else 0.0,
            outputs=self.outputs if gone else 0,
            rounds=self.rounds,
            rate=copy.rate,
            step_s=copy.step_s,
            step_tokens=copy.step_tokens,
            token_bytes=copy.page_bytes / copy.page_tokens,
            last_bytes=self.last_bytes if self.cut_at else copy.left,
        )

    def close(self, scheduler: Scheduler) -> None:
        """It is over: what it had goes back."""
        self.sender.clear()
        self.sender.kv_mgr.toolkit_traffic.forget(self.order.room)
        if self.row >= 0:
            # Whoever gets the row next must see that nothing has come yet.
            scheduler.disagg_metadata_buffers.bootstrap_room[self.row] = 0
            scheduler.req_to_metadata_buffer_idx_allocator.free(self.row)
