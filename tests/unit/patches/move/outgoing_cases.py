"""A move on its source, step by step: what is sent when, what stands in the metadata, and how it
ends. The scheduler is a stand-in; pages, polls and rows of metadata are SGLang's own, so this runs
where SGLang can be imported (`test_outgoing`)."""

from __future__ import annotations

from array import array
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patches.move import outgoing
from patches.move.order import MoveOrder
from patches.move.outgoing import RANK, Outgoing, advance, leave


class Sender:
    """Says what it is told to, and keeps what is sent."""

    def __init__(self) -> None:
        from sglang.srt.disaggregation.base.conn import KVPoll

        self.kinds = KVPoll
        self.says = KVPoll.Bootstrapping
        self.kv_mgr = SimpleNamespace(_staging_outstanding={}, transfer_queues=[])
        self.pages: list[int] = []
        self.calls: list[int] = []
        self.total = -1
        self.aborted = self.cleared = False
        self.skip = 0

    def poll(self) -> int:
        return int(self.says)

    def pop_decode_prefix_len(self) -> int:
        return self.skip

    def init(self, pages: int, row: int) -> None:
        self.total = pages

    def send(self, pages: Any, num_kv_tokens: int) -> None:
        assert len(pages) > 0 and len(self.pages) + len(pages) <= self.total
        self.pages += pages.tolist()
        self.calls.append(len(pages))

    def abort(self) -> None:
        self.aborted = True

    def clear(self) -> None:
        self.cleared = True

    def get_transfer_metric(self) -> Any:
        return SimpleNamespace(transfer_total_bytes=64 * len(self.pages))

    def failure_exception(self) -> None:
        raise RuntimeError("the target is gone")


class Allocator:
    def __init__(self, page_size: int) -> None:
        self.page_size = page_size

    def translate_kv_indices_for_transfer(self, rows: Any) -> Any:
        return rows


