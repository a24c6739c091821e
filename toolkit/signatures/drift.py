"""Drift: notices that the traffic has left its centroids, and keeps what a refit needs."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.signatures.nearness import Nearness, nearness, workers_in_use
from toolkit.signatures.refits import Refit, refit_recent
from toolkit.signatures.reservoir import Recent, Reservoir
from toolkit.signatures.rules import DriftRules

__all__ = [
    "DriftRules",
    "DriftWatch",
    "Nearness",
    "Recent",
    "Refit",
    "nearness",
    "refit_recent",
]

_DEFAULT = DriftRules()
_NOBODY = -1


class DriftWatch:
    """Watches how well requests fit their centroids; says when a refit is due, and why.

    `dimensions`: D, length of a request's counts. `expected`: mean cosine to the nearest centroid
    on the requests that the centroids were fitted on, on held-out ones where known (`nearness`);
    `workers`: how many workers those were nearest to, in effect (`Nearness.workers`; None: what
    the first full window shows). Both are what the watch compares with.

    A refit is due, `observe` returns True and `reason` says why, when the last `window` requests
    are in, `wait_limit` have passed since the last refit (adopted or declined; none at the start)
    and one of these holds:

    1. Far: the window's mean cosine lies more than `tolerance` below `expected`. Requests use
       experts that no worker's requests use.
    2. Crowded: the window's requests are nearest to so few workers that the one of a typical
       request has `crowding` times the share it had. Traffic moved into one cluster fits its
       centroid as well as ever, or better, so 1 does not see it; but the locality band then
       overloads that worker or, avoiding this, gives up locality.
    3. The last refit was adopted and provisional: it had to do with few requests of the new kind.

    1 and 2 must hold for the oldest and for the youngest quarter of the window too: a burst of up
    to half a window is not a drift, and a refit in the first moments of a change would have nothing
    of the new traffic to learn from, be declined, and cost the wait. They stay due until the
    traffic returns or `reset` is called; whoever refits must not start a second one meanwhile.

    Declined means that no better centroids were found for this traffic (it is less alike than the
    calibration's, or too mixed): what it has then becomes the expectation, so that a refit is
    tried again only when things get worse still. `settle` does all of this.

    Memory is fixed: recent * (D + 20) + 16 * window bytes, 3 MB for 512 requests of 48 x 128; see
    `Reservoir`. A request takes 16 us at D = 3,072 (`tests/benchmarks/drift.py`). No clock: all is
    counted in requests. ValueError: an expectation that is no cosine.
    """

    def __init__(
        self,
        dimensions: int,
        expected: float,
        rules: DriftRules = _DEFAULT,
        seed: int = 0,
        workers: float | None = None,
    ) -> None:
        self.rules = rules
        self._reservoir = Reservoir(dimensions, rules.recent, seed)
        self._cosines = np.zeros(rules.window)
        self._nearest = np.full(rules.window, _NOBODY, dtype=np.int64)
        self._observed = 0
        self._expect(expected, workers, provisional=False)
        self._wait_limit = 0

    def observe(
        self, counts: NDArray[Any], tokens: int, cosine: float, nearest: int | None = None
    ) -> bool:
        """One request: its counts [D] of the kept layers and prompt tokens, its cosine to the
        nearest centroid and that centroid's number (None: not known, then no crowd is seen).
        True while a refit is due.

        ValueError: counts of another length, negative or NaN; no tokens; a cosine that is none.
        """
        if not -1.001 <= cosine <= 1.001:
            raise ValueError(f"cosine = {cosine}: it must lie in [-1, 1]")
        if nearest is not None and nearest < 0:
            raise ValueError(f"nearest = {nearest}: centroids are numbered from 0")
        self._reservoir.add(counts, tokens)
        slot = self._observed % self.rules.window
        self._cosines[slot] = cosine
        # A zero signature is at cosine 0 from all centroids and belongs to no worker.
        self._nearest[slot] = _NOBODY if nearest is None or cosine <= 0 else nearest
        self._observed += 1
        self.reason = self._judge()
        return bool(self.reason)

    @property
    def fit(self) -> float | None:
        """Mean cosine over the last `window` requests; None before there are enough."""
        return float(self._cosines.mean()) if self._full else None

    @property
    def workers(self) -> float | None:
        """Workers in use over the last `window` requests (`workers_in_use`); None as `fit`."""
        return _in_use(self._nearest) if self._full else None

    def recent(self) -> Recent:
        """The reservoir, copied, oldest first: at most `rules.recent` requests, mostly late."""
        return self._reservoir.recent()

    def settle(self, refit: Refit) -> None:
        """`reset` to what `refit` has measured: the new centroids if it is worthwhile (then they
        are taken to be adopted), the old ones if not."""
        if refit.worthwhile:
            self.reset(refit.cosine_new, refit.workers_new, refit.provisional)
        else:
            self.reset(refit.cosine_old, refit.workers_old)

    def reset(
        self, expected: float, workers: float | None = None, provisional: bool = False
    ) -> None:
        """After a refit, adopted or declined: a new window and a new expectation.

        The reservoir stays. `workers` None: the next full window shows it. `provisional`: another
        refit is due when the wait is over. ValueError: an expectation that is no cosine.
        """
        self._expect(expected, workers, provisional)
        self._wait_limit = self.rules.wait_limit

    @property
    def _full(self) -> bool:
        return self._observed >= self.rules.window

    def _expect(self, expected: float, workers: float | None, provisional: bool) -> None:
        if not -1.001 <= expected <= 1.001:
            raise ValueError(f"expected = {expected}: a mean cosine lies in [-1, 1]")
        self.expected = float(expected)
        self.expected_workers = workers
        self.reason = ""
        self.provisional = provisional
        self._observed = 0

    def _judge(self) -> str:
        """Why a refit is due, or nothing."""
        if not self._full:
            return ""
        if self.expected_workers is None:
            self.expected_workers = self.workers
        if self._observed < self._wait_limit:
            return ""
        if self.provisional:
            return "the last refit had few requests of the new traffic to go by"
        return self._far() or self._crowded()

    def _far(self) -> str:
        least = self.expected - self.rules.tolerance
        if any(self._cosines[part].mean() >= least for part in self._parts()):
            return ""
        return (
            f"mean cosine {self._cosines.mean():.3f} of the last {self.rules.window} requests to "
            f"their nearest centroid, {self.expected:.3f} expected"
        )

    def _crowded(self) -> str:
        before = self.expected_workers
        if not all(
            self.rules.crowded(_in_use(self._nearest[part]), before) for part in self._parts()
        ):
            return ""
        return (
            f"the last {self.rules.window} requests are nearest to {self.workers:.1f} workers in "
            f"effect, {before:.1f} expected"
        )

    def _parts(self) -> Iterator[NDArray[np.int64]]:
        """Slots of a full window, of its oldest and of its youngest quarter."""
        window = self.rules.window
        oldest = self._observed + np.arange(-(-window // 4))
        yield np.arange(window)
        yield oldest % window
        yield (oldest - len(oldest)) % window


def _in_use(nearest: NDArray[np.int64]) -> float | None:
    return workers_in_use(nearest[nearest != _NOBODY])
