"""A move on its source, step by step: what is sent when, what stands in the metadata, and how it
ends. The scheduler is a stand-in; pages, polls and rows of metadata are SGLang's own, so this runs
where SGLang can be imported (`test_outgoing`)."""

from array import array
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patches.move import copying, held, outgoing, row, traffic
from patches.move.copying import Outgoing, StepTimes
from patches.move.held import Held, HeldState
from patches.move.outgoing import MovingState, advance, end, leave
from patches.move.traffic import MoveTraffic
from patches.scheduler_state import current
from toolkit.contract.events import decode, encode
from toolkit.contract.move_orders import End, Send
from toolkit.policies.precopy import Act

PAGE_BYTES = 1000


class Sender:
    """Says what it is told to, and keeps what is sent."""

    def __init__(self) -> None:
        from sglang.srt.disaggregation.base.conn import KVPoll

        self.kinds = KVPoll
        self.says = KVPoll.Bootstrapping
        self.traffic = MoveTraffic()
        self.kv_mgr = SimpleNamespace(toolkit_traffic=self.traffic, kv_item_lens_sum=PAGE_BYTES)
        self.room = 0
        self.slow = False
        """What is sent stays on its way, until `arrive`."""
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
        self.traffic.queued(self.room)
        if not self.slow:
            self.arrive()

    def arrive(self) -> None:
        self.traffic.done(self.room)

    def abort(self) -> None:
        self.aborted = True

    def clear(self) -> None:
        self.cleared = True

    def get_transfer_metric(self) -> Any:
        return SimpleNamespace(transfer_total_bytes=64 * len(self.pages))

    def failure_exception(self) -> None:
        raise RuntimeError("the target is gone")


def moves() -> dict[str, Outgoing]:
    """Those of this process."""
    return current().get(MovingState).moves


def held_back() -> dict[str, Held]:
    """Whose output this process holds back."""
    return current().get(HeldState).by_request


class Allocator:
    def __init__(self, page_size: int) -> None:
        self.page_size = page_size

    def translate_kv_indices_for_transfer(self, rows: Any) -> Any:
        return rows


