"""Simulated prefills in slices: no latency-sensitive request waits for more than one, and nothing
is lost."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.simulate.fleets import COST
from toolkit.contract.request_class import RequestClass
from toolkit.policies.preemption.boundary import Boundary, BoundaryChoice
from toolkit.policies.preemption.bounds import Bounds
from toolkit.policies.preemption.named import boundary_policy
from toolkit.simulate.events import Events
from toolkit.simulate.preemption import Preemption
from toolkit.simulate.prefill import PrefillWorker
from toolkit.simulate.request import Request

LS, STANDARD, BE = RequestClass.LATENCY_SENSITIVE, RequestClass.STANDARD, RequestClass.BEST_EFFORT
LAYERS, SLICE = 24, 2
BASE, TOKEN = 0.005, 1e-5
"""Seconds of a pass, and of each of its tokens (`COST`)."""
Asked = tuple[float, int, RequestClass]


def rules(policy: str = "strict", **more: object) -> Preemption:
    return Preemption(boundary_policy(policy), LAYERS, SLICE, **more)  # type: ignore[arg-type]


def play(
    asked: Sequence[Asked], preemption: Preemption | None, chunk: int = 8192, behind: bool = False
) -> tuple[list[Request], PrefillWorker]:
    """One worker; the requests with the time at which their prefill was told of."""
    events = Events()

    def done(request: Request) -> None:
        request.prefilled = events.now
        worker.fetched(request)

    worker = PrefillWorker(
        events, COST, "prefill-0", done, chunk, preemption=preemption, behind=behind
    )
    requests = [
        Request(n, at, prompt, 4, request_class=kind) for n, (at, prompt, kind) in enumerate(asked)
    ]
    for request in requests:
        events.at(request.arrived, worker.take, request)
    events.run(1e6)
    return requests, worker


ASKED = st.lists(
    st.tuples(
        st.floats(0, 0.5),
        st.integers(1, 9000),
        st.sampled_from([LS, STANDARD, BE]),
    ),
    min_size=1,
    max_size=12,
)


def test_a_request_latency_sensitive_waits_for_the_rest_of_a_slice() -> None:
    """8,000 tokens take 85 ms, a slice of twelve 7.08 ms; a latency-sensitive request comes after
    20 ms."""
    (best_effort, latency_sensitive), _ = play([(0.0, 8000, BE), (0.02, 100, LS)], rules())
    slice_s = (BASE + 8000 * TOKEN) / 12
    assert latency_sensitive.prefilled == pytest.approx(3 * slice_s + BASE + 100 * TOKEN)
    assert best_effort.prefilled == pytest.approx(12 * slice_s + BASE + 100 * TOKEN)
    assert best_effort.paused is not None and best_effort.paused.pauses == 1
    (best_effort, latency_sensitive), _ = play([(0.0, 8000, BE), (0.02, 100, LS)], None)
    assert latency_sensitive.prefilled > best_effort.prefilled


def test_a_standard_request_stops_nobody_and_is_not_stopped() -> None:
    (best_effort, standard), _ = play([(0.0, 8000, BE), (0.02, 100, STANDARD)], rules())
    assert standard.prefilled > best_effort.prefilled
    (standard, latency_sensitive), _ = play([(0.0, 8000, STANDARD), (0.02, 100, LS)], rules())
    assert latency_sensitive.prefilled > standard.prefilled


def test_best_effort_goes_behind_all_others() -> None:
    asked = [(0.0, 500, STANDARD), (0.001, 500, BE), (0.002, 500, STANDARD), (0.003, 500, LS)]
    (_, best_effort, standard, latency_sensitive), _ = play(asked, rules())
    assert best_effort.prefilled > max(standard.prefilled, latency_sensitive.prefilled)


def test_between_two_chunks_others_go_first() -> None:
    (best_effort, standard), _ = play([(0.0, 2000, BE), (0.001, 10, STANDARD)], rules(), chunk=512)
    assert standard.prefilled < best_effort.prefilled


@pytest.mark.parametrize("behind", [False, True])
@given(asked=ASKED, chunk=st.sampled_from([2048, 8192]))
def test_all_are_prefilled_and_no_token_twice(behind: bool, asked: list[Asked], chunk: int) -> None:
    requests, worker = play(asked, rules(), chunk, behind)
    assert all(request.computed == request.prompt for request in requests)
    assert worker.prompts.computed_tokens == sum(prompt for _, prompt, _ in asked)
    assert worker.held_tokens == 0 and not worker.prompts.halves
    assert worker.view(True).inflight == 0


@given(asked=ASKED)
def test_one_latency_sensitive_waits_for_a_slice_and_for_its_own_class(asked: list[Asked]) -> None:
    """Without standard requests, which nobody stops."""
    asked = [(at, prompt, BE if kind is STANDARD else kind) for at, prompt, kind in asked]
    requests, _ = play(asked, rules(bounds=Bounds(1000, 1e6)))
    longest = (BASE + 8192 * TOKEN) / 12
    own = sum(2 * BASE + r.prompt * TOKEN for r in requests if r.request_class is LS)
    for request in requests:
        if request.request_class is LS:
            assert request.prefilled - request.arrived <= longest + own + 1e-9


@given(
    asked=ASKED,
    policy=st.sampled_from(["strict", "fair@0.6", "deadline@0"]),
    bounds=st.builds(Bounds, st.integers(0, 3), st.floats(0, 0.05)),
)
def test_nobody_is_stopped_more_than_the_bounds_allow(
    asked: list[Asked], policy: str, bounds: Bounds
) -> None:
    requests, _ = play(asked, rules(policy, bounds=bounds, slo_s=0.05))
    # The last batch that begins within the bound, and of who has begun in it the rest, in two more.
    longest = 3 * BASE + (8192 + 9000) * TOKEN
    for paused in (request.paused for request in requests if request.paused):
        assert paused.pauses <= bounds.pauses
        assert paused.seconds <= bounds.seconds + longest + 1e-9


def test_the_last_batch_of_a_pause_ends_with_the_rest_of_its_last_prompt() -> None:
    """5,000 and 3,192 tokens begin within the bound, and 5,808 follow."""
    asked = [(0.0, 8000, BE), (0.02, 5000, LS), (0.02, 9000, LS), (0.03, 100, LS)]
    (best_effort, _, half, late), _ = play(asked, rules(bounds=Bounds(3, 0.01)))
    assert best_effort.paused is not None and best_effort.paused.pauses == 1
    assert best_effort.paused.seconds == pytest.approx(2 * BASE + 14000 * TOKEN)
    assert half.prefilled < best_effort.prefilled < late.prefilled


def test_a_policy_sees_what_waits() -> None:
    seen: list[Boundary] = []

    def look(state: Boundary) -> BoundaryChoice:
        seen.append(state)
        return "continue"

    asked = [(0.0, 8000, BE), (0.02, 100, LS), (0.03, 50, LS), (0.03, 70, STANDARD)]
    play(asked, Preemption(look, LAYERS, SLICE, slo_s=0.3, takes_s=lambda tokens: tokens * TOKEN))
    slice_s = (BASE + 8000 * TOKEN) / 12
    assert len(seen) == 9, "from the third boundary to the last"
    first, second = seen[0], seen[3]
    assert (first.done, first.layers, first.slice) == (6, LAYERS, SLICE)
    assert first.ran_s == pytest.approx(3 * slice_s) and first.pauses == 0
    assert [each.tokens for each in first.urgent] == [100]
    assert first.urgent[0].waited_s == pytest.approx(3 * slice_s - 0.02)
    assert first.urgent[0].takes_s == pytest.approx(100 * TOKEN)
    assert [each.tokens for each in second.urgent] == [100, 50]
    assert second.urgent[0].slo_s == 0.3


def test_what_boundaries_cost_is_paid_by_best_effort_only() -> None:
    asked = [(0.0, 4000, BE), (1.0, 4000, LS)]
    free, _ = play(asked, rules())
    paid, _ = play(asked, rules(boundary_s=0.001))
    assert paid[0].prefilled - free[0].prefilled == pytest.approx(11 * 0.001)
    assert paid[1].prefilled == pytest.approx(free[1].prefilled)
