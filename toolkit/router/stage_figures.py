"""Stages for GET /workers and for Prometheus: ranges now, and whom each stage got."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from toolkit.router.collectors import PREFIX

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from toolkit.decide.moves import MoveDecider
    from toolkit.decide.rebalancing import Rebalancing
    from toolkit.policies.stages.narrowing import StageFilter
    from toolkit.router.known_workers import KnownWorkers
    from toolkit.router.worker import Rank


def of_rank(known_workers: KnownWorkers, rank: Rank) -> dict[str, Any]:
    """The stage of a decode rank and its range in KV tokens; empty where there are no stages."""
    stages = known_workers.decider.choosing.stages
    if stages is None or rank.worker.config.role != "decode":
        return {}
    stage = stages.stages[known_workers.side("decode").index(rank)]
    return {"stage": stage, "range": stages.layout.shown(stage)}


def describe(stages: StageFilter) -> list[dict[str, Any]]:
    """Each stage: its range, its ranks, and requests of its lengths that went to it or elsewhere,
    as no rank of it was usable."""
    counters = stages.counters
    return [
        {
            "range": stages.layout.shown(place),
            "upto": stage.upto,
            "ranks": stage.replicas,
            "own": counters.own[place],
            "widened": counters.widened[place],
        }
        for place, stage in enumerate(stages.layout.stages)
    ]


def of_passes(moves: MoveDecider) -> dict[str, Any]:
    """What passes over all ranks did; empty where none are made."""
    rebalancing = moves.rebalancing
    if rebalancing is None:
        return {}
    shown = {
        "passes": rebalancing.passes,
        "pass_ms": round(moves.pass_s * 1e3, 3),
        "moves": dict(rebalancing.mover.counters.moves),
        "passed": dict(rebalancing.mover.counters.passed),
        "refused": dict(rebalancing.refused),
        "restaged": dict(rebalancing.restaged),
        "price_ms": round(rebalancing.price_s * 1e3, 3),
        "tokens_per_s": round(rebalancing.tokens_per_s),
    }
    return {"rebalance": shown}


class StageCollector(Collector):
    """Bounds of the stages, and decisions by the stage of the request's length."""

    def __init__(self, stages: StageFilter) -> None:
        self._stages = stages

    def collect(self) -> Iterator[Metric]:
        upto = GaugeMetricFamily(
            PREFIX + "stage_upto", "The longest requests of a stage in KV tokens", labels=["stage"]
        )
        decisions = CounterMetricFamily(
            PREFIX + "stage_decisions",
            "Requests by the stage of their length: to a rank of it, or elsewhere as none was up",
            labels=["stage", "result"],
        )
        for place, stage in enumerate(self._stages.layout.stages):
            upto.add_metric([str(place)], float("inf") if stage.upto is None else stage.upto)
            counters = self._stages.counters
            for result, counter in (("own", counters.own), ("widened", counters.widened)):
                decisions.add_metric([str(place), result], counter[place])
        yield upto
        yield decisions


class RebalanceCollector(Collector):
    """Passes, and asks and orders in vain; `toolkit_router_moves` counts what moved."""

    def __init__(self, rebalancing: Rebalancing) -> None:
        self._rebalancing = rebalancing

    def collect(self) -> Iterator[Metric]:
        mover = self._rebalancing.mover
        yield CounterMetricFamily(
            PREFIX + "rebalance_passes",
            "Passes over all decode ranks",
            value=self._rebalancing.passes,
        )
        vain = CounterMetricFamily(
            PREFIX + "rebalance_vain",
            "Requests that asked in vain to be moved (busy, no_room, no_gain), or were ordered to "
            "and did not (kept, ended, lost)",
            labels=["reason"],
        )
        for reason, count in (mover.counters.passed + self._rebalancing.refused).items():
            vain.add_metric([reason], count)
        yield vain
        restaged = CounterMetricFamily(
            PREFIX + "restaged",
            "How often stages were changed: their bounds (refined), or all of them (replanned)",
            labels=["how"],
        )
        for how in ("refined", "replanned"):
            restaged.add_metric([how], self._rebalancing.restaged[how])
        yield restaged
