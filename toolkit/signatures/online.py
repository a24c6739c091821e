"""Centroids fitted anew by the clock, on the requests of the last seconds, as ELDR's program does.

The paper fits once. Its authors' program (casys-kaist/ELDR, `eldr/serving/centroid_update.py`) goes
on fitting while it serves; what that does is here, without its thread and its clock.
"""

from collections import deque

import numpy as np

from toolkit import exact
from toolkit.signatures.assignment import Doubles, balanced_assignment
from toolkit.signatures.calibration import Floats
from toolkit.signatures.clusters import cluster_means, distances
from toolkit.signatures.matching import best_rows

ITERATIONS = 50


class RefitWindow:
    """The signatures of the last `window_s` seconds, and when a refit on them is due.

    Always asked with the time, in seconds of whatever clock. Due is a refit when `window_s` have
    passed since the first signature, `every_s` since the last one began, and the window holds at
    least as many signatures as there are centroids: so the program has it, which otherwise leaves
    the refit out. Zero signatures are not kept. ValueError: times that are not above 0.
    """

    def __init__(self, every_s: float, window_s: float) -> None:
        if not (0 < every_s < np.inf and 0 < window_s < np.inf):
            raise ValueError(f"every {every_s} s on the last {window_s} s: both must be above 0")
        self.every_s, self.window_s = every_s, window_s
        self._kept: deque[tuple[float, Floats]] = deque()
        self._first: float | None = None
        self._begun = -np.inf

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, signature: Floats, now: float) -> None:
        """One request's [D], which must not change any more."""
        self._forget(now)
        if not signature.any():
            return
        if self._first is None:
            self._first = now
        self._kept.append((now, signature))

    def due(self, now: float, centroids: int) -> bool:
        """Whether a refit of so many centroids is to begin."""
        self._forget(now)
        return (
            self._first is not None
            and now - self._first >= self.window_s
            and now - self._begun >= self.every_s
            and len(self._kept) >= centroids
        )

    def begin(self, now: float) -> list[Floats]:
        """What the refit that begins now is made on, oldest first."""
        self._forget(now)
        self._begun = now
        return [signature for _, signature in self._kept]

    def _forget(self, now: float) -> None:
        while self._kept and self._kept[0][0] < now - self.window_s:
            self._kept.popleft()


def warm_refit(signatures: Floats, old: Floats) -> Floats:
    """[K, D] float32: the centroids `old` [K, D], moved to signatures [N, D], N >= K, of length 1.

    Balanced spherical k-means that begins at `old`: each round assigns the signatures at the least
    total cosine distance, at most ceil(N / K) to a centroid, and moves every centroid to the
    normalised mean of its own; one that gets none stays where it is. It ends when nothing moves, or
    after 50 rounds. Each worker then takes the row that is most like its old one (`best_rows`), so
    row k is worker k's as before. Always adopted: nobody judges whether it gained anything.
    O(N * K * D) a round. Source: casys-kaist/ELDR, `eldr/serving/clustering.py`; the assignment
    and the order of rows have the optimum of its Hungarian method, but may break ties otherwise.

    ValueError: no centroids, fewer signatures than centroids, other dimensions, NaN.
    """
    if old.ndim != 2 or signatures.ndim != 2 or signatures.shape[1] != old.shape[1]:
        raise ValueError(
            f"signatures {signatures.shape} and centroids {old.shape} must be [N, D] and [K, D]"
        )
    if not 0 < len(old) <= len(signatures):
        raise ValueError(f"{len(signatures)} signatures are too few for {len(old)} centroids")
    room = -(-len(signatures) // len(old))
    points = exact.whole(signatures)
    rows, prices = old.astype(np.float32), None
    for _ in range(ITERATIONS):
        found, prices = _moved(points, rows, room, prices)
        still = np.allclose(found, rows)
        rows = found
        if still:
            break
    return np.ascontiguousarray(rows[best_rows(old, rows)])


def _moved(
    points: Doubles, rows: Floats, room: int, prices: Doubles | None
) -> tuple[Floats, Doubles]:
    """One round: the centroids after it, and the prices of its assignment."""
    assigned = balanced_assignment(distances(points, exact.whole(rows)), room, prices)
    found = cluster_means(points, assigned.labels, len(rows))
    return np.where(found.any(axis=1, keepdims=True), found, rows), assigned.prices
