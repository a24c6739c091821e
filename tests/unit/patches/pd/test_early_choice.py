"""A prefill worker asks for the decode worker of a long prompt before it is through, once, and with
the experts so far."""

from types import SimpleNamespace
from typing import Any

import pytest

from patches.dp import layout
from patches.experts.signature_state import COUNT_AT
from patches.pd import early_choice
from patches.pd.early_choice import EarlyChoiceState
from patches.scheduler_state import SchedulerState
from toolkit.contract.events import PrefillDone
from toolkit.policies.early_choice import EarlyChoice, PrefillPace

CHUNK, TOTAL = 100, 1000


class Clock:
    """Each look at it is a second later."""

    now = 0.0

    def perf_counter(self) -> float:
        self.now += 1.0
        return self.now


class Prefill:
    """A scheduler that runs a prompt chunk by chunk."""

    def __init__(self, rule: EarlyChoice | None, known: bool = True) -> None:
        self.state = SchedulerState()
        self.toolkit_state = self.state
        self.state.keep(EarlyChoiceState(rule, CHUNK, looked=True))
        if known:
            self.state.keep(PrefillPace(100.0, 1.0, 100.0, 0.05))
        self.sent: list[PrefillDone] = []
        output = SimpleNamespace(send_output=lambda event, req: self.sent.append(event))
        self.ipc_channels = SimpleNamespace(send_to_tokenizer=output)
        self.chunked_req: Any = None
        self.me: Any = self

    def run(self, req: Any, end: int) -> Any:
        """A forward up to that token, and its result."""
        req.extend_end = end
        self.chunked_req = req if end < TOTAL else None
        batch: Any = SimpleNamespace(reqs=[req])
        result: Any = early_choice._note_chunk(
            lambda *_: SimpleNamespace(routed_experts_output=None), self.me, batch
        )
        early_choice._tell(lambda *_: None, self.me, batch, result)
        return result


def request(**fields: Any) -> Any:
    known = {"rid": "r", "origin_input_ids": [1] * TOTAL, "cached_tokens": 0, "to_finish": None}
    return SimpleNamespace(**known | {"pending_bootstrap": True, "bootstrap_room": 7} | fields)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_choice, "time", Clock())
    monkeypatch.setattr(layout, "rank", lambda scheduler: 3)


def test_it_asks_once_two_chunks_before_the_end() -> None:
    it, req = Prefill(EarlyChoice(0.0)), request()
    for end in range(CHUNK, TOTAL + 1, CHUNK):
        it.run(req, end)
    (event,) = it.sent
    assert (event.rid, event.dp_rank, event.room) == ("r", 3, 7)
    assert (event.prompt_tokens, event.left) == (TOTAL, 2 * CHUNK)
    assert getattr(req, COUNT_AT) == TOTAL - 2 * CHUNK


@pytest.mark.parametrize(
    ("rule", "known", "fields"),
    [
        (None, True, {}),
        (EarlyChoice(0.0), False, {}),
        (EarlyChoice(0.9), True, {}),
        (EarlyChoice(0.0), True, {"pending_bootstrap": False}),
        (EarlyChoice(0.0), True, {"cached_tokens": TOTAL - 200}),
    ],
    ids=["off", "nothing measured", "little gain", "its decode worker is known", "nearly cached"],
)
def test_it_asks_for_nobody_where_that_gains_nothing(
    rule: EarlyChoice | None, known: bool, fields: dict[str, Any]
) -> None:
    it, req = Prefill(rule, known), request(**fields)
    for end in range(req.cached_tokens + CHUNK, TOTAL, CHUNK):
        it.run(req, end)
        if not known:
            it.state.keep(PrefillPace())  # nothing has been sent
    assert it.sent == [] and not hasattr(req, COUNT_AT)


def test_who_is_aborted_or_has_met_its_decode_worker_meanwhile_is_not_asked_for() -> None:
    for change in ({"to_finish": "abort"}, {"pending_bootstrap": False}):
        it, req = Prefill(EarlyChoice(0.0)), request()
        req.extend_end = TOTAL - 2 * CHUNK
        it.chunked_req = req
        batch: Any = SimpleNamespace(reqs=[req])

        def forward(*_: Any, change: Any = change, req: Any = req) -> Any:
            vars(req).update(change)
            return SimpleNamespace(routed_experts_output=None)

        result: Any = early_choice._note_chunk(forward, it.me, batch)
        early_choice._tell(lambda *_: None, it.me, batch, result)
        assert it.sent == []


def test_chunks_are_measured_from_one_result_to_the_next() -> None:
    it, req = Prefill(EarlyChoice(1.0), known=False), request()
    for end in (CHUNK, 3 * CHUNK):
        it.run(req, end)
    pace = it.state.get(PrefillPace)
    assert (pace.chunk_tokens, pace.chunk_s) == (2 * CHUNK, 1.0)


def test_a_batch_without_the_half_done_prompt_notes_nothing() -> None:
    it, req = Prefill(EarlyChoice(0.0)), request()
    it.chunked_req = request(extend_end=500)
    batch: Any = SimpleNamespace(reqs=[req])
    result: Any = SimpleNamespace()
    assert early_choice._note_chunk(lambda *_: result, it.me, batch) is result
    assert vars(result) == {}
