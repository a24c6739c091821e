"""What the requests in flight on each worker use: the sum of their signatures.

A worker is what has experts of its own: ranks that share them are one (`toolkit.policies.views`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit import exact
from toolkit.policies.views import Group

if TYPE_CHECKING:
    import numpy as np


class InflightSignatures:
    """Signatures that were added and not yet removed, summed for each worker. State of a policy;
    whoever sends the requests keeps it. One addition or removal costs O(D), a look O(workers * D).
    """

    def __init__(self, dimensions: int) -> None:
        import numpy as np

        # Whole numbers (`exact`): a long-lived sum of additions and removals comes back to where it
        # was, and cosines are the same on every CPU.
        self.dimensions = dimensions
        self._sums = np.zeros((0, dimensions), dtype=np.float64)
        self._rows = np.zeros((0, dimensions), dtype=np.float64)
        self._counts: list[int] = []
        self._index: dict[Group, int] = {}

    def count(self, group: Group) -> int:
        """Requests on the worker."""
        return self._counts[self._index[group]] if group in self._index else 0

    def add(self, group: Group, signature: np.ndarray) -> None:
        """A request with this unit signature [D] was sent to the worker."""
        self._move(self._row(group), signature, 1)

    def remove(self, group: Group, signature: np.ndarray) -> None:
        """It has ended. ValueError: more have ended than were sent."""
        if self.count(group) < 1:
            raise ValueError(f"no request is on {group}")
        self._move(self._row(group), signature, -1)

    def cosines(self, signature: np.ndarray) -> dict[Group, float]:
        """Of a unit signature [D] with the mean of each worker that has requests."""
        if not self._index:
            return {}
        found = exact.of_whole(exact.whole(signature), self._rows).tolist()
        counts = self._counts
        return {group: found[row] for group, row in self._index.items() if counts[row]}

    def _row(self, group: Group) -> int:
        import numpy as np

        if group not in self._index:
            self._index[group] = len(self._counts)
            self._counts.append(0)
            self._sums = np.pad(self._sums, ((0, 1), (0, 0)))
            self._rows = np.pad(self._rows, ((0, 1), (0, 0)))
        return self._index[group]

    def _move(self, row: int, signature: np.ndarray, sign: int) -> None:
        self._counts[row] += sign
        total = self._sums[row]
        total += sign * exact.whole(signature)
        length = float((total * total).sum() ** 0.5)
        self._rows[row] = exact.whole(total / length) if length > 0 else 0.0
