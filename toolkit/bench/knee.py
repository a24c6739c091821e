"""The search for the knee: the largest request rate at which enough requests keep to the SLO.

Rates double from `low` on until one does not hold, or `high` does; then the bracket that holds the
knee is halved (by its logarithm) until its ends differ by less than `within`. Where attainment
falls with the rate, the knee is in the bracket at every moment.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class KneeSearch:
    """Ask `next` for a rate, `tell` whether it held; over when `next` is None.

    Requests/s; `within` is a share of the rate. ValueError: bounds or a share that are none.
    """

    low: float
    high: float
    within: float = 0.1
    held: float | None = None
    """The largest rate that held."""
    failed: float | None = None
    """The smallest that did not."""

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < math.inf:
            raise ValueError(f"a sweep goes up from a rate above 0, not {self.low} to {self.high}")
        if not 0 < self.within <= 1:
            raise ValueError(f"a knee is told to a share above 0, at most 1, not {self.within}")

    def next(self) -> float | None:
        """The next rate, strictly inside the bracket; None when the knee is known well enough."""
        if self.held is None:
            return self.low if self.failed is None else None
        if self.failed is None:
            return min(2 * self.held, self.high) if self.held < self.high else None
        if self.failed <= self.held * (1 + self.within):
            return None
        middle = math.sqrt(self.held * self.failed)
        short = float(f"{middle:.3g}")
        return short if self.held < short < self.failed else middle

    def tell(self, rate: float, holds: bool) -> None:
        """What came of the rate that `next` asked for."""
        if holds:
            self.held = rate if self.held is None else max(self.held, rate)
        else:
            self.failed = rate if self.failed is None else min(self.failed, rate)

    @property
    def bracket(self) -> tuple[float, float]:
        """The knee is at least the first and below the second: 0 where nothing held, infinity
        where all did."""
        return self.held or 0.0, math.inf if self.failed is None else self.failed


def crossing(rates: Sequence[float], shares: Sequence[float], wanted: float) -> float | None:
    """The rate at which one run's `shares` fall below `wanted`, on a straight line between the
    first rate where they do and the one before; None where no rate or the very first does."""
    before: tuple[float, float] | None = None
    for rate, share in sorted(zip(rates, shares, strict=True)):
        if share >= wanted:
            before = (rate, share)
            continue
        if before is None:
            return None
        return before[0] + (rate - before[0]) * (before[1] - wanted) / (before[1] - share)
    return None
