"""What holds in every simulation: nothing is lost, nothing is there twice, the same again."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from tests.unit.simulate.fleets import ACCEPTED, COST, beyond, drafting, fleet, held_by, requests
from toolkit.placement import Topology, linear
from toolkit.policies.support.readings import possible
from toolkit.resources import profiles_dir
from toolkit.simulate import loop as loops
from toolkit.simulate.costs.linear import Decode, Linear, Prefill
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.fleet import Machine
from toolkit.simulate.loop import Loop
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation
from toolkit.simulate.worker_states import NotBegun
from toolkit.simulate.workloads.patterns import with_rows

pytestmark = pytest.mark.touched("planning")

POLICIES = ("round_robin", "shortest_queue", "br0@0", "brh@learned", "level", "gimbal")
POLICIES += ("pooled@shortest_queue", "unpooled@brh@survival")  # type: ignore[assignment]


def played(simulation: Simulation) -> tuple[list[Request], Simulation]:
    """Run it, with a look at every boundary; its requests."""
    kept: list[Request] = []

    def noted(given: Iterator[Request]) -> Iterator[Request]:
        for request in given:
            kept.append(request)
            yield request

    simulation._requests = noted(simulation._requests)
    simulation.run()
    simulation.events.run(simulation.events.now + 1.0)  # the step after the last answer's end
    return kept, simulation


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every boundary of every group looks whether its books are right."""
    plan = Loop._plan

    def looked(group: Loop) -> None:
        for rank in group.ranks:
            held = held_by(group, rank)
            assert group.kv[rank.place] == held >= 0
            assert group.requests[rank.place] == len(rank.running) <= rank.slots
            assert group.coming[rank.place] >= 0 <= rank.coming
            assert len(rank.running) + rank.coming <= rank.slots
            if len(rank.running) > 1:
                assert held + len(rank.running) * (1 + beyond(group)) <= rank.capacity
        plan(group)

    monkeypatch.setattr(Loop, "_plan", looked)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("loop", ["overlap", "cpu", "plain"])
@pytest.mark.usefixtures("checked")
def test_every_request_ends_once_with_all_its_tokens(policy: Any, loop: str) -> None:
    made = fleet(
        {"dp": 4, "dp_attention": True, "slots": 6, "kv_tokens": 8000, "reserve": 64, "loop": loop},
        {"decode_policy": policy},
        {"replicas": 2, "chunk": 512, "kv_tokens": 20_000},
    )
    kept, simulation = played(Simulation(made, COST, requests(300, 40.0)))
    assert simulation.recorder.ended == len(kept) == 300
    for request in kept:
        assert request.arrived < request.prefill_began < request.prefilled < request.bound
        assert request.bound < request.first_token <= request.ended
        assert request.computed + request.cached == request.prompt
        least = (request.output - 1) * COST.decode.base
        assert request.ended - request.first_token >= least - 1e-9
    for group in simulation.groups:
        assert not group.requests.any() and not group.kv.any() and not group.coming.any()
    assert all(not p.held_tokens and not p.prompts.waiting for p in simulation.prefills)
    ranks = simulation.router.decider.ranks
    assert all(rank.credit == made.router.parked_per_prefill for rank in ranks.of("prefill"))
    assert all(
        not rank.inflight and rank.ledger.there == NotBegun()
        for rank in simulation.router.rank_states
    )
    assert not simulation.router.decider.attempts.requests


