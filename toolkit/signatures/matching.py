"""Which worker takes which new centroid, so that a refit moves as little traffic as possible."""

import numpy as np
from numpy.typing import NDArray

from toolkit import exact
from toolkit.signatures.assignment import balanced_assignment
from toolkit.signatures.calibration import Floats, Indices

_STAY = 1e-6
"""Of the greatest cost: what a change costs besides, so that equal ways are not exchanged."""


def match_centroids(new: Floats, old: Floats) -> Indices:
    """[K_new]: for each new centroid the index of the old one whose worker should take it.

    Of all one-to-one matchings the one with the greatest sum of cosines between new [K_new, D]
    and old [K_old, D] unit centroids (Hungarian method): worker j keeps serving the requests
    whose experts it has been serving. With more new centroids than old, those without a partner
    get K_old, K_old + 1, ... in order (the added workers). With fewer, some old indices do not
    occur; pass only the rows of the workers that remain. Cosines that differ by rounding alone
    count as equal, so that ties are broken the same way on every machine. *Ours.*

    ValueError: different dimensions, NaN.
    """
    from scipy.optimize import linear_sum_assignment

    if new.ndim != 2 or old.ndim != 2 or new.shape[1] != old.shape[1]:
        raise ValueError(
            f"centroids of shapes {new.shape} and {old.shape} lie in different signature spaces"
        )
    if not (np.isfinite(new).all() and np.isfinite(old).all()):
        raise ValueError("centroids hold NaN or infinity")
    similarity = np.round(exact.cosines(new, old), 6)
    rows, columns = linear_sum_assignment(similarity, maximize=True)
    workers = np.full(len(new), -1, dtype=np.int64)
    workers[rows] = columns
    added = np.flatnonzero(workers < 0)
    workers[added] = len(old) + np.arange(len(added))
    return workers


def best_rows(old: Floats, new: Floats) -> Indices:
    """[K_old]: for each old centroid [K_old, D] the row of `new` [K_new, D] that its worker takes,
    K_new >= K_old.

    The optimum of `match_centroids`, the other way round and without scipy, whose import alone
    takes longer: 1 ms for 24 workers. ValueError: fewer new ones than old ones, NaN.
    """
    costs = np.round(1.0 - exact.cosines(old, new), 6)
    return balanced_assignment(costs, capacity=1).labels


def exchanged(costs: NDArray[np.float64], least: float) -> Indices | None:
    """[G]: which row each of G workers takes, of the G rows of which worker i has row i now.

    Of all ways to hand the rows out the one with the least sum of costs [G, G], in which as few
    workers as possible change theirs where that is the same. None where that lowers the mean by
    less than the share `least`. *Ours.* ValueError: costs that are not finite, or not square.
    """
    if costs.ndim != 2 or costs.shape[0] != costs.shape[1]:
        raise ValueError(f"costs have shape {costs.shape}; each worker has one row")
    stay = _STAY * np.abs(costs).max(initial=0.0)
    labels = balanced_assignment(costs + stay * (1 - np.eye(len(costs))), capacity=1).labels
    now, then = costs.diagonal().sum(), costs[np.arange(len(costs)), labels].sum()
    changed = bool((labels != np.arange(len(labels))).any())
    return labels if changed and now - then >= least * now else None
