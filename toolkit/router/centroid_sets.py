"""Centroids for sets of decode ranks: which rank takes which."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toolkit.policies.eldr import Centroids
from toolkit.router.roster import Key, Keys
from toolkit.signatures.assignment import balanced_assignment
from toolkit.signatures.calibration import Floats
from toolkit.signatures.nearness import Nearness


@dataclass(frozen=True, eq=False)
class Rows:
    """Centroids [k, D] for any k ranks, and how near requests are to be to them."""

    rows: Floats
    expected: Nearness


@dataclass(frozen=True, eq=False)
class Fit:
    """Centroids of the ranks `keys`. `shared`: no fit was possible, and ranks without a centroid
    of their own have another one's."""

    keys: Keys
    centroids: Centroids
    expected: Nearness
    shared: bool = False


def in_order(keys: Keys, rows: Rows) -> Fit:
    """Row i belongs to `keys[i]`."""
    return Fit(keys, Centroids(rows.rows, {key: i for i, key in enumerate(keys)}), rows.expected)


def match(current: Fit | None, keys: Keys, rows: Rows) -> Fit:
    """A row for each of `keys`. Ranks that have one now take those that are most like it: of all
    ways to hand them out the one with the greatest sum of cosines. The others get what is left.

    Costs 1 ms for 24 ranks, so that it can be done when the workers are known. The same optimum as
    `toolkit.signatures.match_centroids`, without scipy, which the router would carry from then on.
    """
    staying = _staying(current, keys)
    owner: dict[Key, int] = {}
    if current is not None and staying:
        old = current.centroids.rows[list(staying.values())]
        costs = np.round(1.0 - (old @ rows.rows.T).astype(np.float64), 6)
        labels = balanced_assignment(costs, capacity=1).labels.tolist()
        owner = dict(zip(staying, labels, strict=True))
    left = (row for row in range(len(rows.rows)) if row not in set(owner.values()))
    owner |= {key: next(left) for key in keys if key not in owner}
    return Fit(keys, Centroids(rows.rows, owner), rows.expected)


def share(current: Fit, keys: Keys) -> Fit:
    """Without a refit: those that stay keep theirs, the others take part in one of these each.

    A rank without any would get no request that has a signature.
    """
    rows = _staying(current, keys)
    kept = sorted(rows.values()) or list(range(len(current.centroids.rows)))
    for place, key in enumerate(key for key in keys if key not in rows):
        rows[key] = kept[place % len(kept)]
    owner = {key: kept.index(row) for key, row in rows.items()}
    return Fit(keys, Centroids(current.centroids.rows[kept], owner), current.expected, shared=True)


def _staying(current: Fit | None, keys: Keys) -> dict[Key, int]:
    """Ranks of `keys` that have a centroid of their own now, and its row."""
    if current is None:
        return {}
    rows: dict[int, Key] = {}
    for key in keys:
        row = current.centroids.owner.get(key)
        if row is not None:
            rows.setdefault(row, key)
    return {key: row for row, key in rows.items()}