@pytest.mark.usefixtures("checked")
@given(
    seed=st.integers(0, 1000),
    slots=st.integers(1, 8),
    capacity=st.integers(600, 6000),
    dp=st.integers(1, 4),
    attention=st.booleans(),
    dispatch=st.sampled_from(["late", "concurrent"]),
    report=st.sampled_from([0.0, 0.5]),
    early=st.booleans(),
    accepted=ACCEPTED,
    routers=st.integers(1, 3),
)
@settings(max_examples=examples(50), deadline=None)
def test_nothing_is_lost_when_pools_are_small(
    seed: int,
    slots: int,
    capacity: int,
    dp: int,
    attention: bool,
    dispatch: str,
    report: float,
    early: bool,
    accepted: float | None,
    routers: int,
) -> None:
    if routers > 1:
        report = report or 0.01
    made = fleet(
        {"dp": dp, "dp_attention": attention, "slots": slots, "kv_tokens": capacity, "reserve": 8,
         "early_place": early},
        {"decode_policy": "power_of_two", "dispatch": dispatch, "report_s": report,
         "routers": routers},
        {"chunk": 256, "kv_tokens": 3000},
    )  # fmt: skip
    made = made.model_copy(update={"drafting": drafting(accepted)})
    kept, simulation = played(Simulation(made, COST, requests(40, 50.0, seed), seed=seed))
    assert simulation.recorder.ended == len(kept) == 40
    assert all(request.ended >= request.first_token for request in kept)
    for router in simulation.routers:
        assert all(not rank.inflight for rank in router.rank_states)
        assert not router.decider.attempts.requests


def test_a_full_pool_retracts_and_everybody_still_gets_all_tokens() -> None:
    made = fleet({"slots": 16, "kv_tokens": 2500, "reserve": 0}, {"decode_policy": "round_robin"})
    kept, simulation = played(Simulation(made, COST, requests(60, 50.0, prompt=200, output=200)))
    assert simulation.recorder.retracted > 0
    assert all(r.generated <= r.output for r in kept)
    assert simulation.recorder.ended == 60


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_seeds_give_equal_results(policy: Any) -> None:
    made = fleet({"dp": 3, "dp_attention": True}, {"decode_policy": policy})
    first, again = (Simulation(made, COST, requests(200), seed=3).run().result() for _ in range(2))
    assert first == again


EXPERTS = SimulatedExperts.of_profile(profiles_dir() / "embedded")


def by_experts(policy: str, seed: int = 0, **decode: object) -> tuple[list[Request], Simulation]:
    """Requests of the embedded model's kinds over decode servers with DP attention."""
    sizes = {"dp_attention": True, "slots": 6, "kv_tokens": 8000} | decode
    made = fleet(sizes, {"decode_policy": policy}, {"replicas": 2})
    asked = with_rows(requests(200, 40.0, seed), EXPERTS, seed)
    return played(Simulation(made, COST, asked, EXPERTS, seed))


def test_a_layer_waits_for_the_gpu_with_most_experts() -> None:
    """Four GPUs that share a step's experts evenly would take a quarter; hot ones are uneven."""
    steps = Linear(decode=Decode(base=0.0, per_distinct=1e-4), prefill=COST.prefill)
    taken = []
    for experts in (EXPERTS, EXPERTS.placed(linear(EXPERTS.layers, EXPERTS.experts, Topology(4)))):
        asked = with_rows(requests(60), EXPERTS, 0)
        run = Simulation(fleet(), steps, asked, experts, in_flight=8)
        taken.append(run.run().result()["tpot_mean"])
    assert 1.05 / 4 < taken[1] / taken[0] < 0.9


def places(kept: list[Request]) -> list[tuple[str, int, float]]:
    """Where and when each request was bound."""
    return [(*r.place, r.bound) for r in kept if r.place is not None]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("policy", "without"),
    [
        ("composed", "composed@filter+level+user"),
        ("composed@eldr+level", "level"),
        ("composed@eldr+brh", "brh@learned"),
        ("eldr", "shortest_queue"),
    ],
)
def test_in_one_server_that_shares_its_experts_locality_decides_nothing(
    policy: str, without: str, seed: int
) -> None:
    one, two = (by_experts(name, seed, dp=4) for name in (policy, without))
    assert places(one[0]) == places(two[0])
    assert len(one[0]) == len(places(one[0])) == 200


