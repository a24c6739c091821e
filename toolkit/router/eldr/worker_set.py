"""Which decode workers are to have a centroid: ranks that share their experts have one together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from toolkit.policies.base import Group
from toolkit.router.worker import Rank

Groups = tuple[Group, ...]

START_GRACE_S = 60.0
"""A worker that was never up counts for so long after the first one was: fleets start in turn."""


def groups_of(ranks: Iterable[Rank]) -> Groups:
    """The groups of ranks, in their order."""
    return tuple(dict.fromkeys(rank.group for rank in ranks))


class WorkerSet:
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

    def present(self, now: float) -> Groups:
        """Those that are to have a centroid, in configuration order."""
        starting = now - self._first_up < START_GRACE_S
        return groups_of(
            rank
            for rank in self._ranks
            if rank.worker.healthy or (starting and rank.worker.name not in self._seen)
        )

    def sizes_near(self, groups: Groups) -> set[int]:
        """How many groups there are if any one server of `groups` is lost or any other comes back,
        with all its ranks, and how many there are now."""
        sizes = Counter(name for name, _ in groups_of(self._ranks))
        there = {name for name, _ in groups}
        now = len(groups)
        near = {now - n if name in there else now + n for name, n in sizes.items()}
        return (near | {now}) - {0}


def shown(group: Group) -> str:
    """`decode-0`, and `decode-0/1` for its DP rank 1 where that has experts of its own."""
    name, rank = group
    return f"{name}/{rank}" if rank else name


def names(groups: Iterable[Group]) -> str:
    return ", ".join(sorted(shown(group) for group in groups))
