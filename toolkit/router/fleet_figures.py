"""What is wrong with the workers as a fleet, for GET /workers, GET /readiness and Prometheus: roles
that nobody serves, pairs that no KV gets between, and workers that must not serve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from toolkit.router.collectors import PREFIX
from toolkit.router.places import without_places_in

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from toolkit.decide.pairs import Pairs
    from toolkit.router.known_workers import KnownWorkers
    from toolkit.router.worker import Worker


def pairs(known: Pairs, now: float) -> list[dict[str, Any]]:
    """Those whose last transfers failed. `left_out_s`: for so long still; 0: a request may go that
    way, to show whether KV gets across again, or the pair is not left out."""
    return [
        {
            "prefill": prefill,
            "decode": decode,
            "failures": record.failures,
            "left_out": record.out,
            "left_out_s": round(max(0.0, record.until - now), 1) if record.out else 0.0,
        }
        for (prefill, decode), record in known.known.items()
        if record.failures
    ]


def why_not_ready(known_workers: KnownWorkers) -> str:
    """Which roles nobody serves, and what keeps their workers from it; empty: all are served."""
    return "; ".join(
        f"no {role} worker: "
        + ", ".join(_away(each) for each in known_workers.workers if each.config.role == role)
        for role in known_workers.empty_roles()
    )


def _away(worker: Worker) -> str:
    if worker.healthy:
        why = "it gets no new requests" if all(r.held for r in worker.ranks) else "it makes no step"
    else:
        why = without_places_in(worker.why_down)
    return f"{worker.name} ({why})" if why else worker.name


class FleetCollector(Collector):
    """The same, and how often it cost a request."""

    def __init__(self, known_workers: KnownWorkers) -> None:
        self._known_workers = known_workers

    def collect(self) -> Iterator[Metric]:
        known_workers = self._known_workers
        yield from self._roles()
        refused = GaugeMetricFamily(
            PREFIX + "worker_refused",
            "1 when who answers at its address must not serve here",
            labels=["worker"],
        )
        for worker in known_workers.workers:
            refused.add_metric([worker.name], bool(worker.refused))
        yield refused
        yield from self._pairs(known_workers.decider.choosing.pairs)

    def _roles(self) -> Iterator[Metric]:
        decider = self._known_workers.decider
        empty = GaugeMetricFamily(
            PREFIX + "role_empty", "1 while no worker of the role takes requests", labels=["role"]
        )
        unserved = CounterMetricFamily(
            PREFIX + "unserved", "Requests given up as nobody served a role", labels=["role"]
        )
        for role in decider.ranks.roles:
            empty.add_metric([role], decider.ranks.gone_at(role) is not None)
            unserved.add_metric([role], decider.attempts.unserved[role])
        yield empty
        yield unserved

    @staticmethod
    def _pairs(known: Pairs) -> Iterator[Metric]:
        times = CounterMetricFamily(
            PREFIX + "pair_left_out",
            "Times that a pair was left out, as no KV got across though both were well with others",
            labels=["prefill", "decode"],
        )
        for pair, count in known.left_out.items():
            times.add_metric(list(pair), count)
        out = GaugeMetricFamily(
            PREFIX + "pair_out", "1 while a pair is left out", labels=["prefill", "decode"]
        )
        for pair, record in known.known.items():
            out.add_metric(list(pair), record.out)
        yield times
        yield out
