"""How level the decode ranks are: their KV tokens side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.router.worker import Rank
from toolkit.router.worker_listener import WorkerListener

RANKS = 16
"""Ranks that are looked at for a reading, in the mean: with more of them it is not at every one."""


@dataclass(slots=True)
class Spread:
    """Sums over looks; divide by `samples` for means. KV tokens of the fullest, the emptiest and
    the mean rank at each look."""

    samples: int = 0
    largest: int = 0
    smallest: int = 0
    mean: float = 0.0


class Balance(WorkerListener):
    """Looks at all ranks whenever one has published its load, which it does at every step; where
    there are more than RANKS, at each second one, third one and so on, so that a reading costs the
    same with however many ranks.

    Only samples in which somebody holds KV count: idle ranks are level. A rank that is down or has
    no possible reading is left out, and so is a look at fewer than two.
    """

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self._ranks = ranks
        self._every = max(1, len(ranks) // RANKS)
        self._passed = 0
        """Readings since the last look."""
        self.sums = Spread()

    def load_read(self, rank: Rank) -> None:
        if rank.worker.config.role != "decode":
            return
        self._passed += 1
        if self._passed < self._every:
            return
        self._passed = 0
        used = [
            tokens
            for rank in self._ranks
            if rank.worker.healthy and (tokens := rank.used_tokens) is not None and tokens >= 0
        ]
        if len(used) < 2 or not (largest := max(used)) > 0:
            return
        sums = self.sums
        sums.samples += 1
        sums.largest += largest
        sums.smallest += min(used)
        sums.mean += sum(used) / len(used)

    def clear(self) -> None:
        """Start anew."""
        self.sums = Spread()

    def describe(self) -> dict[str, float | int | None]:
        """Means over samples, for GET /workers. `imbalance`: largest - smallest; `idle`: the share
        of a barrier's time that the mean rank waits, if a step takes as long as its KV tokens."""
        sums = self.sums
        if not sums.samples:
            return {"samples": 0}
        largest, smallest = sums.largest / sums.samples, sums.smallest / sums.samples
        mean = sums.mean / sums.samples
        return {
            "samples": sums.samples,
            "kv_max": round(largest, 1),
            "kv_min": round(smallest, 1),
            "kv_mean": round(mean, 1),
            "imbalance": round(largest - smallest, 1),
            "idle": round(1 - mean / largest, 4),
        }
