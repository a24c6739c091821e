"""A distribution in little memory, however many values it has seen."""

import math
from collections import Counter

FINE = math.log(1.005)
"""Values within half a percent of each other share a bucket."""


class Histogram:
    """Mean exactly, percentiles within 0.25 %. Values of 0 and below are one bucket, NaN is left
    out."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._buckets: Counter[int] = Counter()
        self._none = 0

    def add(self, value: float) -> None:
        if value != value:
            return
        self.count += 1
        self.total += value
        if value > 0:
            self._buckets[math.floor(math.log(value) / FINE)] += 1
        else:
            self._none += 1

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan

    def percentile(self, percent: float) -> float:
        """NaN without values."""
        if not self.count:
            return math.nan
        wanted = max(1, math.ceil(self.count * percent / 100)) - self._none
        if wanted <= 0:
            return 0.0
        for bucket in sorted(self._buckets):
            wanted -= self._buckets[bucket]
            if wanted <= 0:
                return math.exp((bucket + 0.5) * FINE)
        raise AssertionError("a count that does not add up")

    def curve(self) -> list[tuple[float, float]]:
        """(value, share at or below it), ascending."""
        done, points = self._none, []
        for bucket in sorted(self._buckets):
            done += self._buckets[bucket]
            points.append((math.exp((bucket + 0.5) * FINE), done / self.count))
        return points
