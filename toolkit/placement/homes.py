"""Home nodes of clusters of requests: part of `clusters`.

counts [C, L, E]: whole numbers of (token, expert) pairs of each cluster; N nodes.
"""

import numpy as np
from numpy.typing import NDArray

from toolkit.signatures.assignment import balanced_assignment
from toolkit.signatures.clusters import balanced_kmeans

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def first(counts: Floats, nodes: int, seed: int) -> Ints:
    """[C] by what each cluster uses more or less than others do."""
    flat = counts.reshape(len(counts), -1)
    shares = flat / flat.sum(axis=1, keepdims=True)
    apart = shares - shares.mean(axis=0)
    length = np.linalg.norm(apart, axis=1, keepdims=True)
    unit = np.divide(apart, length, out=np.zeros_like(apart), where=length > 1e-12)
    return balanced_kmeans(unit.astype(np.float32), nodes, seed).labels


def nearest(counts: Floats, held: Floats, nodes: int) -> Ints:
    """[C] where `held` [L, E, N] says what lies on each node: the most pairs at home."""
    kept = counts.reshape(len(counts), -1) @ held.reshape(-1, nodes)
    return balanced_assignment(-kept).labels
