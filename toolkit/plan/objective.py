"""What is better: more requests within the objectives, then answers that are there sooner."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.plan.errors import PlanError

Figures = Sequence[dict[str, Any]]
"""`Recorder.result()` of each seed."""
STEP = 0.002
"""Shares of good requests that differ by less are alike: some few requests."""
WORTH = 0.005
"""A setting is changed for a gain of this share in latency, not for less."""


@dataclass(frozen=True)
class Slo:
    """Limits in seconds, infinite where nothing is asked; `attainment`: the share of requests that
    must meet both. PlanError: a limit that is not above 0, a share outside (0, 1]."""

    ttft: float = math.inf
    tpot: float = math.inf
    attainment: float = 0.9

    def __post_init__(self) -> None:
        for name, value in (("--slo-ttft-ms", self.ttft), ("--slo-tpot-ms", self.tpot)):
            if not value > 0:
                raise PlanError(f"{name} must be above 0, not {value * 1e3:g}")
        if not 0 < self.attainment <= 1:
            raise PlanError(f"--attainment must lie in (0, 1], not {self.attainment:g}")

    @property
    def given(self) -> bool:
        return math.isfinite(self.ttft) or math.isfinite(self.tpot)

    @property
    def limits(self) -> tuple[float, float]:
        return self.ttft, self.tpot

    def __str__(self) -> str:
        named = (("TTFT", self.ttft), ("TPOT", self.tpot))
        found = [f"{name} <= {x * 1e3:g} ms" for name, x in named if math.isfinite(x)]
        return " and ".join(found) or "no limit"

    def met(self, figures: Figures) -> bool:
        """Whether in the mean of the seeds enough requests are good."""
        return share(figures) >= self.attainment


def share(figures: Figures) -> float:
    """Of good requests, in the mean of the seeds."""
    return statistics.fmean(each["good_share"] for each in figures)


def rank(figures: Figures, slo: Slo) -> tuple[int, float]:
    """Less is better: with objectives first the share of good requests (all candidates get the
    same requests, so this is goodput), then the mean time from a request to its last token, which
    weighs TTFT and TPOT as the traffic's answers do. Without objectives the time alone."""
    good = round(share(figures) / STEP) if slo.given else 0
    return -good, statistics.fmean(each["e2e_mean"] for each in figures)


def better(ours: tuple[int, float], other: tuple[int, float]) -> bool:
    """Whether a change is worth making."""
    return ours[0] < other[0] or (ours[0] == other[0] and ours[1] < other[1] * (1 - WORTH))
