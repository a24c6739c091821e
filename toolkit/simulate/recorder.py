"""What a simulation is asked for: latencies, throughput, how level decode ranks were."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from toolkit.contract.request_class import RequestClass
from toolkit.simulate.histogram import Histogram
from toolkit.simulate.request import Request

if TYPE_CHECKING:
    from toolkit.simulate.loop import Loop

POINTS = 1024
"""Of a series that are kept at most: when there are more, every second one goes."""
SHOWN = (50, 90, 99)
LATENCIES = ("ttft", "tpot", "e2e", "waited")
URGENT, EFFORT = RequestClass.LATENCY_SENSITIVE.value, RequestClass.BEST_EFFORT.value
CLASSES = (URGENT, EFFORT)
"""Those that have figures of their own, as `CLASS.FIGURE`."""


class LatencyLimits(NamedTuple):
    """What a good request keeps, in seconds; `urgent_ttft`: latency-sensitive ones, too."""

    ttft: float = math.inf
    tpot: float = math.inf
    urgent_ttft: float = math.inf

    def kept(self, request: Request) -> bool:
        """An answer of one token has no TPOT."""
        most = min(self.ttft, self.urgent_ttft) if request.urgent else self.ttft
        return request.ttft <= most and not request.tpot > self.tpot


@dataclass
class Latencies:
    """Of one class of requests, in seconds; a token's time is after the first one."""

    ttft: Histogram = field(default_factory=Histogram)
    tpot: Histogram = field(default_factory=Histogram)
    e2e: Histogram = field(default_factory=Histogram)
    waited: Histogram = field(default_factory=Histogram)
    """From the end of the prefill to the choice of a decode rank."""
    requests: int = 0
    good: int = 0
    """Within the objectives."""

    def figures(self) -> dict[str, float]:
        """Means and percentiles, `ttft_mean` and so on."""
        found = {}
        for name in LATENCIES:
            histogram: Histogram = getattr(self, name)
            found[f"{name}_mean"] = histogram.mean
            found |= {f"{name}_p{p}": histogram.percentile(p) for p in SHOWN}
        return found


@dataclass
class Series:
    """KV tokens of every rank over time, thinned as it grows."""

    times: list[float] = field(default_factory=list)
    values: list[list[int]] = field(default_factory=list)
    _skip: int = 1
    _seen: int = 0

    def add(self, now: float, values: list[int]) -> None:
        self._seen += 1
        if self._seen % self._skip:
            return
        self.times.append(now)
        self.values.append(values)
        if len(self.times) >= POINTS:
            del self.times[::2], self.values[::2]
            self._skip *= 2


class Recorder:
    """Collects while the simulation runs; memory does not grow with the number of requests.

    Counted are requests that arrive between `since` and `until`, and samples of the ranks then.
    `full`: of a closed loop, from the first answer's end to the last request's start; filling and
    running dry have batches that no policy is about. `slo`: as `LatencyLimits` has them, for
    goodput.
    """

    def __init__(
        self,
        groups: Sequence[Loop],
        since: float = 0.0,
        until: float = math.inf,
        slo: tuple[float, ...] = LatencyLimits(),
        full: bool = False,
    ) -> None:
        self.groups = list(groups)
        self.ranks = sum(len(group.ranks) for group in groups)
        self.full = full
        self.since, self.until = since, until
        self.slo = LatencyLimits(*slo)
        self.all = Latencies()
        self.classes: dict[str, Latencies] = {}
        self.series = Series()
        self.output_tokens = 0
        """Of answers that ended between `since` and `until`."""
        self.ended = 0
        self.retracted = 0
        self.samples = 0
        self.spread = 0.0
        self.waiting = 0.0
        self.fullest = 0.0
        self.mean = 0.0
        self.last = 0.0

    def end(self, request: Request, now: float) -> None:
        """The request is through."""
        if self.full and not self.ended:
            self.since = now
        self.ended += 1
        self.last = now
        self.retracted += request.retracted
        if self.since <= now <= self.until:
            self.output_tokens += request.output
        if not self.since <= request.arrived <= self.until:
            return
        kinds = [self.all]
        if request.label:
            kinds.append(self.classes.setdefault(request.label, Latencies()))
        if request.request_class is not RequestClass.STANDARD:
            kinds.append(self.classes.setdefault(request.request_class.value, Latencies()))
        ttft, tpot = request.ttft, request.tpot
        good = self.slo.kept(request)
        for kind in kinds:
            kind.requests += 1
            kind.good += good
            kind.ttft.add(ttft)
            kind.tpot.add(tpot)
            kind.e2e.add(request.ended - request.arrived)
            kind.waited.add(max(0.0, request.bound - request.prefilled))

    def dry(self, now: float) -> None:
        """The last request has been sent."""
        if self.full:
            self.until = now

    def sample(self, now: float) -> None:
        """Look at every rank's batch."""
        first, *others = self.groups
        values = first.kv_now()  # a list that is not changed
        if others:
            values = [*values, *(kv for group in others for kv in group.kv_now())]
        self.series.add(now, values)
        most = max(values)
        if not self.since <= now <= self.until or not most:
            return
        mean = sum(values) / len(values)
        self.samples += 1
        self.spread += most - min(values)
        self.fullest += most
        self.mean += mean
        self.waiting += 1 - mean / most

    def result(self) -> dict[str, Any]:
        """All figures by name: seconds, tokens, shares. Those of a class, where it has requests,
        as `best_effort.ttft_mean`."""
        until = min(self.until, self.last)
        seconds = max(until - self.since, 1e-9)
        samples = max(self.samples, 1)
        busy = sum(group.busy_s for group in self.groups for _ in group.ranks)
        found: dict[str, Any] = {
            "requests": self.all.requests,
            "seconds": seconds,
            "output_tokens_s": self.output_tokens / seconds,
            "goodput_s": self.all.good / seconds,
            "good_share": self.all.good / max(self.all.requests, 1),
            "kv_spread": self.spread / samples,
            "kv_max": self.fullest / samples,
            "kv_mean": self.mean / samples,
            "barrier_share": self.waiting / samples,
            "decode_busy": busy / self.ranks / max(self.last, 1e-9),
            "retractions": self.retracted,
        }
        found |= self.all.figures()
        for name in CLASSES:
            if name in self.classes:
                found |= self._of_class(name, seconds)
        return found

    def _of_class(self, name: str, seconds: float) -> dict[str, Any]:
        kind = self.classes[name]
        shares = {
            "requests": kind.requests,
            "goodput_s": kind.good / seconds,
            "good_share": kind.good / kind.requests,
        }
        return {f"{name}.{key}": value for key, value in (shares | kind.figures()).items()}
