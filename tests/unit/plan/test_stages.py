"""Stages in the planner: searched where they may win, advised against where they cannot."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.plan.tasks import COST, candidate, document, task
from toolkit.plan.candidate import Candidate, Given
from toolkit.plan.knob import Knob
from toolkit.plan.planner import make
from toolkit.plan.space import plain, searched
from toolkit.plan.split import Split, split_of, with_split
from toolkit.plan.stages import OFF, Stager, qoe_of, staging, why_not
from toolkit.policies.stages.layout import Layout
from toolkit.settings.document import get
from toolkit.simulate.costs.linear import Decode, Linear, Prefill
from toolkit.simulate.fleet import StageFleet
from toolkit.simulate.request import Request

PREFILL = Prefill(base=0.01, per_token=0)
MIXED = Linear(
    decode=Decode(base=0.002, per_kv_token=1e-5, mixed=2e-5),
    prefill=Prefill(base=0.001, per_token=1e-6),
)


def _requests(rate: float = 20.0, count: int = 120) -> list[Request]:
    """Short ones, and every sixth a long one."""
    return [
        Request(i, i / rate, 3000 if i % 6 == 0 else 60, 120 if i % 6 == 0 else 40)
        for i in range(count)
    ]


def _stager(cost: Linear = MIXED, flying: int | None = 40) -> Stager:
    return Stager(cost, _requests(), 20.0, flying)


def _knob(own: Candidate, plans: Stager) -> Knob:
    (knob,) = staging(own, plans)
    return knob


def test_a_cost_model_says_its_qoe() -> None:
    found = qoe_of(COST)
    assert found.coefficients == pytest.approx((0.01, 1e-4, 0, 0, 1e-6))
    assert found.mixed == 0
    assert qoe_of(MIXED).mixed == 2e-5


def test_the_knob_writes_stages_for_the_workers_that_there_are() -> None:
    own, plans = candidate(), _stager()
    knob = _knob(own, plans)
    assert knob.values[0] == OFF and "2" in knob.values
    assert knob.read(own.document) == OFF
    two = knob.write(own.document, "2")
    assert knob.read(two) == "2"
    made = Candidate.of(two, Given())
    assert made.deployment.decode.layout is not None
    assert made.deployment.decode.layout.ranks == 3
    assert made.fleet.decode.layout == made.deployment.decode.layout
    assert knob.write(two, OFF) == own.document
    moves = made.fleet.rebalance
    assert moves is not None and moves.qoe == plans.qoe.coefficients and moves.mixed == 2e-5
    assert moves.bounds.refine_s > 0 and moves.bounds.replan_s > 0, "they follow the lengths"
    calm = candidate(router={"rebalance": {"at_once": 1, "mixed": 1e-6}})
    kept = _knob(calm, plans).write(calm.document, "2")
    told = get(kept, "router", "rebalance")
    assert told == {"at_once": 1, "mixed": 1e-6, "qoe": list(plans.qoe.coefficients)}
    assert _knob(calm, plans).write(kept, OFF) == calm.document
    for switch, on in ((True, True), (False, False)):
        given = candidate(router={"rebalance": switch})
        told = get(_knob(given, plans).write(given.document, "2"), "router", "rebalance")
        assert isinstance(told, dict) == on and (on or told is False)
    more = with_split(two, Split(2, 5))
    assert get(more, "decode", "stages") is None
    assert Candidate.of(knob.write(more, "2"), Given()).fleet.decode_ranks == 5


def test_the_same_split_keeps_the_files_stages() -> None:
    stages = [{"upto": 200, "replicas": 2}, {}]
    mine = document(decode={"stages": stages, "kv_tokens": 20_000, "max_running": 16})
    assert split_of(mine) == Split(1, 3)
    assert get(with_split(mine, Split(1, 3)), "decode", "stages") == stages
    own = Candidate.of(mine, Given())
    knob = _knob(own, _stager())
    assert knob.read(mine) == "2" and "2" in knob.values
    bare = plain(mine)
    assert get(bare, "decode", "stages") is None
    assert split_of(bare) == Split(1, 3)


@pytest.mark.parametrize(
    ("changes", "cost", "said"),
    [
        ({}, Linear(decode=Decode(base=0.01), prefill=PREFILL),
         "leave them out, a step takes as long whatever the lengths are"),
        ({}, Linear(decode=Decode(base=0.1, per_kv_token=1e-9), prefill=PREFILL),
         "lengths change the time of a step too little"),
        ({"decode": {"replicas": 1, "kv_tokens": 9999, "max_running": 8}}, MIXED,
         "one decode worker has all lengths"),
        ({"router": {"dispatch": "concurrent", "decode_policy": "shortest_queue"}}, MIXED,
         "dispatch: late"),
    ],
)  # fmt: skip
def test_it_is_advised_against_where_it_cannot_win(
    changes: dict[str, Any], cost: Linear, said: str
) -> None:
    own, plans = candidate(**changes), _stager(cost)
    assert said in why_not(own, plans)
    assert staging(own, plans) == []
    names = {knob.name for knob in searched(own, (Split(1, 3),), False, None, plans)}
    assert "decode.stages" not in names


@pytest.mark.slow
def test_a_plan_searches_them_and_says_what_they_do() -> None:
    arriving = lambda seed: iter(_requests(30.0))  # noqa: E731
    made = make(replace(task(), cost=MIXED, requests=arriving, budget=80))
    searched_ = {effect.name for effect in made.effects} | set(made.unseen)
    assert "decode.stages" in searched_
    flat = Linear(decode=Decode(base=0.01), prefill=PREFILL)
    made = make(replace(task(), cost=flat, requests=arriving))
    assert any("decode.stages: leave them out" in remark for remark in made.remarks)


def test_a_deployment_is_simulated_with_its_stages() -> None:
    sizes = {"kv_tokens": 20_000, "max_running": 16}
    stages = [{"upto": 200, "replicas": 2}, {}]
    own = Candidate.of(document(decode={"stages": stages, **sizes}), Given()).fleet
    assert own.decode.layout == Layout.of([(200, 2), (None, 1)])
    servers = document(decode={"stages": stages, "dp": 2, **sizes})
    fleet = Candidate.of(servers, Given()).fleet
    assert (fleet.decode.replicas, fleet.decode.dp) == (3, 2)
    ranks = document(decode={"stages": [{"upto": 9}, {}], "dp": 2, "replicas": 1, **sizes})
    fleet = Candidate.of(ranks, Given()).fleet
    assert (fleet.decode.replicas, fleet.decode.dp) == (2, 1)
    assert fleet.decode.stages == (StageFleet(upto=9), StageFleet())
    level = document(router={"rebalance": True})
    assert Candidate.of(level, Given()).fleet.router.rebalance
    still = document(decode={"stages": stages, **sizes}, router={"rebalance": False})
    fleet = Candidate.of(still, Given()).fleet
    assert fleet.decode.layout == own.decode.layout and own.rebalance is not None
    assert fleet.rebalance is None, "stages without moves"