class Source:
    """A scheduler with one running request, of which a move goes out."""

    def __init__(self, prompt: int, made: int, order: MoveOrder, page: int = 1) -> None:
        import torch
        from sglang.srt.disaggregation.utils import MetadataBuffers, ReqToMetadataIdxAllocator

        self.req = SimpleNamespace(
            rid=order.rid,
            origin_input_ids=list(range(prompt)),
            output_ids=array("q", [1000 + n for n in range(made)]),
            kv=SimpleNamespace(req_pool_idx=0),
            finished=lambda: False,
        )
        pages = -(-(prompt + 400) // page)
        # Page n of the request is page 7 n + 3 of the pool.
        rows = [(7 * (at // page) + 3) * page + at % page for at in range(pages * page)]
        self.news: list[Any] = []
        self.sender = Sender()
        self.rows = ReqToMetadataIdxAllocator(4)
        self.scheduler = SimpleNamespace(
            attn_tp_cpu_group=None,
            token_to_kv_pool_allocator=Allocator(page),
            req_to_token_pool=SimpleNamespace(req_to_token=torch.tensor([rows])),
            req_to_metadata_buffer_idx_allocator=self.rows,
            disagg_metadata_buffers=MetadataBuffers(4, 16, torch.float32, 8),
        )
        RANK.moves.clear()
        self.move = RANK.moves[order.rid] = Outgoing(self.req, order, self.sender, 0.0)

    def step(self) -> None:
        """A token more, and a look."""
        self.req.output_ids.append(1000 + len(self.req.output_ids))
        advance(self.scheduler)

    @property
    def states(self) -> list[str]:
        return [event.state for event in self.news]


SOURCES: deque[Source] = deque(maxlen=1)


def source(prompt: int, made: int, order: MoveOrder, page: int = 1) -> Source:
    SOURCES.append(Source(prompt, made, order, page))
    return SOURCES[-1]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank, whose news are kept."""
    import torch.distributed as dist

    monkeypatch.setattr(dist, "get_world_size", lambda group: 1)
    monkeypatch.setattr(
        outgoing, "_tell", lambda scheduler, req, news: SOURCES[-1].news.append(news)
    )


@given(
    prompt=st.integers(1, 70),
    made=st.integers(1, 40),
    late=st.integers(1, 24),
    page=st.sampled_from([1, 2, 16]),
    ready=st.integers(0, 30),
    skipped=st.integers(0, 3),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_page_is_sent_once_and_the_ids_go_with_the_last(
    prompt: int, made: int, late: int, page: int, ready: int, skipped: int
) -> None:
    order = MoveOrder("r", 77, made + late, late)
    one = source(prompt, made, order, page)
    one.sender.skip = min(skipped, prompt // page) * page
    kinds = one.sender.kinds
    for step in range(late + 2):
        if step == ready:
            one.sender.says = kinds.WaitingForInput
        one.step()
        if one.states:
            break
    if ready > late:
        assert one.states == ["late"] and one.sender.aborted and one.sender.cleared
        assert one.rows.available_size() == 4 and not RANK.moves
        return
    assert one.states == ["cut"]
    pages = -(-(prompt + order.count) // page)
    assert one.sender.pages == [7 * n + 3 for n in range(one.sender.skip // page, pages)]
    assert len(one.req.output_ids) == order.count + 1  # at once
    buffers, row = one.scheduler.disagg_metadata_buffers, one.move.row
    assert int(buffers.output_ids[row, 0]) == 1000 + order.count
    told = buffers.output_top_logprobs_idx[row][: late + 1].tolist()
    assert told == [late, *(1000 + n for n in range(made, made + late))]
    assert int(buffers.bootstrap_room[row, 0]) == 77
    one.sender.says = kinds.Success
    one.step()
    assert one.states == ["cut", "sent"] and one.news[-1].tokens == prompt + order.count
    assert one.sender.cleared and not RANK.moves
    assert one.rows.available_size() == 4
    assert int(buffers.bootstrap_room[row, 0]) == 0


def test_a_long_context_is_mostly_sent_before_the_cut() -> None:
    one = source(2000, 5, MoveOrder("r", 7, 21, 16))
    one.sender.says = one.sender.kinds.WaitingForInput
    while "cut" not in one.states:
        one.step()
    assert one.sender.calls[0] == 2005  # the last token's KV is still being computed
    assert sum(one.sender.calls) == 2021
    assert one.sender.calls[-1] <= outgoing.QUIET + 2


def test_what_is_on_its_way_at_the_cut_calls_it_off() -> None:
    one = source(300, 5, MoveOrder("r", 7, 13, 8))
    one.sender.says = one.sender.kinds.WaitingForInput
    one.step()
    one.sender.kv_mgr._staging_outstanding[7] = 1
    while not one.states:
        one.step()
    assert one.states == ["late"] and one.sender.aborted


def test_a_target_that_is_ready_at_the_last_moment_is_too_late_for_a_long_context() -> None:
    one = source(1000, 5, MoveOrder("r", 7, 13, 8))
    for _ in range(8):
        one.step()
    one.sender.says = one.sender.kinds.WaitingForInput
    one.step()
    assert one.states == ["late"] and not one.sender.pages


@pytest.mark.parametrize("cut", [False, True])
def test_a_transfer_that_fails_ends_the_move(cut: bool) -> None:
    one = source(10, 5, MoveOrder("r", 7, 9, 4))
    one.sender.says = one.sender.kinds.WaitingForInput
    while cut and "cut" not in one.states:
        one.step()
    one.sender.says = one.sender.kinds.Failed
    one.step()
    assert one.states[-1] == "failed" and one.news[-1].reason == "the target is gone"
    assert one.rows.available_size() == 4 and not RANK.moves


def test_a_request_that_ends_before_the_cut_ends_its_move() -> None:
    one = source(10, 5, MoveOrder("r", 7, 9, 4))
    one.sender.says = one.sender.kinds.WaitingForInput
    one.step()
    leave(one.scheduler, one.req)
    assert one.states == ["gone"] and one.sender.aborted and one.sender.cleared
    assert one.rows.available_size() == 4


@pytest.mark.parametrize("ends", ["Success", "Failed", ""])
def test_kv_stays_until_its_last_rows_have_left(monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """`ends`: how the transfer comes to its end while the request waits; empty: it does not."""
    monkeypatch.setattr(outgoing, "LAST_ROWS_S", 0.05)
    one = source(10, 5, MoveOrder("r", 7, 9, 4))
    one.sender.says = one.sender.kinds.WaitingForInput
    while "cut" not in one.states:
        one.step()
    polls: list[int] = []

    def poll() -> int:
        polls.append(1)
        done = ends and len(polls) > 5
        return int(getattr(one.sender.kinds, ends) if done else one.sender.kinds.Transferring)

    monkeypatch.setattr(one.sender, "poll", poll)
    leave(one.scheduler, one.req)
    assert len(polls) > 5
    assert one.states[-1] == {"Success": "sent", "Failed": "failed", "": "gone"}[ends]
    assert one.sender.aborted is (ends == "")
    assert one.rows.available_size() == 4 and not RANK.moves


def test_without_a_row_of_metadata_nothing_moves() -> None:
    one = source(10, 5, MoveOrder("r", 7, 9, 4))
    while one.rows.available_size():
        one.rows.alloc()
    one.sender.says = one.sender.kinds.WaitingForInput
    one.step()
    assert one.states == ["refused"] and one.sender.aborted and not RANK.moves


def test_another_requests_kv_is_none_of_its_business() -> None:
    one = source(10, 5, MoveOrder("r", 7, 9, 4))
    leave(one.scheduler, SimpleNamespace(rid="other"))
    leave(one.scheduler, SimpleNamespace(rid="r"))  # the rid of one before it
    assert one.states == [] and RANK.moves
