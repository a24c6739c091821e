"""Least recently chosen first: the rotation that breaks ties in every load policy.

Breaking ties by position starves the last workers (dynamo#7836: 2 of 5 decodes got nothing).
"""

from collections.abc import Iterable, Sequence

from toolkit.policies.views import WorkerView


class Rotation:
    """Remembers when each worker was last chosen; unknown workers come first."""

    def __init__(self) -> None:
        self._turn = 0
        self._last: dict[tuple[str, int], int] = {}

    def take(self, workers: Sequence[WorkerView], among: Iterable[int]) -> int:
        """The index of the least recently chosen of `among`, which becomes the most recent."""
        index = min(among, key=lambda i: (self._last.get(workers[i].key, 0), i))
        self._turn += 1
        self._last[workers[index].key] = self._turn
        if len(self._last) > 4 * len(workers) + 64:
            self._forget(workers)
        return index

    def _forget(self, workers: Sequence[WorkerView]) -> None:
        present = {worker.key for worker in workers}
        self._last = {key: turn for key, turn in self._last.items() if key in present}
