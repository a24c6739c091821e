"""Plain workers whose best-effort prompts give way: who waits for whom; nothing is lost."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patches.preempt import admission
from tests.kernels import examples
from tests.unit.simulate.fleets import COST, plain
from tests.unit.simulate.test_plain import checked, finished, played
from toolkit.contract.preempting import Preempting
from toolkit.contract.request_class import RequestClass
from toolkit.decide import wait_queue
from toolkit.simulate import prompt_order
from toolkit.simulate.costs.linear import Decode, Linear, Prefill
from toolkit.simulate.fleet import Fleet, Stopping
from toolkit.simulate.plain_stopping import StoppingGroup
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation

LS, STANDARD, BE = RequestClass.LATENCY_SENSITIVE, RequestClass.STANDARD, RequestClass.BEST_EFFORT
EVEN = Linear(decode=Decode(base=0.01), prefill=Prefill(base=0.0, per_token=1e-4))
"""A step takes 10 ms, 100 prompt tokens too."""
LAYERS = 10
HOP = 0.001
Asked = tuple[float, int, int, RequestClass]
"""When it comes, tokens of prompt and answer, its class."""


def fleet(every: int = 1, layers: int = LAYERS, ahead: bool = False, **worker: Any) -> Fleet:
    rules = {key: worker.pop(key) for key in ("policy", "pauses", "seconds") if key in worker}
    stopping = Stopping(rules=Preempting(slice=every, **rules), layers=layers, ahead=ahead)
    sizes = {"slots": 8, "kv_tokens": 50_000, "loop": "plain"} | worker
    return plain("shortest_queue", preempt=stopping, **sizes)


def made(asked: Sequence[Asked]) -> list[Request]:
    ordered = sorted(asked, key=lambda each: each[0])
    return [
        Request(n, at, prompt, output, request_class=kind)
        for n, (at, prompt, output, kind) in enumerate(ordered)
    ]


def play(asked: Sequence[Asked], sizes: Fleet, cost: Linear = EVEN) -> list[Request]:
    simulation = Simulation(sizes, cost, iter(()))
    return played(simulation, made(asked))


def test_constants_are_those_of_workers_and_router() -> None:
    assert prompt_order.WAIT_LIMIT == admission.WAIT_LIMIT == wait_queue.WAIT_LIMIT


def test_one_latency_sensitive_waits_for_a_slice() -> None:
    """2,000 tokens take 200 ms, a slice 20; a latency-sensitive request comes after 50."""
    best_effort, latency_sensitive = play([(0.0, 2000, 1, BE), (0.05, 100, 3, LS)], fleet())
    assert latency_sensitive.prefilled == pytest.approx(HOP + 0.06 + 0.01)
    assert best_effort.prefilled == pytest.approx(HOP + 0.2 + 0.01)
    assert best_effort.paused is not None and best_effort.paused.pauses == 1
    assert best_effort.paused.seconds == pytest.approx(0.01)
    assert latency_sensitive.ended == pytest.approx(best_effort.prefilled + 2 * 0.01 + HOP), (
        "no step in a pause"
    )


def test_the_time_of_all_passes_is_counted_once() -> None:
    simulation = Simulation(fleet(), EVEN, iter(()))
    played(simulation, made([(0.0, 2000, 1, BE), (0.05, 100, 3, LS)]))
    (group,) = simulation.groups
    assert isinstance(group, StoppingGroup)
    assert group.prefill_s == pytest.approx(0.21) and group.busy_s == pytest.approx(0.23)


def test_a_worker_that_is_full_of_best_effort_prompts_still_lets_in_who_finds_room() -> None:
    """The second prompt found no room, after which nobody is looked at until somebody has left."""
    asked = [(0.0, 2000, 9, BE), (0.0, 2500, 9, BE), (0.05, 100, 3, LS)]
    best_effort, _, latency_sensitive = play(asked, fleet(kv_tokens=4000))
    assert latency_sensitive.prefilled < best_effort.prefilled


def test_a_gpu_has_the_next_slice_under_way_already() -> None:
    _, latency_sensitive = play([(0.0, 2000, 1, BE), (0.05, 100, 3, LS)], fleet(ahead=True))
    assert latency_sensitive.prefilled == pytest.approx(HOP + 0.08 + 0.01)


def test_an_answer_of_one_token_is_over_in_the_pause() -> None:
    best_effort, latency_sensitive = play([(0.0, 2000, 1, BE), (0.05, 100, 1, LS)], fleet())
    assert (
        latency_sensitive.ended == pytest.approx(latency_sensitive.prefilled + HOP)
        and latency_sensitive.ended < best_effort.prefilled
    )


def test_between_chunks_only_where_nobody_looks_between_layers() -> None:
    for alike in (fleet(layers=1), fleet(every=LAYERS), fleet(dp=2, dp_attention=True)):
        asked = [(0.0, 2000, 1, BE), (0.0, 2000, 1, BE), (0.05, 100, 3, LS)]
        *others, latency_sensitive = play(asked, alike)
        assert latency_sensitive.prefilled > 0.2 and not any(each.paused for each in others)
    best_effort, latency_sensitive = play(
        [(0.0, 2000, 1, BE), (0.06, 100, 3, LS)], fleet(layers=1, chunk=500)
    )
    assert latency_sensitive.prefilled == pytest.approx(HOP + 0.1 + 0.01)
    assert best_effort.prefilled > latency_sensitive.prefilled


def test_a_pass_that_holds_a_decode_step_is_not_stopped() -> None:
    asked = [(0.0, 100, 60, STANDARD), (0.02, 2000, 1, BE), (0.05, 100, 3, LS)]
    _, best_effort, latency_sensitive = play(asked, fleet(mixed=True))
    assert best_effort.paused is None and latency_sensitive.prefilled > best_effort.prefilled
    _, best_effort, latency_sensitive = play(asked, fleet())
    assert best_effort.paused is not None and latency_sensitive.prefilled < best_effort.prefilled


def test_best_effort_prompts_wait_for_answers_of_those_latency_sensitive() -> None:
    latency_sensitive, best_effort = play([(0.0, 100, 30, LS), (0.005, 100, 1, BE)], fleet())
    assert best_effort.prefill_began >= latency_sensitive.ended - HOP - 1e-9
    standing, best_effort = play([(0.0, 100, 30, STANDARD), (0.005, 100, 1, BE)], fleet())
    assert best_effort.prefill_began < 0.05 < standing.ended


@pytest.mark.parametrize("slots", [8, 1])
def test_but_for_64_steps_at_most(slots: int) -> None:
    """With one slot nobody is let in whatever the order, and steps are taken many at a time."""
    latency_sensitive, best_effort = play(
        [(0.0, 100, 200, LS), (0.005, 100, 1, BE)], fleet(slots=slots)
    )
    if slots == 1:
        assert best_effort.prefill_began >= latency_sensitive.ended - HOP - 1e-9
        return
    assert best_effort.prefill_began == pytest.approx(HOP + 0.01 + 64 * 0.01)
    assert latency_sensitive.ended == pytest.approx(HOP + 200 * 0.01 + 0.01 + HOP)


def test_steps_that_are_taken_at_once_are_counted_one_by_one() -> None:
    """After 64 steps there is no slot, after 100 there is one, after 128 it is let in."""
    asked = [(0.0, 100, 200, LS), (0.0, 100, 100, STANDARD), (0.005, 100, 1, BE)]
    *_, best_effort = play(asked, fleet(slots=2))
    assert 128 <= round((best_effort.prefill_began - HOP - 0.02) / 0.01) <= 131


def test_a_pause_lets_nobody_in_after_its_seconds() -> None:
    asked = [(0.0, 2000, 1, BE), (0.05, 100, 1, LS), (0.065, 100, 1, LS)]
    _, _, late = play(asked, fleet(seconds=0.005))
    assert late.prefilled == pytest.approx(HOP + 0.2 + 0.01 + 0.01)
    _, _, late = play(asked, fleet(seconds=1.0))
    assert late.prefilled == pytest.approx(HOP + 0.08)


def test_of_who_has_begun_the_rest_follows() -> None:
    asked = [(0.0, 2000, 1, BE), (0.0501, 100, 1, LS)]
    _, latency_sensitive = play(asked, fleet(seconds=0.001, chunk=50))
    assert latency_sensitive.prefilled == pytest.approx(HOP + 0.0505 + 0.01)


def test_nor_for_more_than_64_passes() -> None:
    asked = [(0.0, 100, 1, STANDARD)] * 100 + [(0.0, 100, 1, BE)]
    *others, best_effort = play(asked, fleet(chunk=100, slots=200))
    before = sum(each.prefill_began < best_effort.prefill_began for each in others)
    assert before in (64, 65)


def test_a_half_done_prompt_is_put_aside_for_others() -> None:
    best_effort, standard = play([(0.0, 1000, 1, BE), (0.005, 100, 1, STANDARD)], fleet(chunk=200))
    assert standard.prefilled == pytest.approx(HOP + 0.02 + 0.01)
    assert best_effort.computed == 1000


def test_without_slices_the_classes_are_alike() -> None:
    sizes = plain("shortest_queue", slots=8, kv_tokens=50_000, loop="plain")
    best_effort, latency_sensitive = play([(0.0, 2000, 1, BE), (0.05, 100, 3, LS)], sizes)
    assert latency_sensitive.prefilled > best_effort.prefilled and best_effort.paused is None


def test_a_static_batch_runs_to_its_end() -> None:
    sizes = plain("shortest_queue", slots=2, loop="plain", static=True)
    first, second, third = play([(0.0, 100, 5, BE), (0.0, 100, 50, BE), (0.005, 100, 1, LS)], sizes)
    assert first.ended < second.ended and third.prefill_began >= second.ended - HOP - 1e-9


def test_priorities_are_an_order_of_those_who_wait() -> None:
    sizes = plain("shortest_queue", slots=8, chunk=100, loop="plain", priorities=True)
    kinds = (BE, BE, STANDARD, LS)
    found = play([(0.001 * n, 100, 1, kind) for n, kind in enumerate(kinds)], sizes)
    assert [r.number for r in sorted(found, key=lambda r: r.prefilled)] == [0, 3, 2, 1]


ASKED = st.lists(
    st.tuples(
        st.floats(0, 0.6),
        st.integers(1, 3000),
        st.integers(1, 40),
        st.sampled_from([LS, STANDARD, BE]),
    ),
    min_size=1,
    max_size=14,
)


@given(
    asked=ASKED,
    every=st.integers(1, 4),
    ahead=st.booleans(),
    policy=st.sampled_from(["strict", "fair@0.6", "deadline@0"]),
    pauses=st.integers(0, 3),
    seconds=st.floats(0, 0.1),
    slots=st.integers(1, 8),
    capacity=st.integers(3100, 9000),
    mixed=st.booleans(),
    chunk=st.sampled_from([64, 512, 8192]),
    loop=st.sampled_from(["plain", "cpu", "overlap"]),
)
@settings(max_examples=examples(120), deadline=None)
def test_nothing_is_lost_and_bounds_hold(
    asked: Any,
    every: int,
    ahead: bool,
    policy: str,
    pauses: int,
    seconds: float,
    slots: int,
    capacity: int,
    mixed: bool,
    chunk: int,
    loop: str,
) -> None:
    sizes = fleet(
        every, ahead=ahead, policy=policy, pauses=pauses, seconds=seconds, slots=slots,
        kv_tokens=capacity, mixed=mixed, chunk=chunk, loop=loop,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patched:
        ended = checked.__wrapped__(patched)  # type: ignore[attr-defined]
        simulation = Simulation(sizes, COST, iter(()))
        requests = played(simulation, made(asked))
    finished(simulation, requests)
    assert set(ended.values()) == {1} and len(ended) == len(requests)
    (group,) = simulation.groups
    assert isinstance(group, StoppingGroup) and group._sliced is None and not group._beside
    longest = COST.prefill_s([(3000, 0)] * 14)
    for request in requests:
        if request.paused is not None:
            assert request.best_effort
            assert request.paused.pauses <= pauses
            assert request.paused.seconds <= seconds + longest


@given(asked=ASKED, every=st.integers(1, 4))
@settings(deadline=None)
def test_one_latency_sensitive_waits_for_a_slice_a_step_and_its_own_class(
    asked: Any, every: int
) -> None:
    """Without standard requests, which nobody stops, and with room for all."""
    asked = [(at, prompt, n, BE if kind is STANDARD else kind) for at, prompt, n, kind in asked]
    sizes = fleet(every, pauses=10_000, seconds=1e6, slots=64, kv_tokens=10**6, chunk=4096)
    requests = play(asked, sizes, COST)
    slices = -(-LAYERS // every)
    others = COST.prefill_s([(4096, 0)]) / slices
    step = COST.decode.base + 14 * (1e-4 + 3100e-6)
    own = sum(COST.prefill_s([(r.prompt, 0)]) for r in requests if r.urgent)
    for request in requests:
        if request.urgent:
            assert request.prefilled - request.arrived <= HOP + others + step + own + 1e-9
