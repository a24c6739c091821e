"""Home nodes of clusters of requests: part of `clusters`.

counts [C, L, E]: whole numbers of (token, expert) pairs of each cluster; N nodes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from toolkit.signatures.assignment import balanced_assignment
from toolkit.signatures.clusters import balanced_kmeans

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LOOKED_AT = 8
"""Layers in which `evened` looks at what a node's clusters use."""
EXCHANGES = 200
LEAST = 1e-6


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


def evened(counts: Floats, home: Ints, nodes: int, slots: int) -> Ints:
    """Exchanges of clusters after which no node is much worse off than others.

    Where kinds of requests do not divide by nodes, one node gets what is left of each, and its
    ranks, which find the least at home, are those that every layer waits for. A node's worst case
    is what its clusters use beyond the `slots` experts that they use most; the sum over nodes of
    the twelfth power of that goes down with each exchange of a cluster of the worst node.
    """
    some = counts[:, :: -(-counts.shape[1] // LOOKED_AT)]
    home = home.copy()
    used = np.stack([some[home == node].sum(axis=0) for node in range(nodes)])
    scale = nodes / some.sum()

    def costs(pairs: Floats) -> Floats:
        """[...] for [..., L, E]."""
        rest = pairs.shape[-1] - slots
        left = np.partition(pairs, rest, axis=-1)[..., :rest] if rest > 0 else pairs[..., :0]
        share = left.sum(axis=(-2, -1)) * scale
        fourth = (share * share) ** 2
        cost: Floats = fourth * fourth * fourth
        return cost

    now = costs(used)
    for _ in range(EXCHANGES):
        worst = int(now.argmax())
        mine = np.flatnonzero(home == worst)
        best, found = LEAST, None
        for node in range(nodes):
            theirs = np.flatnonzero(home == node)
            if node == worst or not len(theirs) or not len(mine):
                continue
            change = some[theirs][None] - some[mine][:, None]
            after = costs(used[worst] + change) + costs(used[node] - change)
            gain = now[worst] + now[node] - after
            one, other = np.unravel_index(gain.argmax(), gain.shape)
            if gain[one, other] > best:
                best, found = float(gain[one, other]), (mine[one], theirs[other], node)
        if found is None:
            break
        one, other, node = found
        home[one], home[other] = node, worst
        used[worst] += some[other] - some[one]
        used[node] += some[one] - some[other]
        now[[worst, node]] = costs(used[[worst, node]])
    return home
