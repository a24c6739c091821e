"""How evenly decode ranks were loaded, from the step logs of each.

Measured: what attention read in each step (KV tokens of the batch), when the step ended and how
long it took; on CPU also what the rank's own thread computed. Derived: everything else. A rank
holds a step's KV tokens while the step runs; between steps, where it had nothing to decode, it
holds 0 (`patches.steps.step_log`: a step begins where the one before ended, unless the rank was
idle). KV of requests that have not had their first decode step there (in transfer) is in no step
and does not count, and neither does what a rank without disaggregation keeps during a prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

SNAP_S = 2e-4
"""Steps this close follow each other: clocks are float32 in a block and mapped to another clock."""


@dataclass(frozen=True)
class RankTrack:
    """One rank: `value` [M] from `start` [M] to `end` [M], seconds; 0 outside. Ascending, no two at
    a time."""

    start: NDArray[Any]
    end: NDArray[Any]
    value: NDArray[Any]

    @classmethod
    def of(cls, end: NDArray[Any], seconds: NDArray[Any], value: NDArray[Any]) -> RankTrack:
        """From steps: when each ended, how long it took, what held meanwhile."""
        import numpy as np

        order = np.argsort(end, kind="stable")
        end, seconds, value = end[order], seconds[order], value[order]
        start = end - np.maximum(seconds, 0.0)
        if len(end) > 1:
            before = end[:-1]
            start[1:] = np.where(start[1:] < before + SNAP_S, before, start[1:])
        return cls(start, end, value)

    def at(self, moments: NDArray[Any]) -> NDArray[Any]:
        """The value at each of these times; at a border that of the step which begins."""
        import numpy as np

        if not len(self.start):
            return np.zeros(len(moments))
        step = np.searchsorted(self.start, moments, side="right") - 1
        found = (step >= 0) & (moments < self.end[step])
        return np.where(found, self.value[step], 0.0)


@dataclass(frozen=True)
class Levels:
    """Several ranks side by side: `values` [T, G] held for `seconds` [T]."""

    seconds: NDArray[Any]
    values: NDArray[Any]

    @classmethod
    def of(
        cls, tracks: Sequence[RankTrack], since: float | None = None, until: float | None = None
    ) -> Levels:
        """Between two times; by default, and at most, from the first step's start to the last
        one's end."""
        import numpy as np

        known = [track for track in tracks if len(track.start)]
        if not known:
            return cls(np.zeros(0), np.zeros((0, len(tracks))))
        first = min(float(track.start[0]) for track in known)
        last = max(float(track.end[-1]) for track in known)
        first = first if since is None else max(first, since)
        last = last if until is None else min(last, until)
        borders = [np.array([first, last])]
        for track in known:
            borders += [track.start, track.end]
        times = np.unique(np.concatenate(borders))
        times = times[(times >= first) & (times <= last)]
        seconds = np.diff(times)
        middle = times[:-1] + seconds / 2
        return cls(seconds, np.stack([track.at(middle) for track in tracks], axis=1))

    def mean(self, values: NDArray[Any]) -> float:
        """Of one value a piece, over time; NaN where there was none."""
        total = float(self.seconds.sum())
        return float(values @ self.seconds) / total if total > 0 else float("nan")

    def spread(self) -> float:
        """Mean over time of the difference between the fullest and the emptiest rank."""
        return self.mean(self.values.max(axis=1) - self.values.min(axis=1))

    def waiting(self) -> float:
        """sum_g (M - L_g) / (G * M), M = max over ranks, mean over the time in which any rank has
        something: the share of a step that ranks spend waiting for the heaviest one, *if* they
        meet at every step (DP attention) and a rank's part of it takes time in proportion to its
        value. 0: level; 1 - 1/G: one rank does everything. NaN where there was nothing."""
        import numpy as np

        most = self.values.max(axis=1)
        busy = most > 0
        shares = 1.0 - self.values[busy].mean(axis=1) / most[busy]
        seconds = self.seconds[busy]
        total = float(seconds.sum())
        return float(shares @ seconds) / total if total > 0 else float(np.nan)


def balance(
    ranks: Sequence[NDArray[Any]],
    columns: Sequence[str],
    since: float | None = None,
    until: float | None = None,
    own_clock: str = "wall",
) -> dict[str, float]:
    """Of the decode steps of two or more ranks, float64 [M, len(columns) or more] each, all on one
    clock, in a window as for `Levels`:

    - `kv_spread`: mean over time of max - min KV tokens over ranks
    - `kv_max`, `kv_mean`, `kv_min`: of the fullest, all and the emptiest rank, means over time
    - `barrier_share`: `Levels.waiting` of KV tokens
    - `barrier_share_cpu`, on CPU only: the same of the CPU seconds that each rank's thread took for
      the step which it was in. What a rank computed is measured there, beside the KV tokens also
      the weights and experts; that the others waited as long is derived as before.

    Empty for fewer than two ranks, and where none of them has a step in the window.
    """
    if len(ranks) < 2 or not columns:
        return {}
    kv = Levels.of([_track(rows, columns, "kv_tokens") for rows in ranks], since, until)
    if not kv.seconds.sum() > 0:
        return {}
    found = {
        "kv_spread": kv.spread(),
        "kv_max": kv.mean(kv.values.max(axis=1)),
        "kv_mean": kv.mean(kv.values.mean(axis=1)),
        "kv_min": kv.mean(kv.values.min(axis=1)),
    }
    shares = {"barrier_share": kv.waiting()}
    if own_clock == "cpu":
        cpu = Levels.of([_track(rows, columns, "cpu_seconds") for rows in ranks], since, until)
        shares["barrier_share_cpu"] = cpu.waiting()
    return found | {name: share for name, share in shares.items() if share == share}


def _track(rows: NDArray[Any], columns: Sequence[str], name: str) -> RankTrack:
    """A rank without a step may have no columns either."""
    wanted = [columns.index(each) for each in ("end", "seconds", name)]
    if not len(rows):
        return RankTrack(*(rows[:, :0].sum(axis=1) for _ in range(3)))
    return RankTrack.of(*(rows[:, at] for at in wanted))
