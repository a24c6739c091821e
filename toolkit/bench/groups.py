"""The metrics of a run by what its requests are: turns of conversations, classes, domains."""

from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Any

from toolkit.bench.client import Sample
from toolkit.bench.metrics import Slo, summarise
from toolkit.bench.workload import Item, Workload

MOST = 12
"""Turns told one by one; what comes later is told together."""
NAMES = {"class": "kind", "domain": "domain", "language": "language"}
CLASS_ALONE = ("class",)
FIRST, LATER = "first_turn_ttft", "later_turn_ttft"
TURN_SERIES = (FIRST, LATER)


def by_turn(
    workload: Workload, samples: Sequence[Sample], duration_s: float, slo: Slo | None = None
) -> list[dict[str, Any]] | None:
    """`summarise` of every turn, from 1 on, with `turn` its number; None without conversations.
    Needs every sample, in the workload's order."""
    if not has_turns(workload):
        return None
    found = _split(workload, samples, lambda item: min(item.turn + 1, MOST))
    return [
        {"turn": turn, "and_later": turn == MOST} | summarise(own, duration_s, slo)
        for turn, own in sorted(found.items())
    ]


def turn_metrics(workload: Workload, samples: Sequence[Sample]) -> dict[str, float]:
    """TTFT of first and of later turns, flat as `summarise` names latencies; empty without
    conversations of several turns."""
    import numpy as np

    found: dict[str, float] = {}
    if not has_turns(workload):
        return found
    for late, name in enumerate(TURN_SERIES):
        times = [
            sample.ttft * 1000
            for item, sample in zip(workload, samples, strict=True)
            if sample.success and (item.turn > 0) == bool(late)
        ]
        if times:
            found[f"mean_{name}_ms"] = float(np.mean(times))
            found[f"median_{name}_ms"] = float(np.median(times))
            for percent in (90, 99):
                found[f"p{percent}_{name}_ms"] = float(np.percentile(times, percent))
    return found


def by_name(
    workload: Workload,
    samples: Sequence[Sample],
    duration_s: float,
    slo: Slo | None = None,
    names: Collection[str] = tuple(NAMES),
) -> dict[str, dict[str, dict[str, Any]]]:
    """{"class": {"batch": metrics}, "domain": ..., "language": ...} of those `names` that tell some
    of the requests from others; a request without one is in "". Rates are over the whole run.

    Metrics are all those of `summarise`, and `slo_attainment`: the share of the group's requests
    within the SLO, the failed ones counted; None without an SLO.
    """
    found = {}
    for name in names:
        own = _split(workload, samples, attrgetter(NAMES[name]))
        if len(own) > 1:
            found[name] = {
                key: _figures(some, duration_s, slo) for key, some in sorted(own.items())
            }
    return found


def by_class(
    workload: Workload, samples: Sequence[Sample], duration_s: float, slo: Slo | None = None
) -> dict[str, dict[str, Any]]:
    """The classes of `by_name`, also where there is one only (a round may lack the other); empty
    where no request has one."""
    own = _split(workload, samples, attrgetter(NAMES["class"]))
    if not any(own):
        return {}
    return {key: _figures(some, duration_s, slo) for key, some in sorted(own.items())}


def _figures(samples: Sequence[Sample], duration_s: float, slo: Slo | None) -> dict[str, Any]:
    metrics = summarise(samples, duration_s, slo)
    return metrics | {"slo_attainment": metrics["goodput_fraction"]}


def has_turns(workload: Workload) -> bool:
    return any(item.turn for item in workload)


def _split(
    workload: Workload, samples: Sequence[Sample], key: Callable[[Item], Any]
) -> dict[Any, list[Sample]]:
    found: dict[Any, list[Sample]] = {}
    for item, sample in zip(workload, samples, strict=True):
        found.setdefault(key(item), []).append(sample)
    return found
