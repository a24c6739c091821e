"""Metrics that are read where they are kept, when somebody asks: nothing is paid a request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from toolkit.decide.watchdog import Health
from toolkit.router.known_workers import KnownWorkers

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from toolkit.router.eldr.locality import Locality

PREFIX = "toolkit_router_"
HEALTH = {Health.HEALTHY: 0, Health.SUSPECT: 1, Health.STUCK: 2}

_STEPS = {
    "steps": ("decode_steps", "Decode steps"),
    "seconds": ("decode_step_seconds", "Wall time of decode steps"),
    "requests": ("decode_step_requests", "Sum of batch sizes over decode steps"),
    "new_tokens": ("decode_step_tokens", "Tokens that decode steps gave requests"),
    "kv_tokens": ("decode_step_kv_tokens", "Sum of KV tokens over decode steps"),
    "distinct": (
        "decode_distinct_experts",
        "Sum over decode steps of distinct experts a layer (mean over layers)",
    ),
}


class StepCollector(Collector):
    """What decode ranks say of their steps; only those that say anything."""

    def __init__(self, known_workers: KnownWorkers) -> None:
        self._fleet = known_workers

    def collect(self) -> Iterator[Metric]:
        ranks = [r for worker in self._fleet.workers for r in worker.ranks if r.steps is not None]
        for field, (name, text) in _STEPS.items():
            family = CounterMetricFamily(PREFIX + name, text, labels=["worker", "dp_rank"])
            for rank in ranks:
                value = getattr(rank.steps, field)
                family.add_metric([rank.worker.name, str(rank.dp_rank)], value)
            yield family


class StuckCollector(Collector):
    """How often a rank of each worker was found stuck, and which are now."""

    def __init__(self, known_workers: KnownWorkers) -> None:
        self._fleet = known_workers

    def collect(self) -> Iterator[Metric]:
        times = CounterMetricFamily(
            PREFIX + "worker_stuck",
            "Times that a worker held work and made no step, so that its requests went elsewhere",
            labels=["worker"],
        )
        now = GaugeMetricFamily(
            PREFIX + "rank_stuck",
            "0: it goes on, 1: it gets nothing new as it makes no step, 2: it is stuck",
            labels=["worker", "dp_rank"],
        )
        for worker in self._fleet.workers:
            times.add_metric([worker.name], worker.times_stuck)
            for rank in worker.ranks:
                state = 2 if worker.stuck_since is not None else HEALTH[rank.health]
                now.add_metric([worker.name, str(rank.dp_rank)], state)
        yield times
        yield now


class LocalityCollector(Collector):
    """ELDR's decisions, centroids and refits."""

    def __init__(self, locality: Locality) -> None:
        self._locality = locality

    def collect(self) -> Iterator[Metric]:
        counters = self._locality.counters
        decisions = CounterMetricFamily(
            PREFIX + "eldr_decisions",
            "Decode decisions by signature, or by load and why",
            labels=["result", "reason"],
        )
        decisions.add_metric(["located", ""], counters.located)
        for reason, count in counters.fallbacks.items():
            decisions.add_metric(["fallback", reason], count)
        yield decisions
        yield CounterMetricFamily(
            PREFIX + "eldr_band_workers",
            "Sum of the band's width, in workers with experts of their own, over located decisions",
            value=counters.band,
        )
        yield CounterMetricFamily(
            PREFIX + "eldr_moved",
            "Located decisions for another worker in the band than the nearest centroid's",
            value=counters.moved,
        )
        yield CounterMetricFamily(
            PREFIX + "eldr_crowded",
            "Located decisions whose nearest centroid's worker was full or too crowded",
            value=counters.crowded,
        )
        yield from self._fit()
        yield from self._refits()

    def _fit(self) -> Iterator[Metric]:
        fit, watch = self._locality.assignment.fit, self._locality.drift.watch
        rows = 0 if fit is None else len(fit.centroids.rows)
        yield GaugeMetricFamily(PREFIX + "eldr_centroids", "Centroids now", value=rows)
        serving = self._locality.serving
        yield GaugeMetricFamily(
            PREFIX + "eldr_centroids_version",
            "A number for the centroids that decide now, the same in all routers that have them",
            value=0 if serving is None else int(serving.version, 16),
        )
        yield GaugeMetricFamily(
            PREFIX + "eldr_fits_here",
            "1: this router fits centroids, 0: another one over the same workers does",
            value=not self._locality.following,
        )
        if fit is not None:
            yield GaugeMetricFamily(
                PREFIX + "eldr_expected_cosine",
                "Mean cosine to the nearest centroid that is expected",
                value=watch.expected,
            )
        if watch.fit is not None:
            yield GaugeMetricFamily(
                PREFIX + "eldr_fit_cosine",
                "Mean cosine of the last requests to their nearest centroid",
                value=watch.fit,
            )

    def _refits(self) -> Iterator[Metric]:
        history = self._locality.history
        refits = CounterMetricFamily(
            PREFIX + "eldr_refits",
            "Changes of centroids, and tries that were declined or failed",
            labels=["cause", "result"],
        )
        for labels, count in history.totals.items():
            refits.add_metric(list(labels), count)
        yield refits
        yield SummaryMetricFamily(
            PREFIX + "eldr_refit_seconds",
            "Time of refit processes, those that fit ahead too",
            count_value=history.jobs,
            sum_value=history.seconds,
        )
