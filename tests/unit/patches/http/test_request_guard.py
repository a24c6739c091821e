"""What is wrong with a request ends as its own error: in the scheduler's hook and before it."""

import asyncio
import json
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from patches import tickets
from patches.experts.capture import capture_name
from patches.http import request_guard
from patches.http.request_answers import MistakesMiddleware
from patches.http.request_guard import RequestError
from patches.pd import resume
from toolkit.contract.ticket import TICKET_KEY, TicketError, sign
from toolkit.contract.variables import WORKER_KEY_VARIABLE

KEY = "workers' key"
FORGED: list[Any] = [
    ["x"], 7, [2**70], [None], [99999999], [-1], None, "1 2", {}, {"resume": "1"},
    {"resume": "1", "capture": True, "signature": "0" * 64}, sign("another key", "rid", resume=[1]),
    sign(KEY, "another rid", resume=[1]),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _worker_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKER_KEY_VARIABLE, KEY)


class Scheduler:
    """What the hooks touch of SGLang's; takes down the aborts."""

    def __init__(self, mode: str = "prefill") -> None:
        self.disaggregation_mode = SimpleNamespace(value=mode)
        self.model_config = SimpleNamespace(vocab_size=8192)
        self.max_req_input_len = 100
        self.enable_overlap = False
        self.taken: list[Any] = []

    def take(self, _: Any, request: Any) -> None:
        self.taken.append(request)


def received(ticket: Any, ids: int = 3) -> Any:
    sampling = SimpleNamespace(custom_params={"mine": 1, TICKET_KEY: ticket})
    return SimpleNamespace(rid="rid", sampling_params=sampling, input_ids=array("q", range(ids)))


def queued(ticket: Any, **more: Any) -> Any:
    request = received(ticket)
    vars(request).update({"to_finish": None, "grammar": None, "output_ids": [], **more})
    request.origin_input_ids = request.input_ids
    return request


@pytest.mark.parametrize("ticket", FORGED, ids=lambda value: str(value)[:30])
def test_what_the_router_did_not_sign_is_refused_on_every_worker(ticket: Any) -> None:
    for mode in ("prefill", "decode", "null"):
        scheduler = Scheduler(mode)
        with pytest.raises(TicketError):
            resume._extend_prompt_on_prefill(scheduler.take, scheduler, received(ticket))  # type: ignore[arg-type]
        assert scheduler.taken == []
    assert not capture_name(received(ticket))


@pytest.mark.parametrize(("ids", "said"), [([8192], "vocabulary"), ([1] * 97, "more than 99")])
def test_signed_tokens_that_the_model_cannot_have_are_refused(ids: list[int], said: str) -> None:
    scheduler = Scheduler()
    request = received(sign(KEY, "rid", resume=ids))
    with pytest.raises(TicketError, match=said):
        resume._extend_prompt_on_prefill(scheduler.take, scheduler, request)  # type: ignore[arg-type]


def test_signed_tokens_are_prompt_on_prefill_and_output_on_decode() -> None:
    prefill, decode = Scheduler("prefill"), Scheduler("decode")
    ticket = sign(KEY, "rid", resume=[7, 8], capture="name")
    resume._extend_prompt_on_prefill(prefill.take, prefill, received(ticket))  # type: ignore[arg-type]
    assert list(prefill.taken[0].input_ids) == [0, 1, 2, 7, 8]
    request = queued(ticket)
    resume._restore_state(decode.take, decode, request)  # type: ignore[arg-type]
    assert request.output_ids == [7, 8]
    assert request.pd_rebootstrap_in_progress
    assert capture_name(request)
    resume._restore_state(decode.take, decode, request)  # type: ignore[arg-type]  # a retraction
    assert request.output_ids == [7, 8]


