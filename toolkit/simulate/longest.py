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
    """All requests of a batch grow by one token a step, so who is the longest changes only with who
    comes and goes. One that comes costs O(log n); one that has left is forgotten when it would be
    the longest."""

    def __init__(self, ranks: Sequence[SimulatedRank]) -> None:
        self._ranks = list(ranks)
        self._heaps: list[list[tuple[int, int, Request]]] = [[] for _ in ranks]

    def add(self, rank: SimulatedRank, request: Request) -> None:
        """It has come into the rank's batch."""
        heap = self._heaps[rank.place]
        heappush(heap, (-_length(rank, request), request.number, request))
        if len(heap) > 2 * len(rank.running) + SLACK:
            heap[:] = [entry for entry in heap if self._stands(rank, entry)]
            heapify(heap)

    def now(self, steps: int) -> np.ndarray:
        """KV tokens of each rank's longest request [G] when its group has done so many steps; 0
        for an empty batch."""
        import numpy as np

        found = np.zeros(len(self._ranks), dtype=np.int64)
        for place, rank in enumerate(self._ranks):
            heap = self._heaps[place]
            while heap and not self._stands(rank, heap[0]):
                heappop(heap)
            if heap:
                found[place] = -heap[0][0] + steps - rank.skipped
        return found

    @staticmethod
    def _stands(rank: SimulatedRank, entry: tuple[int, int, Request]) -> bool:
        length, _, request = entry
        return request in rank.running and _length(rank, request) == -length


def _length(rank: SimulatedRank, request: Request) -> int:
    """KV tokens, but for the steps that its rank has taken since the start."""
    return request.prompt + request.generated - 1 - request.joined + rank.skipped
