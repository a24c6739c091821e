"""The longest request of each rank's batch, for kernels that wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from toolkit.simulate.rank import SimulatedRank
from toolkit.simulate.request import Request

if TYPE_CHECKING:
    import numpy as np

SLACK = 64
"""Entries of requests that have left are thrown out when there are so many and as many as of those
that run."""


class Longest:
    """All requests of a batch grow by `pace` tokens a step, so who is the longest changes only with
    who comes and goes. One that comes costs O(log n); one that has left is forgotten when it would
    be the longest."""

    def __init__(self, ranks: Sequence[SimulatedRank], pace: float = 1) -> None:
        self._ranks = list(ranks)
        self._pace = pace
        self._heaps: list[list[tuple[float, int, Request]]] = [[] for _ in ranks]

    def add(self, rank: SimulatedRank, request: Request) -> None:
        """It has come into the rank's batch."""
        heap = self._heaps[rank.place]
        heappush(heap, (-self._length(rank, request), request.number, request))
        if len(heap) > 2 * len(rank.running) + SLACK:
            heap[:] = [entry for entry in heap if self._stands(rank, entry)]
            heapify(heap)

    def now(self, steps: int) -> np.ndarray:
        """KV tokens of each rank's longest request [G] when its group has done so many steps; 0
        for an empty batch."""
        import numpy as np

        found = np.zeros(len(self._ranks), dtype=np.float64)
        for place, rank in enumerate(self._ranks):
            heap = self._heaps[place]
            while heap and not self._stands(rank, heap[0]):
                heappop(heap)
            if heap:
                found[place] = -heap[0][0] + (steps - rank.skipped) * self._pace
        return found

    def _stands(self, rank: SimulatedRank, entry: tuple[float, int, Request]) -> bool:
        length, _, request = entry
        return request in rank.running and self._length(rank, request) == -length

    def _length(self, rank: SimulatedRank, request: Request) -> float:
        """KV tokens, but for the steps that its rank has taken since the start."""
        before = (request.joined - rank.skipped) * self._pace
        return request.prompt + request.generated - 1 - before