def test_servers_whose_ranks_share_their_experts_have_one_centroid_each() -> None:
    kept, simulation = by_experts("composed", replicas=2, dp=2)
    assert simulation.fleet.centroids == 2 and simulation.fleet.decode_ranks == 4
    locality = simulation.router.decode_policy.locality
    assert locality is not None and locality.centroids is not None
    assert locality.centroids.owner == {("decode-0", None): 0, ("decode-1", None): 1}
    assert {place[:2] for place in places(kept)} == {
        (f"decode-{n}", g) for n in (0, 1) for g in (0, 1)
    }
    assert locality.inflight_signatures is not None
    assert not any(locality.inflight_signatures.count(group) for group in locality.centroids.owner)
    apart = by_experts("composed", replicas=2, dp=2, dp_attention=False)[1]
    assert apart.fleet.centroids == 4


def test_hops_are_the_steps_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a step time that is linear in KV, many steps at once end when single ones would."""
    made = fleet(
        {"replicas": 2, "slots": 8, "kv_tokens": 6000}, {"decode_policy": "shortest_queue"}
    )
    ends = []
    for hop in (64, 1):
        monkeypatch.setattr(loops, "HOP", hop)
        kept, _ = played(Simulation(made, COST, requests(150, 30.0)))
        ends.append([(r.first_token, r.ended) for r in kept])
    for hopped, stepped in zip(*ends, strict=True):
        assert hopped == pytest.approx(stepped, rel=1e-9)


def test_a_closed_loop_keeps_as_many_in_flight() -> None:
    made = fleet({"slots": 4}, {"decode_policy": "round_robin"})
    simulation = Simulation(made, COST, requests(100), in_flight=6)
    most = 0
    arrive = simulation.router.arrive

    def watched(request: Request) -> None:
        nonlocal most
        arrive(request)
        most = max(most, simulation.live)

    simulation.router.arrive = watched  # type: ignore[method-assign]
    simulation.run()
    assert most == 6 and simulation.recorder.ended == 100


def test_ranks_at_a_barrier_wait_for_the_heaviest() -> None:
    cost = COST.model_copy(update={"decode": COST.decode.model_copy(update={"per_kv_token": 1e-4})})
    waits = {}
    for attention in (True, False):
        made = fleet({"dp": 4, "dp_attention": attention}, {"decode_policy": "round_robin"})
        waits[attention] = Simulation(made, cost, requests(200, 4.0)).run().result()["tpot_mean"]
    assert waits[True] > 1.3 * waits[False]


def test_without_requests_nothing_happens() -> None:
    for in_flight in (None, 4):
        result = Simulation(fleet(), COST, iter(()), in_flight=in_flight).run().result()
        assert result["requests"] == 0 and math.isnan(result["ttft_mean"])


def test_decode_workers_that_slow_each_other_take_as_much_longer() -> None:
    """At half speed beside each other two finish together what each would alone in half."""

    def took(speed: float) -> float:
        made = fleet({"replicas": 2, "loop": "plain"}, {"decode_policy": "round_robin"})
        machine = made.machine.model_copy(update={"decode_beside_decode": speed})
        pair = [Request(n, 0.0, 10, 400) for n in range(2)]
        simulation = Simulation(made.model_copy(update={"machine": machine}), COST, pair)
        simulation.run()
        return max(r.ended - r.first_token for r in pair)

    assert took(0.5) == pytest.approx(2 * took(1.0), rel=0.02)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("speed", [0.25, 0.5])
def test_decode_loses_what_a_prefill_pass_takes_from_it(speed: float) -> None:
    """A pass of P seconds in the middle of an answer costs it (1 - speed) * P, and prefill none."""
    made = fleet({"slots": 1}, {"decode_policy": "round_robin"})
    made = made.model_copy(update={"machine": Machine(decode_beside_prefill=speed)})

    def play(*prompts: int) -> tuple[float, float]:
        some = [Request(0, 0.0, 10, 2000)]
        some += [Request(1 + n, 1.0 + n, prompt, 2) for n, prompt in enumerate(prompts)]
        Simulation(made, COST, some).run()
        return some[0].ended, sum(r.prefilled - r.prefill_began for r in some[1:])

    (alone, _), (beside, passes) = play(), play(4000, 8000)
    assert passes == pytest.approx(COST.prefill_s([(4000, 0)]) + COST.prefill_s([(8000, 0)]))
    assert beside - alone == pytest.approx((1 - speed) * passes, rel=0.05)


@pytest.mark.usefixtures("checked")
def test_a_step_takes_longer_by_what_each_request_that_begins_with_it_costs() -> None:
    """Only that step: the k-th of n requests delays those before it, and itself not at all."""

    def ends(per_join: float) -> list[float]:
        decode = COST.decode.model_copy(update={"per_join": per_join})
        cost = COST.model_copy(update={"decode": decode})
        some = [Request(n, 0.4 * n, 10, 400) for n in range(4)]
        Simulation(fleet({"slots": 8, "loop": "plain"}), cost, some).run()
        return [r.ended for r in some]

    plain, more = ends(0.0), ends(0.05)
    assert more[-1] - plain[-1] == pytest.approx(0.05, abs=0.03)
    assert more[0] - plain[0] == pytest.approx(4 * 0.05, abs=0.03)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("loop", ["cpu", "overlap", "plain"])
def test_an_early_place_saves_the_step_that_a_request_waits_to_be_seen(loop: str) -> None:
    """Its KV comes while the step runs into which it came."""

    def waited(early: bool) -> list[float]:
        some = [Request(0, 0.0, 10, 4000)]
        some += [Request(n, 0.3 * n, 10, 5) for n in range(1, 40)]
        made = fleet({"slots": 4, "loop": loop, "early_place": early})
        Simulation(made, COST, some).run()
        return [r.first_token - r.bound for r in some[1:]]

    step = COST.decode.base + COST.decode.per_request
    whole = [round((a - b) / step) for a, b in zip(waited(False), waited(True), strict=True)]
    # Who comes when a step is almost over has no KV yet when it ends.
    assert set(whole) <= {0, 1}
    assert sum(whole) > len(whole) / 2


def test_policies_are_not_blind_where_nobody_sized_the_pools() -> None:
    """What is said of such a rank is a reading that can be true, so a policy acts on it."""
    simulation = Simulation(fleet({"dp": 2}), COST, iter(()))
    assert all(possible(rank.live()) for rank in simulation.router.rank_states)


@pytest.mark.parametrize("early", [True, False])
def test_kv_of_a_finished_prompt_does_not_wait_for_the_pass_of_another_one(early: bool) -> None:
    cost = COST.model_copy(update={"prefill": Prefill(base=0.0, per_token=1e-3)})
    made = fleet({"slots": 1, "loop": "plain"}, {"decode_policy": "level"}, {"early_send": early})
    first, waits, long = (
        Request(0, 0.0, 100, 100),  # decodes for about a second
        Request(1, 0.0, 100, 5),  # is computed long before there is a place for it
        Request(2, 0.2, 5000, 5),  # runs for five seconds
    )
    kept, _ = played(Simulation(made, cost, [first, waits, long]))
    assert kept == [first, waits, long]
    assert long.prefill_began < first.ended < waits.received
    assert (waits.received < long.prefilled) is early
    assert early or waits.received >= long.prefilled


@pytest.mark.parametrize("bound", [None, 2.0])
def test_a_finished_prompt_waits_for_a_place_no_longer_than_it_may(bound: float | None) -> None:
    """Then it goes to the rank that is full, and waits there."""
    router = {"decode_policy": "level", "park_timeout_s": bound}
    made = fleet({"slots": 1, "loop": "plain"}, router)
    first, waits = Request(0, 0.0, 100, 500), Request(1, 0.1, 100, 5)
    kept, simulation = played(Simulation(made, COST, [first, waits]))
    assert len(kept) == 2 and first.ended > 5.0
    pool = simulation.router.decider.pool
    assert pool is not None and pool.expired == (bound is not None)
    waited = waits.bound - waits.prefilled
    assert 2.0 <= waited < 2.5 if bound else waits.bound > first.ended - 0.1
    assert waits.first_token > first.ended - 0.1
