"""Least recently chosen first: the rotation that breaks ties in every load policy.

Breaking ties by position starves the last workers (dynamo#7836: 2 of 5 decodes got nothing).

Several routers that all begin at the same worker meet there again and again. So the seed says where
one begins, and routers over the same workers have seeds of their own (`seed_of`).
"""

from collections.abc import Iterable, Sequence

from toolkit.policies.views import WorkerView

APART = 832_041
"""Between the seeds of two routers. One more than a Fibonacci number, so that their places are the
golden ratio of a turn apart: well spread, however many routers and workers there are."""
_GOLDEN, _BITS = 0x9E3779B97F4A7C15, 64
"""The golden ratio of 2^64 (Knuth's multiplicative hashing)."""


def seed_of(seed: int, number: int) -> int:
    """For the policies of one of several routers over the same workers, by its number from 0."""
    return seed + number * APART


class Rotation:
    """Remembers when each worker was last chosen; unknown workers come first, those from the place
    that `seed` names (0: the first) before the others."""

    def __init__(self, seed: int = 0) -> None:
        self._place = seed * _GOLDEN % (1 << _BITS)
        self._turn = 0
        self._last: dict[tuple[str, int], int] = {}

    def take(self, workers: Sequence[WorkerView], among: Iterable[int]) -> int:
        """The index of the least recently chosen of `among`, which becomes the most recent."""
        count = len(workers)
        start = self._place * count >> _BITS
        index = min(
            among, key=lambda i: self._last.get(workers[i].key, (i - start) % count - count)
        )
        self._turn += 1
        self._last[workers[index].key] = self._turn
        if len(self._last) > 4 * len(workers) + 64:
            self._forget(workers)
        return index

    def _forget(self, workers: Sequence[WorkerView]) -> None:
        present = {worker.key for worker in workers}
        self._last = {key: turn for key, turn in self._last.items() if key in present}
