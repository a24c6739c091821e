"""The pool of one round: finished prefills by arrival and by size."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence


class Unassigned:
    """Who still waits, as indices in order of arrival; `sizes` are KV tokens.

    By size it is sorted on first use only: a round with few free slots never asks.
    """

    def __init__(self, sizes: Sequence[float]) -> None:
        self.sizes = sizes
        self.pending = list(range(len(sizes)))
        self.largest = max(sizes, default=0.0)
        self._sorted: list[tuple[float, int]] | None = None

    def first(self, count: int, room: float) -> list[int]:
        """The earliest `count` that fit in `room`."""
        if room >= self.largest:
            return self.pending[:count]
        if not self.pending or self._by_size()[0][0] > room:
            return []
        fits = (i for i in self.pending if self.sizes[i] <= room)
        return [i for i, _ in zip(fits, range(count), strict=False)]

    def around(self, size: float, room: float) -> list[int]:
        """Who fits in `room`, nearest to `size` on either side: the largest not above it and the
        smallest above it, of equal ones the earliest. A concave score is best on one of them."""
        by_size = self._by_size()
        at = bisect_right(by_size, (min(size, room), math.inf))
        found = []
        if at:
            found.append(by_size[bisect_left(by_size, (by_size[at - 1][0], -1))][1])
        if at < len(by_size) and by_size[at][0] <= room:
            found.append(by_size[at][1])
        return sorted(found)

    def take(self, request: int) -> None:
        """It waits no longer."""
        del self.pending[bisect_left(self.pending, request)]
        if self._sorted is not None:
            del self._sorted[bisect_left(self._sorted, (self.sizes[request], request))]

    def _by_size(self) -> list[tuple[float, int]]:
        if self._sorted is None:
            self._sorted = sorted((self.sizes[i], i) for i in self.pending)
        return self._sorted
