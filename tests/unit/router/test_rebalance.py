"""A router over stand-in workers that moves requests by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError

from tests.present import present
from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, expected, idle, post, prompt_of, run, text_of
from tests.unit.router.house import House
from tests.unit.router.house import run as run_house
from toolkit.decide import messages as m
from toolkit.decide.rebalancing import Rebalancing
from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.running import Instance
from toolkit.settings.router.choosing import Choosing
from toolkit.settings.router.config import RouterConfig
from toolkit.settings.router.rebalance import Rebalance

ARGS = ["--resume", "--token-ms", "4"]
QOE = (1e-3, 1e-5, 0, 0, 1e-6)
PATHS = list(bodies(1))
QUICK = {"every_s": 0.05, "reserve": 0}


def _inflight(state: dict[str, Any]) -> list[int]:
    return [row["inflight"] for row in state["workers"] if row["role"] == "decode"]


async def _streams(router: Cluster, count: int, tokens: int) -> list[asyncio.Task[Any]]:
    """Running ones, by turns at all endpoints."""
    made = []
    for at in range(count):
        path = PATHS[at % len(PATHS)]
        made.append(asyncio.ensure_future(post(router, path, bodies(tokens)[path])))
    await router.until(lambda state: sum(_inflight(state)) == count)
    return made


async def _check(tasks: list[asyncio.Task[Any]], tokens: int) -> None:
    for at, (status, raw) in enumerate(await asyncio.gather(*tasks)):
        path = PATHS[at % len(PATHS)]
        assert status == 200
        assert text_of(path, raw) == expected(prompt_of(path), tokens)


async def _hold(router: Cluster, worker: str, on: bool) -> None:
    body = {"worker": worker, **({"deadline_s": 0} if on else {"undo": True})}
    status, raw = await post(router, "/admin/drain", body, admin=True)
    assert status == 200, raw


@pytest.mark.slow
def test_a_heavy_rank_hands_requests_to_a_light_one() -> None:
    async def check() -> None:
        config = {"rebalance": QUICK}
        async with Cluster(worker_args=ARGS, config=config) as router:
            await _hold(router, "decode-1", True)
            tasks = await _streams(router, 6, 500)
            assert _inflight(await router.state()) == [6, 0]
            await _hold(router, "decode-1", False)
            even = await router.until(lambda state: _inflight(state) == [3, 3])
            assert even["rebalance"]["moves"] == {"level": 3}
            await _check(tasks, 500)
            state = await router.until(idle)
            outcomes = state["moves"]["outcomes"]
            assert [(each["why"], each["outcome"]) for each in outcomes] == [("level", "moved")]
            assert outcomes[0]["count"] >= 3  # more where some end before others
            assert state["rebalance"]["tokens_per_s"] > 0

    run(check())


@pytest.mark.slow
def test_a_worker_that_dies_among_moves_loses_nobody() -> None:
    async def check() -> None:
        config = {"rebalance": {**QUICK, "every_s": 0.01}, "decode_policy": "random"}
        async with Cluster(worker_args=ARGS, config=config, decodes=3) as router:
            await _hold(router, "decode-1", True)
            tasks = await _streams(router, 12, 400)
            await _hold(router, "decode-1", False)
            await router.until(lambda state: _inflight(state)[1] >= 1)
            router.worker("decode-1").kill()
            await _check(tasks, 400)
            state = await router.until(idle)
            outcomes = {each["outcome"] for each in state["moves"]["outcomes"]}
            assert "moved" in outcomes and "lost" not in outcomes

    run(check())


def test_a_request_that_outgrows_its_stage_goes_on_in_the_next() -> None:
    async def check() -> None:
        config = {"stages": [{"upto": 150}, {}], "rebalance": QUICK}
        async with Cluster(worker_args=ARGS, config=config) as router:
            tasks = await _streams(router, 3, 400)
            assert _inflight(await router.state()) == [3, 0]
            await router.until(lambda state: _inflight(state) == [0, 3])
            await _check(tasks, 400)
            state = await router.until(idle)
            outcomes = state["moves"]["outcomes"]
            assert [(each["why"], each["outcome"]) for each in outcomes] == [("outgrown", "moved")]
            assert outcomes[0]["count"] == 3
            shown = [(each["range"], each["own"]) for each in state["stages"]]
            # Each move by replay is a decision of its own, for the length that it has by then.
            assert shown[0] == ("1-150", 3) and shown[1][0] == "151-"
            rows = [row for row in state["workers"] if row["role"] == "decode"]
            assert [row["range"] for row in rows] == ["1-150", "151-"]
            async with router.session.get(router.url + "/metrics") as response:
                text = await response.text()
            values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
            passes = values["toolkit_router_rebalance_passes_total"]
            for how in ("refined", "replanned"):
                assert values[f'toolkit_router_restaged_total{{how="{how}"}}'] == "0.0"
            assert values["toolkit_router_rebalance_looks_total"] == passes

    run(check())


def test_stages_without_moves_keep_requests_where_they_began() -> None:
    async def check() -> None:
        config = {"stages": [{"upto": 150}, {}], "rebalance": {"on": False}}
        async with Cluster(worker_args=ARGS, config=config) as router:
            tasks = await _streams(router, 2, 300)
            await _check(tasks, 300)
            state = await router.until(idle)
            assert "rebalance" not in state and state["moves"]["outcomes"] == []

    run(check())


def _rebalancing(**config: Any) -> tuple[House, Rebalancing]:
    house = House(ranks=2, policy="shortest_queue", **config)
    return house, present(house.channel.decider.moves.rebalancing)


def _instances(rebalancing: Rebalancing, later_s: float = 0.0) -> list[Instance]:
    now = asyncio.get_running_loop().time() + later_s
    return rebalancing.instances({}, {}, {}, now)


def test_ranks_that_are_down_silent_or_held_get_none() -> None:
    async def check() -> None:
        house, rebalancing = _rebalancing(rebalance={})
        first, second = house.ranks
        assert [each.held for each in _instances(rebalancing, 100.0)] == [True, True]

        def held() -> list[bool]:
            for rank in house.ranks:
                house.publish(rank)
            return [each.held for each in _instances(rebalancing)]

        assert held() == [False, False]
        first.held = True
        second.worker.mark_down()
        assert held() == [True, True]
        second.worker.mark_up()
        house.publish(second, used_tokens=5)  # of 0 that requests will use: impossible
        assert _instances(rebalancing)[1].held

    run_house(check)


def test_what_is_free_is_what_the_rank_would_take_and_spare_what_it_has_left() -> None:
    async def check() -> None:
        house, rebalancing = _rebalancing(rebalance={}, reserve=100)
        house.publish(house.ranks[0], used_tokens=4000, total_tokens=4000, running=1)
        one = _instances(rebalancing)[0]
        assert (one.free_tokens, one.spare_tokens) == (10_000 - 4000 - 2 * 100, 6000)
        assert one.slots_free == 1

    run_house(check)


def test_bounds_are_refined_and_policies_see_them() -> None:
    async def check() -> None:
        house, rebalancing = _rebalancing(
            stages=[{"upto": 100}, {}],
            rebalance={"refine_s": 1.0, "qoe": [1e-3, 1e-5, 0, 0, 1e-6], "refine_weight": 1.0},
        )
        stages, refiner = house.channel.decider.choosing.stages, present(rebalancing.refiner)
        assert stages is not None and rebalancing.refine({}, 10.0) is None
        assert rebalancing.refine({}, 11.5) is None and stages.layout.bounds == (100,)
        refiner.refine = lambda batches: Layout.of([(70, 1), (None, 1)])  # type: ignore[method-assign]
        assert rebalancing.refine({}, 12.0) is None, "it is not time yet"
        assert present(rebalancing.refine({}, 12.6)).bounds == (70,)
        assert rebalancing.mover.layout is stages.layout

    run_house(check)


def test_stages_are_planned_beside_the_loop_and_taken() -> None:
    async def check() -> None:
        house, rebalancing = _rebalancing(
            stages=[{"upto": 100}, {}],
            rebalance={"replan_s": 5.0, "qoe": [1e-3, 1e-5, 0, 0, 1e-6], "mixed": 1e-5},
        )
        stages, planner = house.channel.decider.choosing.stages, present(rebalancing.replanner)
        assert stages is not None
        live = tuple((1, length) for length in (*range(300, 500, 8), *range(4000, 8000, 160)))
        order = m.PlanStages(planner, live, stages.layout, 0.0)
        house.control.planning.note(order)
        while house.control.planning.tasks:
            await asyncio.sleep(0.01)
        assert stages.layout.ranks == 2 and rebalancing.mover.layout is stages.layout

        def fails(*_: object) -> None:
            raise RuntimeError

        planner.plan = fails  # type: ignore[method-assign, assignment]
        before = stages.layout
        house.control.planning.note(order)
        (task,) = house.control.planning.tasks
        await task
        assert stages.layout is before

    run_house(check)


@pytest.mark.parametrize(
    ("given", "refined", "replanned"),
    [
        ({}, 0.0, 0.0),
        ({"mixed": 1e-5}, 0.0, 0.0),
        ({"qoe": QOE}, 0.0, 0.0),
        ({"qoe": QOE, "mixed": 1e-5}, 2.0, 5.0),
        ({"qoe": QOE, "mixed": 1e-5, "refine_s": 0}, 0.0, 5.0),
        ({"qoe": QOE, "mixed": 1e-5, "replan_s": 0}, 2.0, 0.0),
        ({"qoe": QOE, "refine_s": 1, "replan_s": 7}, 1.0, 7.0),
    ],
)
def test_stages_follow_where_it_is_known_what_mixed_lengths_cost(
    given: dict[str, Any], refined: float, replanned: float
) -> None:
    bounds = Rebalance.model_validate(given).bounds
    assert (bounds.refine_s, bounds.replan_s) == (refined, replanned)


def test_what_rebalance_takes_and_refuses() -> None:
    short = Choosing.model_validate({"rebalance": False}).rebalance
    assert short is not None and short.on is False
    assert Choosing.model_validate({"rebalance": True}).rebalance == Rebalance()
    with pytest.raises(ValidationError, match=r"D_1 is -1, below zero"):
        Rebalance(qoe=(1, -1, 0, 0, 0))
    workers = [
        {"name": "p", "role": "prefill", "url": "http://127.0.0.1:1", "bootstrap_port": 1},
        {"name": "d", "role": "decode", "url": "http://127.0.0.1:2"},
    ]
    made = {"workers": workers}
    assert RouterConfig.model_validate(made).rebalancing is None
    assert RouterConfig.model_validate({**made, "stages": [{}]}).rebalancing == Rebalance()
    off = {**made, "stages": [{}], "rebalance": {"on": False}}
    assert RouterConfig.model_validate(off).rebalancing is None
    with pytest.raises(ValidationError, match="refine_s finds bounds by `qoe`"):
        RouterConfig.model_validate({**made, "rebalance": {"refine_s": 5}})
    plain = [{"name": "w", "role": "plain", "url": "http://127.0.0.1:2"}]
    with pytest.raises(ValidationError, match="plain ones do both"):
        RouterConfig.model_validate({"workers": plain, "rebalance": {}})
