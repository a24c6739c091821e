"""What is better: more requests within the objectives, then answers that are there sooner."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.plan.errors import PlanError
from toolkit.simulate.recorder import URGENT, LatencyLimits

Figures = Sequence[dict[str, Any]]
"""`Recorder.result()` of each seed."""
STEP = 0.002
"""Shares of good requests that differ by less are alike: some few requests."""
WORTH = 0.005
"""A setting is changed for a gain of this share in latency, not for less."""


@dataclass(frozen=True)
class PlanSlo:
    """Limits in seconds, infinite where nothing is asked; `urgent_ttft`: of latency-sensitive
    requests alone; `attainment`: the share of requests that must keep them, and where there is an
    `urgent_ttft` also of latency-sensitive ones. PlanError: a limit that is not above 0, a share
    outside (0, 1]."""

    ttft: float = math.inf
    tpot: float = math.inf
    attainment: float = 0.9
    urgent_ttft: float = math.inf

    def __post_init__(self) -> None:
        for name, value in (
            ("--slo-ttft-ms", self.ttft),
            ("--slo-tpot-ms", self.tpot),
            ("--slo-ls-ttft-ms", self.urgent_ttft),
        ):
            if not value > 0:
                raise PlanError(f"{name} must be above 0, not {value * 1e3:g}")
        if not 0 < self.attainment <= 1:
            raise PlanError(f"--attainment must lie in (0, 1], not {self.attainment:g}")

    @property
    def given(self) -> bool:
        return any(map(math.isfinite, self.limits))

    @property
    def by_class(self) -> bool:
        """Whether latency-sensitive requests have a limit of their own."""
        return math.isfinite(self.urgent_ttft)

    @property
    def limits(self) -> LatencyLimits:
        return LatencyLimits(self.ttft, self.tpot, self.urgent_ttft)

    @property
    def goodput(self) -> str:
        """The figure that says how many good requests there are: of latency-sensitive ones, where
        others are always good."""
        alone = self.by_class and not math.isfinite(min(self.ttft, self.tpot))
        return f"{URGENT}.goodput_s" if alone else "goodput_s"

    def __str__(self) -> str:
        named = (
            ("TTFT", self.ttft),
            ("TPOT", self.tpot),
            ("TTFT of latency-sensitive requests", self.urgent_ttft),
        )
        found = [f"{name} <= {x * 1e3:g} ms" for name, x in named if math.isfinite(x)]
        return " and ".join(found) or "no limit"

    def met(self, figures: Figures) -> bool:
        """Whether in the mean of the seeds enough requests are good."""
        return share(figures, self) >= self.attainment


def share(figures: Figures, slo: PlanSlo) -> float:
    """Of good requests, in the mean of the seeds; where latency-sensitive ones have a limit of
    their own, of all or of them, whichever is less. A few first requests may have none of them."""
    whole = statistics.fmean(each["good_share"] for each in figures)
    if not slo.by_class:
        return whole
    theirs = statistics.fmean(each.get(f"{URGENT}.good_share", 1.0) for each in figures)
    return min(whole, theirs)


def rank(figures: Figures, slo: PlanSlo) -> tuple[int, float]:
    """Less is better: with objectives first the share of good requests (all candidates get the
    same requests, so this is goodput), then the mean time from a request to its last token, which
    weighs TTFT and TPOT as the traffic's answers do. Without objectives the time alone."""
    good = round(share(figures, slo) / STEP) if slo.given else 0
    return -good, statistics.fmean(each["e2e_mean"] for each in figures)


def better(ours: tuple[int, float], other: tuple[int, float]) -> bool:
    """Whether a change is worth making."""
    return ours[0] < other[0] or (ours[0] == other[0] and ours[1] < other[1] * (1 - WORTH))
