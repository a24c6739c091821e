"""Metrics that were renamed: the old name stays for one release, beside the new one."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from toolkit.router.collectors import PREFIX

OLD_NAMES = {"rebalance_passes": "rebalance_looks", "kv_samples": "kv_looks"}
"""The old name of each, without the prefix. CHANGELOG.md lists them under "Deprecated"."""


class Registry(CollectorRegistry):
    """A registry that gives renamed metrics under both names."""

    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():
            yield metric
            old = OLD_NAMES.get(metric.name.removeprefix(PREFIX))
            if old is not None:
                yield _under(PREFIX + old, metric)


def _under(old: str, metric: Metric) -> Metric:
    copy = Metric(old, f"Deprecated: use {metric.name}.", metric.type)
    copy.samples = [
        sample._replace(name=old + sample.name.removeprefix(metric.name))
        for sample in metric.samples
    ]
    return copy
