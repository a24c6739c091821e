"""Centroids for sets of decode workers: which one takes which.

A worker here is what has experts of its own: a server whose ranks share them, else a rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.policies.base import Group
from toolkit.policies.support.expert_locality import Centroids
from toolkit.router.eldr.worker_set import Groups
from toolkit.signatures.calibration import Floats
from toolkit.signatures.matching import best_rows
from toolkit.signatures.nearness import Nearness


@dataclass(frozen=True, eq=False)
class Rows:
    """Centroids [k, D] for any k workers, and how near requests are to be to them."""

    rows: Floats
    expected: Nearness


@dataclass(frozen=True, eq=False)
class Fit:
    """Centroids of the workers `groups`. `shared`: no fit was possible, and workers without a
    centroid of their own have another one's."""

    groups: Groups
    centroids: Centroids
    expected: Nearness
    shared: bool = False


def in_order(groups: Groups, rows: Rows) -> Fit:
    """Row i belongs to `groups[i]`."""
    owner = {group: i for i, group in enumerate(groups)}
    return Fit(groups, Centroids(rows.rows, owner), rows.expected)


def match(current: Fit | None, groups: Groups, rows: Rows) -> Fit:
    """A row for each of `groups`. Those that have one now take what is most like it: of all ways
    to hand them out the one with the greatest sum of cosines. The others get what is left.

    Costs 1 ms for 24 workers, so that it can be done when they are known, and no scipy, which the
    router would carry from then on.
    """
    staying = _staying(current, groups)
    owner: dict[Group, int] = {}
    if current is not None and staying:
        old = current.centroids.rows[list(staying.values())]
        labels = best_rows(old, rows.rows).tolist()
        owner = dict(zip(staying, labels, strict=True))
    left = (row for row in range(len(rows.rows)) if row not in set(owner.values()))
    owner |= {group: next(left) for group in groups if group not in owner}
    return Fit(groups, Centroids(rows.rows, owner), rows.expected)


def share(current: Fit, groups: Groups) -> Fit:
    """Without a refit: those that stay keep theirs, the others take part in one of these each.

    A worker without any would get no request that has a signature.
    """
    rows = _staying(current, groups)
    kept = sorted(rows.values()) or list(range(len(current.centroids.rows)))
    for place, group in enumerate(group for group in groups if group not in rows):
        rows[group] = kept[place % len(kept)]
    owner = {group: kept.index(row) for group, row in rows.items()}
    centroids = Centroids(current.centroids.rows[kept], owner)
    return Fit(groups, centroids, current.expected, shared=True)


def _staying(current: Fit | None, groups: Groups) -> dict[Group, int]:
    """Those of `groups` that have a centroid of their own now, and its row."""
    if current is None:
        return {}
    rows: dict[int, Group] = {}
    for group in groups:
        row = current.centroids.owner.get(group)
        if row is not None:
            rows.setdefault(row, group)
    return {group: row for row, group in rows.items()}
