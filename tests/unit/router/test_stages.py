"""Stages in the router: a request goes to the ranks of its length, under every kind of policy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from tests.present import present
from tests.unit.router.house import House, run, turns
from toolkit.decide.requests import RequestState
from toolkit.policies.base import RequestView
from toolkit.router import stage_figures
from toolkit.router.metrics import Metrics
from toolkit.settings.router.config import RouterConfig, why_not

STAGES = [{"upto": 200, "replicas": 2}, {"upto": 600}, {}]
POOLED = ["br0", "level", "composed@filter+level+user", "composed@none", "pooled@shortest_queue"]
SINGLE = ["shortest_queue", "round_robin", "random", "kv_shortest_queue", "unpooled@br0"]


def _staged(policy: str, slots: int = 8) -> House:
    return House(ranks=4, slots=slots, policy=policy, stages=STAGES)


def _choose(house: House, tokens: int) -> int:
    request = RequestState(0, RequestView(prompt_tokens=tokens), "split", True, 0.0, 0.0)
    now = asyncio.get_running_loop().time()
    rank = house.channel.decider.choosing.choose("decode", request, now)
    return [each.key for each in house.ranks].index(present(rank).key)


def _bound(house: House) -> list[int]:
    return [
        [each.key for each in house.ranks].index(waiter.bound.result().rank.key)
        for waiter in house.waiters
    ]


@pytest.mark.parametrize("policy", POOLED)
def test_a_round_binds_everybody_in_the_stage_of_his_length(policy: str) -> None:
    async def check() -> None:
        house = _staged(policy)
        lengths = [50, 300, 1000, 200, 201, 601, 60, 70]
        for tokens in lengths:
            house.enter(tokens)
        await turns()
        stages = [[0, 0, 1, 2][rank] for rank in _bound(house)]
        assert stages == [0, 1, 2, 0, 1, 2, 0, 0]
        assert {0, 1} <= set(_bound(house))

    run(check)


@pytest.mark.parametrize("policy", SINGLE)
def test_so_does_a_policy_that_chooses_one_by_one(policy: str) -> None:
    async def check() -> None:
        house = _staged(policy)
        for tokens, ranks in ((50, {0, 1}), (300, {2}), (1000, {3})):
            assert {_choose(house, tokens) for _ in range(8)} <= ranks

    run(check)


@pytest.mark.parametrize("policy", ["br0", "shortest_queue"])
def test_where_a_stage_is_down_the_nearest_takes_its_lengths(policy: str) -> None:
    async def check() -> None:
        house = _staged(policy)
        house.ranks[2].worker.mark_down()
        if policy == "br0":
            house.enter(300)
            await turns()
            assert _bound(house) == [3]
        else:
            assert _choose(house, 300) == 3
        assert house.channel.decider.choosing.stages is not None
        assert house.channel.decider.choosing.stages.counters.widened == {1: 1}
        shown = stage_figures.describe(house.channel.decider.choosing.stages)
        assert shown[1] == {"range": "201-600", "upto": 600, "ranks": 1, "own": 0, "widened": 1}

    run(check)


def test_a_full_stage_is_waited_for_and_holds_up_no_other() -> None:
    async def check() -> None:
        house = _staged("br0", slots=1)
        for tokens in (300, 300, 50, 1000):
            house.enter(tokens)
        await turns()
        assert [waiter.view.prompt_tokens for waiter in house.waiting()] == [300]
        house.take()
        at = next(i for i, (waiter, _) in enumerate(house.running) if waiter is house.waiters[0])
        house.end(at)
        await turns()
        assert not house.waiting()
        assert house.waiters[1].bound.result().rank is house.ranks[2]

    run(check)


def test_workers_and_metrics_say_which_lengths_each_rank_has() -> None:
    async def check() -> None:
        house = _staged("shortest_queue")
        known_workers = house.known_workers
        shown = [stage_figures.of_rank(known_workers, rank) for rank in house.ranks]
        assert [each["stage"] for each in shown] == [0, 0, 1, 2]
        assert [each["range"] for each in shown] == ["1-200", "1-200", "201-600", "601-"]
        prefill = house.known_workers.side("prefill")[0]
        assert stage_figures.of_rank(known_workers, prefill) == {}
        metrics = Metrics()
        stages = known_workers.decider.choosing.stages
        assert stages is not None
        metrics.export(stage_figures.StageCollector(stages))
        _choose(house, 50)
        text = metrics.text().decode()
        assert 'toolkit_router_stage_upto{stage="0"} 200.0' in text
        assert 'toolkit_router_stage_decisions_total{result="own",stage="0"} 1.0' in text

    run(check)


def _refused(stages: Sequence[dict[str, int]], **other: object) -> str:
    workers = [
        {"name": "p", "role": "prefill", "url": "http://127.0.0.1:1", "bootstrap_port": 1},
        {"name": "d", "role": "decode", "url": "http://127.0.0.1:2", "dp_size": 2},
    ]
    with pytest.raises(ValidationError) as caught:
        RouterConfig.model_validate({"workers": workers, "stages": stages, **other})
    return str(caught.value)


def test_stages_that_do_not_fit_the_ranks_are_refused() -> None:
    assert "stages have 1 replicas in all, but there are 2 decode ranks" in _refused([{}])
    assert "the last stage ends at 5" in _refused([{"upto": 5}])
    assert "dispatch 'late'" in _refused([{"upto": 5}, {}], dispatch="concurrent")
    plain = [{"name": "w", "role": "plain", "url": "http://127.0.0.1:2"}]
    assert "use prefill and decode workers" in _refused([{}], workers=plain)


def test_dispatch_cannot_become_concurrent_under_stages() -> None:
    async def check() -> None:
        config = _staged("shortest_queue").config
        assert "keep dispatch 'late'" in (why_not("shortest_queue", config, "concurrent") or "")
        assert why_not("shortest_queue", config, "late") is None

    run(check)