class Source:
    """A scheduler with one running request, of which a move goes out."""

    def __init__(self, prompt: int, made: int, order: Send, page: int = 1) -> None:
        import torch
        from sglang.srt.disaggregation.utils import MetadataBuffers, ReqToMetadataIdxAllocator

        self.req = SimpleNamespace(
            rid=order.rid,
            origin_input_ids=list(range(prompt)),
            output_ids=array("q", [1000 + n for n in range(made)]),
            kv=SimpleNamespace(req_pool_idx=0),
            finished=lambda: self.ended,  # type: ignore[has-type]
            finished_reason=None,
            return_logprob=False,
        )
        self.ended = self.drafts = False
        pages = -(-(prompt + 400) // page)
        # Page n of the request is page 7 n + 3 of the pool.
        rows = [(7 * (at // page) + 3) * page + at % page for at in range(pages * page)]
        self.event: list[Any] = []
        self.sender = Sender()
        self.sender.room = order.room
        self.out: list[tuple[str, int]] = []
        """What went to clients: of which request, with how many tokens."""
        self.rows = ReqToMetadataIdxAllocator(4)
        self.scheduler = SimpleNamespace(
            attn_tp_cpu_group=None,
            token_to_kv_pool_allocator=Allocator(page),
            req_to_token_pool=SimpleNamespace(req_to_token=torch.tensor([rows])),
            req_to_metadata_buffer_idx_allocator=self.rows,
            disagg_metadata_buffers=MetadataBuffers(4, 16, torch.float32, 8),
            output_streamer=SimpleNamespace(stream_output=self.stream),
            spec_algorithm=SimpleNamespace(is_none=lambda: not self.drafts),
            enable_overlap=False,
            running_batch=SimpleNamespace(reqs=[self.req], spec_info=None),
        )
        current().keep(MovingState())
        current().keep(HeldState())
        self.steps = StepTimes()
        for at in (1.0, 1.001, 1.002):
            self.steps.stepped(at)
        sender: Any = self.sender
        self.move = Outgoing(self.req, order, sender, CLOCK.now, page, self.steps)
        moves()[order.rid] = self.move

    def stream(self, reqs: list[Any], return_logprob: bool) -> None:
        """As SGLang's streamer, under our hook."""
        held._stream(self._out, None, reqs, return_logprob)

    def _out(self, streamer: Any, reqs: list[Any], return_logprob: bool) -> None:
        self.out += [(req.rid, len(req.output_ids)) for req in reqs]

    def step(self) -> None:
        """A token more, which goes to its client, and a look, 1 ms later."""
        CLOCK.now += 0.001
        self.req.output_ids.append(1000 + len(self.req.output_ids))
        self.stream([self.req], False)
        advance(self.scheduler)

    def cut(self) -> None:
        """Step until it stops."""
        self.sender.says = self.sender.kinds.WaitingForInput
        while "cut" not in self.states:
            assert not self.states and len(self.req.output_ids) < 390, self.event
            self.step()

    @property
    def states(self) -> list[str]:
        return [event.state for event in self.event]


class Clock:
    """Of all that is measured: the machine's own pace is not to decide what a test sees."""

    now = 10.0

    def perf_counter(self) -> float:
        return self.now


CLOCK = Clock()
SOURCES: deque[Source] = deque(maxlen=1)


def source(prompt: int, made: int, order: Send, page: int = 1) -> Source:
    SOURCES.append(Source(prompt, made, order, page))
    return SOURCES[-1]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank, whose news are kept."""
    import torch.distributed as dist

    monkeypatch.setattr(dist, "get_world_size", lambda group: 1)
    monkeypatch.setattr(copying, "time", CLOCK)
    monkeypatch.setattr(traffic, "time", CLOCK)
    monkeypatch.setattr(
        outgoing, "_tell", lambda scheduler, req, event: SOURCES[-1].event.append(event)
    )


@given(
    prompt=st.integers(1, 70),
    made=st.integers(1, 40),
    late=st.integers(1, 24),
    page=st.sampled_from([1, 2, 16]),
    ready=st.integers(0, 30),
    skipped=st.integers(0, 3),
    each=st.integers(1, 5),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_page_is_sent_once_and_the_ids_go_with_the_last(
    prompt: int, made: int, late: int, page: int, ready: int, skipped: int, each: int
) -> None:
    """`each`: steps that a round takes."""
    order = Send("r", 77, made, late)
    one = source(prompt, made, order, page)
    one.sender.skip, one.sender.slow = min(skipped, prompt // page) * page, True
    kinds = one.sender.kinds
    for step in range(late + 2):
        if step == ready:
            one.sender.says = kinds.WaitingForInput
        if step % each == 0 and one.sender.traffic.in_flight(77):
            one.sender.arrive()
        one.step()
        if one.states:
            break
    assert one.states
    if one.states != ["cut"]:
        assert one.states[0] in ("slow", "replay") and one.event[0].reason
        assert one.sender.aborted and one.sender.cleared and not held_back()
        assert one.rows.available_size() == 4 and not moves()
        return
    outputs = one.event[0].outputs
    assert made <= outputs <= made + late and outputs == len(one.req.output_ids) - 1
    pages = -(-(prompt + outputs) // page)
    assert one.sender.pages == [7 * n + 3 for n in range(one.sender.skip // page, pages)]
    assert one.sender.total == len(one.sender.pages)
    buffers, place = one.scheduler.disagg_metadata_buffers, one.move.row
    assert int(buffers.output_ids[place, 0]) == 1000 + outputs
    assert row.read(buffers, place) == (outputs, [1000 + n for n in range(made, outputs)])
    assert int(buffers.bootstrap_room[place, 0]) == 77
    one.sender.says = kinds.Success
    one.step()
    assert one.states == ["cut", "sent"] and one.event[-1].tokens == prompt + outputs
    decode(encode(one.event[-1]))  # within the bounds of what a worker may say
    assert one.sender.cleared and not moves()
    assert one.rows.available_size() == 4
    assert int(buffers.bootstrap_room[place, 0]) == 0


def test_rounds_follow_each_other_and_each_takes_what_was_written_since() -> None:
    one = source(300, 5, Send("r", 7, 5, 100))
    one.sender.slow = True
    one.sender.says = one.sender.kinds.WaitingForInput
    one.step()
    one.step()
    assert one.sender.calls == [304]  # the last one's KV is still being computed, one is left
    for _ in range(8):
        one.step()
    assert one.sender.calls == [304]  # on its way
    one.sender.slow = False
    one.sender.arrive()
    one.cut()
    assert one.event[-1].rounds >= 1 and one.event[-1].rate > 0
    assert sum(one.sender.calls) == 300 + one.event[-1].outputs


@pytest.mark.parametrize("overlap", [False, True])
def test_a_draft_goes_on_where_it_was(overlap: bool) -> None:
    """Its state is the stopped request's; under overlap it is of a later step, and left out."""
    import torch

    one = source(20, 5, Send("r", 7, 5, 100))
    one.drafts, one.scheduler.enable_overlap = True, overlap
    drafts = SimpleNamespace(
        topk_p=torch.tensor([[0.2], [0.7]]),
        topk_index=torch.tensor([[4], [9]]),
        hidden_states=torch.arange(32.0).view(2, 16) + 1,
    )
    batch = SimpleNamespace(reqs=[SimpleNamespace(rid="s"), one.req], spec_info=drafts)
    one.scheduler.running_batch = batch
    buffers = one.scheduler.disagg_metadata_buffers
    for each in (buffers.output_topk_p, buffers.output_topk_index, buffers.output_hidden_states):
        each.fill_(5)  # another request's
    one.cut()
    row_of = one.move.row
    wanted = (0.0, 0, [0.0] * 16) if overlap else (0.7, 9, list(range(17, 33)))
    assert float(buffers.output_topk_p[row_of, 0]) == pytest.approx(wanted[0])
    assert int(buffers.output_topk_index[row_of, 0]) == wanted[1]
    assert buffers.output_hidden_states[row_of].tolist() == wanted[2]
    assert not buffers.output_topk_p[row_of, 1:].any(), "one candidate, not 16"


def test_only_the_last_ids_travel_with_the_kv() -> None:
    one = source(2000, 5, Send("r", 7, 5, 380))
    one.sender.slow = True
    one.sender.says = one.sender.kinds.WaitingForInput
    for _ in range(300):
        one.step()
    one.sender.slow = False
    one.sender.arrive()
    one.cut()
    outputs, ids = row.read(one.scheduler.disagg_metadata_buffers, one.move.row)
    assert outputs > 300 and len(ids) == row.LAST_IDS
    assert ids == [1000 + n for n in range(outputs - row.LAST_IDS, outputs)]


def test_from_its_stop_on_its_client_gets_nothing_until_the_move_is_off() -> None:
    one = source(10, 5, Send("r", 7, 5, 40))
    one.cut()
    had = one.event[-1].outputs + 1
    one.step()
    one.step()
    assert one.out[-1] == ("r", had)
    other = SimpleNamespace(rid="q", output_ids=[1], finished_reason=None)
    one.stream([one.req, other], False)
    assert one.out[-1] == ("q", 1)
    end(one.scheduler, End("r", 8))  # of another move
    one.step()
    assert one.out[-1] == ("q", 1)
    end(one.scheduler, End("r", 7))
    assert not moves() and one.sender.aborted and one.rows.available_size() == 4
    one.step()
    assert one.out[-1] == ("r", len(one.req.output_ids))


@pytest.mark.parametrize("how", ["off", "aborted", "forgotten"])
def test_the_end_of_what_ended_meanwhile_comes_out(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    one = source(10, 5, Send("r", 7, 5, 40))
    one.cut()
    one.sender.says = one.sender.kinds.Success
    one.step()
    one.ended = True
    one.req.finished_reason = SimpleNamespace(to_json=lambda: {"type": "length"})
    one.stream([one.req], False)
    assert one.out[-1] == ("r", one.event[0].outputs + 1)
    if how == "off":
        end(one.scheduler, End("r", 7))
    elif how == "aborted":
        asked = SimpleNamespace(abort_all=False, rid="r")
        held._abort(lambda *_: None, one.scheduler, asked)
    else:
        monkeypatch.setattr(held, "HOLD_S", -1.0)
        advance(one.scheduler)
        assert one.states[-1] == "failed"
    assert one.out[-1] == ("r", len(one.req.output_ids)) and not held_back()


def test_what_is_aborted_passes() -> None:
    """The HTTP server waits for it."""
    one = source(10, 5, Send("r", 7, 5, 40))
    one.cut()
    one.req.finished_reason = SimpleNamespace(to_json=lambda: {"type": "abort"})
    one.step()
    assert one.out[-1] == ("r", len(one.req.output_ids)) and not held_back()


def test_a_move_that_is_off_before_its_stop_leaves_nothing() -> None:
    one = source(10, 5, Send("r", 7, 5, 40))
    one.step()
    end(one.scheduler, End("r", 7))
    assert one.sender.aborted and one.sender.cleared and not moves() and one.states == []


@pytest.mark.parametrize("cut", [False, True])
def test_a_transfer_that_fails_ends_the_move(cut: bool) -> None:
    one = source(10, 5, Send("r", 7, 5, 40))
    if cut:
        one.cut()
    one.sender.says = one.sender.kinds.Failed
    one.step()
    assert one.states[-1] == "failed" and one.event[-1].reason == "the target is gone"
    assert one.rows.available_size() == 4 and not moves() and not held_back()
    one.step()
    assert one.out[-1] == ("r", len(one.req.output_ids))


def test_what_another_rank_says_of_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least hopeful rank decides; this one does not know why."""
    from sglang.srt.disaggregation import utils

    one = source(10, 5, Send("r", 7, 5, 40))
    one.sender.says = one.sender.kinds.WaitingForInput
    wait = lambda moves, group: [min(int(Act.WAIT), move.poll()) for move in moves]  # noqa: E731
    monkeypatch.setattr(utils, "poll_and_all_reduce", wait)
    one.step()
    one.step()
    assert one.states == [] and one.sender.calls == []
    give_up = lambda moves, group: [int(Act.GIVE_UP) for move in moves]  # noqa: E731
    monkeypatch.setattr(utils, "poll_and_all_reduce", give_up)
    one.step()
    assert one.states == ["slow"] and "another rank" in one.event[-1].reason


def test_a_request_that_ends_before_the_cut_ends_its_move() -> None:
    one = source(10, 5, Send("r", 7, 5, 40))
    leave(one.scheduler, one.req)
    assert one.states == ["gone"] and one.sender.aborted and one.sender.cleared
    assert one.rows.available_size() == 4


@pytest.mark.parametrize("ends", ["Success", "Failed", ""])
def test_kv_stays_until_its_last_rows_have_left(monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """`ends`: how the transfer comes to its end while the request waits; empty: it does not."""
    monkeypatch.setattr(outgoing, "LAST_ROWS_S", 60.0 if ends else 0.5)
    one = source(10, 5, Send("r", 7, 5, 40))
    one.cut()
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
    assert bool(held_back()) is (ends == "Success")  # the target may go on with it
    assert one.rows.available_size() == 4 and not moves()


def test_without_a_row_of_metadata_nothing_moves() -> None:
    one = source(10, 5, Send("r", 7, 5, 40))
    while one.rows.available_size():
        one.rows.alloc()
    one.sender.says = one.sender.kinds.WaitingForInput
    one.step()
    assert one.states == ["refused"] and one.sender.aborted and not moves()


def test_another_requests_kv_is_none_of_its_business() -> None:
    one = source(10, 5, Send("r", 7, 5, 40))
    leave(one.scheduler, SimpleNamespace(rid="other"))
    leave(one.scheduler, SimpleNamespace(rid="r"))  # the rid of one before it
    assert one.states == [] and moves()