def test_without_a_key_nobody_else_s_ticket_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKER_KEY_VARIABLE)
    monkeypatch.delenv("TOOLKIT_OWN_KEY", raising=False)
    with pytest.raises(TicketError):
        tickets.ticket_of(received(sign(KEY, "rid", resume=[1])))
    own = received(None)
    del own.sampling_params.custom_params[TICKET_KEY]
    tickets.add_capture(own)
    assert tickets.ticket_of(own).capture
    assert own.sampling_params.custom_params["mine"] == 1
    monkeypatch.delenv("TOOLKIT_OWN_KEY", raising=False)


class Grammar:
    """Takes even tokens."""

    current_token: int | None = 5

    def accept_token(self, token: int) -> None:
        if token % 2:
            raise RuntimeError("not accepted")


def test_tokens_against_the_grammar_end_that_request() -> None:
    refused: list[str] = []
    scheduler = Scheduler("decode")
    request = queued(
        sign(KEY, "rid", resume=[2, 3]), grammar=Grammar(), set_finish_with_abort=refused.append
    )
    resume._restore_state(scheduler.take, scheduler, request)  # type: ignore[arg-type]
    assert len(refused) == 1
    assert "grammar" in refused[0]
    assert scheduler.taken == [request]
    assert request.output_ids == []


def test_a_request_that_was_refused_is_only_answered() -> None:
    scheduler = Scheduler("decode")
    request = queued("no ticket", to_finish="an abort")
    resume._restore_state(scheduler.take, scheduler, request)  # type: ignore[arg-type]
    assert scheduler.taken == [request]


def aborts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    monkeypatch.setattr(
        request_guard,
        "abort",
        lambda scheduler, request, message, status=400: found.append((message, status)),
    )
    return found


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TicketError("not signed"), 400),
        (RequestError("wrong"), 400),
        (TypeError("a secret prompt"), 500),
        (KeyError("x"), 500),
        (RecursionError(), 500),
    ],
)
def test_what_a_scheduler_raises_for_a_request_is_its_answer(
    error: Exception, status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = aborts(monkeypatch)

    def original(scheduler: Any, request: Any) -> None:
        raise error

    scheduler: Any = Scheduler()
    request_guard._take_in(original, scheduler, received(None))
    assert [told for _, told in found] == [status]
    assert "secret" not in found[0][0]
    assert "secret" not in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("CUDA error"), MemoryError(), KeyboardInterrupt()])
def test_what_is_no_request_s_fault_still_ends_the_scheduler(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborts(monkeypatch)

    def original(scheduler: Any, request: Any) -> None:
        raise error

    scheduler: Any = Scheduler()
    with pytest.raises(type(error)):
        request_guard._take_in(original, scheduler, received(None))


def test_a_grammar_that_compiles_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(request_guard.time, "monotonic", lambda: now)  # type: ignore[attr-defined]
    old, new = SimpleNamespace(grammar_wait_ct=3), SimpleNamespace(grammar_wait_ct=1)
    manager = SimpleNamespace(grammar_queue=[old], SGLANG_GRAMMAR_MAX_POLL_ITERATIONS=10000)
    request_guard._give_up_grammars(lambda _: [], manager)
    now += request_guard.GRAMMAR_S + 1
    manager.grammar_queue.append(new)
    request_guard._give_up_grammars(lambda _: [], manager)
    assert (old.grammar_wait_ct, new.grammar_wait_ct) == (10000, 1)


def posted(app: Any, path: str = "/generate") -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("nobody asks")

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(MistakesMiddleware(app)({"type": "http", "path": path}, receive, send))
    return sent


def test_a_body_that_cannot_be_taken_apart_is_a_400() -> None:
    async def solve_dependencies(*_: Any) -> None:
        raise AttributeError("'int' object has no attribute 'get'")

    status, body = posted(solve_dependencies)
    assert status["status"] == 400
    assert json.loads(body["body"])["code"] == 400


def test_what_an_endpoint_raises_is_left_to_sglang() -> None:
    async def endpoint(*_: Any) -> None:
        raise AttributeError("a bug")

    with pytest.raises(AttributeError):
        posted(endpoint)
