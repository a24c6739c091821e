"""How well centroids serve requests: how near these are, and over how many workers they fall."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit import exact
from toolkit.signatures.calibration import Floats, Indices


@dataclass(frozen=True)
class Nearness:
    """`cosine`: mean over requests of the cosine to the nearest centroid; 0 without requests.

    `workers`: how many workers the nearest centroids belong to, in effect (`workers_in_use`), None
    for fewer than two requests with a signature that is not zero.
    """

    cosine: float
    workers: float | None


def nearness(signatures: Floats, centroids: Floats) -> Nearness:
    """Of signatures [N, D] and centroids [K, D]. A zero signature is near nobody: its cosine is 0
    and counts, as in a `DriftWatch`, and it belongs to no worker.

    On requests that were fitted the cosine flatters; use held-out ones where there are some.
    ValueError: other dimensions, no centroids.
    """
    if signatures.ndim != 2 or centroids.ndim != 2 or not len(centroids):
        raise ValueError(
            f"signatures {signatures.shape} and centroids {centroids.shape} must be [N, D] and "
            "[K, D], with at least one centroid"
        )
    if signatures.shape[1] != centroids.shape[1]:
        raise ValueError(
            f"signatures of {signatures.shape[1]} values, centroids of {centroids.shape[1]}: "
            "they belong to different profiles"
        )
    if not len(signatures):
        return Nearness(0.0, None)
    cosines = exact.cosines(signatures, centroids)
    best = cosines.max(axis=1)
    return Nearness(
        float(best.mean(dtype=np.float64)), workers_in_use(cosines.argmax(axis=1)[best > 0])
    )


def workers_in_use(nearest: Indices | NDArray[np.integer]) -> float | None:
    """From the nearest worker [n] of each request: 1 / P(two of them have the same one).

    n requests spread evenly over K workers: K; all at one: 1. Its inverse times K is how many
    times its fair share the worker of a typical request has. This is Simpson's (1949) index with
    its unbiased estimate sum n_k (n_k - 1) / (n (n - 1)): the greatest share, or the entropy, would
    depend on how many requests are counted. At most n; None for fewer than two requests.
    """
    total = len(nearest)
    if total < 2:
        return None
    sizes = np.bincount(nearest).astype(np.float64)
    same = float((sizes * (sizes - 1)).sum())
    return min(float(total), total * (total - 1) / same) if same else float(total)
