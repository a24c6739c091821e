"""Decode ranks that are chosen while a long prompt's last passes run, in the simulator."""

from typing import Any

import pytest

from toolkit.policies.early_choice import EarlyChoice, PrefillPace
from toolkit.simulate.costs.linear import Decode, Linear, Prefill, TransferCost
from toolkit.simulate.early import AHEAD, EarlyChoices
from toolkit.simulate.fleet import DecodeFleet, Fleet, PrefillFleet, RouterFleet
from toolkit.simulate.prompt_queue import Part
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation

CHUNK, CHUNKS = 1000, 16
TOKEN_S, KV_S = 1e-4, 5e-6
COST = Linear(
    decode=Decode(base=1e-6),
    prefill=Prefill(base=0.0, per_token=TOKEN_S),
    transfer=TransferCost(per_token=KV_S),
)


def played(early: float | None, loop: str = "plain", kv_s: float = KV_S) -> Request:
    """A long prompt behind one that the worker has measured itself by."""
    prefill = PrefillFleet.model_validate({"chunk": CHUNK, "early_choice": early, "loop": loop})
    fleet = Fleet(
        prefill=prefill,
        decode=DecodeFleet(loop="plain", early_place=True),
        router=RouterFleet(hop_s=0.0, decode_policy="shortest_queue"),
    )
    requests = [Request(0, 0.0, 2 * CHUNK, 2), Request(1, 10.0, CHUNKS * CHUNK, 2)]
    cost = COST.model_copy(update={"transfer": TransferCost(per_token=kv_s)})
    Simulation(fleet, cost, requests, sample_s=1e9).run()
    assert not requests[0].asked, "nobody asks for prompts of two chunks"
    return requests[1]


def test_late_dispatch_sends_all_at_the_end() -> None:
    request = played(None)
    assert not request.asked
    assert request.received - request.prefilled == pytest.approx(CHUNKS * CHUNK * KV_S, rel=1e-3)


@pytest.mark.parametrize(("loop", "left"), [("plain", 2), ("overlap", 3)])
def test_only_the_last_chunk_is_left(loop: str, left: int) -> None:
    request = played(0.0, loop)
    assert request.asked
    assert request.received - request.prefilled == pytest.approx(CHUNK * KV_S, rel=1e-2)
    assert request.prefilled - request.bound == pytest.approx(left * CHUNK * TOKEN_S, rel=1e-2)
    assert request.sent == (CHUNKS - 1) * CHUNK


def test_a_cpu_s_loop_sends_a_chunk_later() -> None:
    """It looks at the result of a pass when the next one is done."""
    request = played(0.0, "cpu")
    assert request.asked and request.sent == (CHUNKS - 2) * CHUNK
    late = played(None, "cpu")
    ours, theirs = (each.received - each.prefilled for each in (request, late))
    assert ours < 0.3 * theirs


def test_a_slow_network_is_asked_for_earlier() -> None:
    slow = played(0.0, kv_s=TOKEN_S / 2)
    fast = played(0.0)
    assert slow.prefilled - slow.bound > 3 * (fast.prefilled - fast.bound)
    assert slow.received - slow.prefilled < 0.25 * CHUNKS * CHUNK * TOKEN_S / 2


def test_where_it_gains_little_nobody_is_asked() -> None:
    assert not played(0.1).asked
    assert played(0.02).asked


def test_with_both_chosen_at_once_there_is_nothing_to_ask() -> None:
    fleet = Fleet(
        prefill=PrefillFleet(chunk=CHUNK, early_choice=0.0),
        router=RouterFleet(dispatch="concurrent", decode_policy="shortest_queue"),
    )
    request = Request(0, 0.0, CHUNKS * CHUNK, 2)
    run = Simulation(fleet, COST, [request], sample_s=1e9)
    run.run()
    assert not request.asked and all(prefill.early is None for prefill in run.prefills)


@pytest.mark.parametrize(
    ("loop", "asked_at", "sent"),
    [("plain", 80, [(90, 90)]), ("overlap", 70, [(90, 90)]), ("cpu", 60, [(90, 80)])],
)
def test_each_loop_sends_as_it_looks(loop: Any, asked_at: int, sent: list[tuple[int, int]]) -> None:
    """Of a prompt of ten passes that has its place when the next pass begins: at the end of which
    pass how much leaves."""
    request, told, left = Request(0, 0.0, 100, 2), list[int](), list[tuple[int, int]]()
    done = 0
    early = EarlyChoices(
        EarlyChoice(0.0, AHEAD[loop]), 10, loop,
        lambda _: told.append(done), lambda _, tokens: left.append((done, tokens)),
        PrefillPace(10.0, 1.0, 10.0, 0.01),
    )  # fmt: skip
    for done in range(10, 100, 10):
        early.passed([Part(request, 10, done - 10)], [request], 1.0)
        if told:
            request.place = ("decode-0", 0)
    assert told == [asked_at + 10 if loop == "cpu" else asked_at]
    assert left == sent and request.sent == sent[0][1]
