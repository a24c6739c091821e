"""Which decode ranks are to have a centroid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from toolkit.router.worker import Rank

Key = tuple[str, int]
Keys = tuple[Key, ...]

START_GRACE_S = 60.0
"""A worker that was never up counts for so long after the first one was: fleets start in turn."""


class Roster:
    """The ranks of workers that are up; at the start also those that are still to come."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self._ranks = ranks
        self._seen: set[str] = set()
        self._first_up = float("inf")

    def note(self, now: float) -> bool:
        """Look who is up. True when it is the first time that anybody is."""
        up = {rank.worker.name for rank in self._ranks if rank.worker.healthy}
        self._seen |= up
        first = bool(up) and self._first_up == float("inf")
        if first:
            self._first_up = now
        return first

    def present(self, now: float) -> Keys:
        """Keys of the ranks that are to have a centroid, in configuration order."""
        starting = now - self._first_up < START_GRACE_S
        return tuple(
            (rank.worker.name, rank.dp_rank)
            for rank in self._ranks
            if rank.worker.healthy or (starting and rank.worker.name not in self._seen)
        )

    def sizes_near(self, keys: Keys) -> set[int]:
        """How many ranks there are if any one server of `keys` is lost or any other comes back,
        with all its ranks, and how many there are now."""
        ranks = Counter(rank.worker.name for rank in self._ranks)
        there = {name for name, _ in keys}
        now = len(keys)
        near = {now - n if name in there else now + n for name, n in ranks.items()}
        return (near | {now}) - {0}


def shown(key: Key) -> str:
    """`decode-0`, and `decode-0/1` for its DP rank 1."""
    name, rank = key
    return f"{name}/{rank}" if rank else name


def names(keys: Iterable[Key]) -> str:
    return ", ".join(sorted(shown(key) for key in keys))
