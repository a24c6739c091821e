"""Steps with a draft: tokens that a step gives, what it costs, and what a file says of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.simulate.fleets import COST, drafting, fleet, requests
from toolkit.resources import profiles_dir, recipes_dir
from toolkit.settings.deployment import Deployment
from toolkit.settings.load import load_deployment
from toolkit.simulate.costs import accepted_of, load
from toolkit.simulate.costs.drafted import drafted
from toolkit.simulate.costs.linear import Decode, Linear, Prefill
from toolkit.simulate.drafting import Drafting
from toolkit.simulate.errors import SimulateError
from toolkit.simulate.experts import Mixture, SimulatedExperts
from toolkit.simulate.fleet import Fleet
from toolkit.simulate.of_deployment import fleet_of
from toolkit.simulate.of_draft import DraftCosts
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation

STEP = Linear(decode=Decode(base=0.01), prefill=Prefill(base=0.001, per_token=1e-5))
"""Every step takes as long."""
RECIPE = recipes_dir() / "cpu-speculative.yaml"


def with_draft(made: Fleet, accepted: float | None, share: float | None = None) -> Fleet:
    return made.model_copy(update={"drafting": drafting(accepted, share)})


def one(output: int, accepted: float | None, cost: Linear = STEP, **more: Any) -> Request:
    request = Request(0, 0.0, 100, output)
    made = fleet({"loop": "plain"}, {"decode_policy": "round_robin"})
    Simulation(with_draft(made, accepted, **more), cost, [request]).run()
    return request


@pytest.mark.parametrize(
    ("output", "accepted", "steps"),
    [(101, None, 100), (101, 1.0, 100), (101, 2.0, 50), (102, 2.0, 51), (101, 1.5, 67), (1, 4, 0)],
)
def test_an_answer_takes_as_many_steps_as_its_tokens_need(
    output: int, accepted: float | None, steps: int
) -> None:
    found = one(output, accepted)
    assert found.ended - found.first_token == pytest.approx(steps * 0.01, abs=1e-9)


@pytest.mark.parametrize("mode", ["pd", "plain"])
def test_one_token_a_step_is_as_without_a_draft(mode: str) -> None:
    made = fleet({"slots": 8}, {"decode_policy": "brh@learned"})
    if mode == "plain":
        made = Fleet.model_validate({"worker": {"slots": 8, "replicas": 2}, "router": made.router})
    figures = [
        Simulation(with_draft(made, accepted), COST, requests(200)).run().result()
        for accepted in (None, 1.0)
    ]
    assert figures[0] == figures[1]


def test_twice_the_tokens_a_step_is_half_the_time() -> None:
    def tpot(accepted: float | None) -> float:
        made = fleet({"slots": 500}, {"decode_policy": "round_robin"})
        asked = requests(400, 40.0, output=400)
        return float(
            Simulation(with_draft(made, accepted), STEP, asked).run().result()["tpot_mean"]
        )

    assert tpot(2.0) == pytest.approx(tpot(None) / 2, rel=0.01)


def test_a_request_holds_more_than_its_own_tokens() -> None:
    """Twice the tokens that are verified, so that a pool is full sooner."""

    def retracted(accepted: float | None) -> int:
        made = fleet(
            {"slots": 12, "kv_tokens": 3850, "reserve": 0, "loop": "plain"},
            {"decode_policy": "round_robin"},
        )
        asked = [Request(n, 0.0, 200, 120) for n in range(12)]
        return Simulation(with_draft(made, accepted), STEP, asked).run().retracted

    assert retracted(None) == 0  # 12 * 320 tokens
    assert retracted(1.0) > 0  # and 12 * 7 more


def test_a_verification_is_a_step_of_more_requests_that_reads_the_same_kv() -> None:
    draft = Drafting(accepted=2.0, verified=4, passes=3, share=0.1)
    count, kv = np.array([5, 2]), np.array([1000, 9000])
    cost = Linear(
        decode=Decode(base=1.0, per_request=0.1, per_kv_token=1e-3, per_distinct=0.01),
        prefill=Prefill(base=1.0, per_token=0.1),
    )

    def alone(requests: float, held: float) -> float:
        return 1.0 + 0.1 * requests + 1e-3 * held + 0.01 * 30

    verify, single = alone(8, 9000), alone(2, 9000)
    step = drafted(cost, draft).decode_s(count, kv, 30.0)
    assert step == pytest.approx(verify + 0.1 * (verify + 2 * single))
    assert drafted(cost, draft).prefill_s([(10, 0)]) == pytest.approx(2.0 * 1.1)
    assert drafted(cost, None) is cost
    measured = draft.model_copy(update={"share": None})
    assert drafted(cost, measured) is cost, "measured with the draft: nothing is added"


def test_mixed_lengths_cost_no_more_with_a_draft() -> None:
    """One request is three times as long as the mean, whatever is verified."""
    cost = Linear(
        decode=Decode(base=0.0, per_kv_token=1e-3, mixed=1e-3, mixed_most=99.0),
        prefill=Prefill(base=1.0, per_token=0.0),
    )
    given = np.array([4]), np.array([4000]), 0.0, np.array([3000])
    draft = Drafting(accepted=2.0, verified=4, passes=1, share=0.0)
    assert drafted(cost, draft).decode_s(*given) == pytest.approx(cost.decode_s(*given))


def test_more_tokens_load_more_experts() -> None:
    experts = SimulatedExperts(np.array([[[5, 1, 0]]]), np.array([10]))

    def distinct(found: SimulatedExperts) -> float:
        mixture = Mixture(found)
        mixture.add(0)
        return mixture.distinct()

    assert distinct(experts) == pytest.approx(0.5 + 0.1)
    assert distinct(experts.verified(3)) == pytest.approx(1 - 0.5**3 + 1 - 0.9**3)


def test_policies_know_what_a_step_gives() -> None:
    made = fleet({"replicas": 2}, {"decode_policy": "brh@learned"})
    simulation = Simulation(with_draft(made, 2.5), COST, requests(50))
    assert {s.view(0.0, True).step_tokens for s in simulation.router.rank_states} == {2.5}
    simulation.run()
    followed = simulation.router.followed
    assert followed is not None and not len(followed)


def test_a_file_says_what_is_verified_and_costs_what_it_gives() -> None:
    deployment = load_deployment(RECIPE)
    found = fleet_of(deployment, draft=DraftCosts(accepted=2.0)).drafting
    assert found == Drafting(accepted=2.0, verified=4, passes=3, share=1 / 6)
    said = fleet_of(deployment, draft=DraftCosts(2.0, 0.25)).drafting
    assert said is not None and said.share == 0.25
    measured = fleet_of(deployment, draft=DraftCosts(2.0, measured=True)).drafting
    assert measured is not None and measured.share is None


BARE: dict[str, Any] = {"name": "x", "device": "cpu", "decode": {"max_running": 4, "kv_tokens": 99}}


@pytest.mark.parametrize(
    ("more", "costs", "said"),
    [
        ({"speculative": {"steps": 1}}, DraftCosts(), "say it with --accepted"),
        ({"speculative": {"steps": 1}}, DraftCosts(2.5), "gives a request 1 to 2 tokens"),
        (
            {"speculative": "embedded"},
            DraftCosts(2.0, 0.1, measured=True),
            "--draft-share: these costs are of steps with a draft already",
        ),
        ({}, DraftCosts(2.0, measured=True), "measured with a draft and the deployment has none"),
        (
            {"decode": BARE["decode"] | {"args": {"speculative_algorithm": "EAGLE"}}},
            DraftCosts(2.0),
            "write section `speculative`",
        ),
        (
            {"speculative": "/no/draft", "model": "/no/model", "device": "cuda"},
            DraftCosts(2.0),
            "Say it with --draft-share",
        ),
    ],
)
def test_what_nobody_knows_is_asked_for(more: dict[str, Any], costs: DraftCosts, said: str) -> None:
    with pytest.raises(SimulateError, match=said):
        fleet_of(Deployment.model_validate(BARE | more), draft=costs)


def test_mixed_chunks_are_off_with_a_draft() -> None:
    args = {"args": {"enable-mixed-chunk": True}, "max_running": 4, "kv_tokens": 999}
    file = {"name": "x", "device": "cpu", "mode": "plain", "worker": args}
    drafted_file = Deployment.model_validate(file | {"speculative": "embedded"})
    with_one = fleet_of(drafted_file, draft=DraftCosts(2.0)).worker
    without = fleet_of(Deployment.model_validate(file)).worker
    assert with_one is not None and not with_one.mixed
    assert without is not None and without.mixed


def test_costs_say_whether_they_were_measured_with_a_draft(tmp_path: Path) -> None:
    assert accepted_of(load(str(profiles_dir() / "embedded"))) is None
    file = tmp_path / "costs.yaml"
    file.write_text("{decode: {base: 0.1}, prefill: {base: 1, per_token: 1}, accepted: 1.5}")
    steps = load(str(file))
    assert accepted_of(steps) == 1.5
    assert DraftCosts.of(steps, None, None) == DraftCosts(1.5, None, True)
    assert DraftCosts.of(steps, 2.0, None) == DraftCosts(2.0, None, True)
    assert DraftCosts.of(COST, None, 0.1) == DraftCosts(None, 0.1, False)


def test_what_policies_think_an_answer_has_is_what_it_has() -> None:
    """Nobody hears a simulated token: they are counted by the steps of its rank."""
    request = Request(0, 0.0, 100, 400)
    made = fleet({"loop": "plain"}, {"decode_policy": "brh@learned"})
    simulation = Simulation(with_draft(made, 2.5), STEP, [request])
    simulation.run(until=1.0)
    followed, loop = simulation.router.followed, simulation.groups[0]
    known = simulation.router.decode_policy.inflight
    assert followed is not None and known is not None
    followed.catch_up()
    said = loop.said(request)
    assert 200 < said < request.output, "2.5 tokens each 10 ms"
    assert abs(known.tokens(simulation.ranks[0].key) - request.prompt - said) <= 2
