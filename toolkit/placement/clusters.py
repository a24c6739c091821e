"""Experts and clusters of requests laid on nodes and GPUs together: who uses what lives beside it.

One wide-EP server with DP attention: a request's attention runs on its home rank, its experts
where the placement has them. Requests that use the same experts (a cluster, as ELDR fits them) get
one home node, and the node gets the experts that its clusters use. Maximise the (token, expert)
pairs that stay in their node,

    sum over l, e, n of x[l, e, n] * A[l, e, n],   A = pairs of the clusters at home on node n,

x = 1 where node n holds expert e; then, inside each node, those that stay on their GPU. Replicas
are picked nearest first (`dispatch.py`, SGLang's `static`): one in a token's node serves all of
that node's tokens, the others share what has none. Subject to: equally many slots a GPU, no two
replicas of an expert in one node, equally many clusters a node, and in every layer no GPU above
(1 + slack) times the busiest of a load-only start (`replicas.py`). That is a price, not a promise:
where homes leave no room, `alltoall.sent(...).load` shows what came out.

1. Clusters to nodes by balanced k-means of what they use; then, in turns, experts for these homes
   (`nodes.py`) and homes for these experts (balanced assignment, as in ELDR's k-means). No turn
   loses pairs, load and the choice of replicas aside.
2. In every layer what stays in a node is made more even over nodes (a layer waits for the GPU that
   sends or receives most), then exchanges between nodes until their loads are level, but for a node
   that serves other nodes' tokens more than most: it gets a little less.
3. Inside each node (`inside.py`): by load, heaviest first, then exchanges that keep loads and what
   is received from other nodes level.

Source: *ours*. Deterministic for a seed; no clock.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toolkit.placement.base import Placement, from_gpus
from toolkit.placement.homes import first, nearest
from toolkit.placement.inside import inside
from toolkit.placement.nodes import Nodes
from toolkit.placement.replicas import items, pack, replicate
from toolkit.placement.topology import Topology

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TURNS = 3
"""Of experts for homes and homes for experts."""


@dataclass(frozen=True, eq=False)
class Laid:
    """`placement`, and `home` [C]: the GPU (DP rank) of each cluster; GPUs as in `topology`."""

    placement: Placement
    home: Ints
    topology: Topology

    @property
    def nodes(self) -> Ints:
        """[C]: home node of each cluster."""
        node: Ints = self.home // self.topology.gpus_per_node
        return node


def lay(
    load: ArrayLike,
    topology: Topology,
    redundant: int = 0,
    seed: int = 0,
    slack: float = -0.01,
) -> Laid:
    """Lay experts and clusters; `load` [C, L, E] counts the (token, expert) pairs of each cluster.

    C is the number of nodes or more; nodes get equally many where it is a multiple (else at most
    ceil(C / N), and some may get none), GPUs too where it is one of theirs. `slack`: see the
    module; below 0 asks for more than the start's balance, which unseen traffic needs, since
    experts used together are also busy together.

    Raises ValueError for other shapes, negative or infinite counts, layers or clusters without any,
    one node, fewer clusters than nodes, more replicas of each expert than nodes, and sizes that do
    not divide.
    """
    counts = _checked(load, topology, redundant)
    home = first(counts, topology.nodes, seed)
    for _ in range(TURNS):
        layers = _layers(counts, home, topology, redundant)
        held = np.stack([layer.held(*layer.placed()) for layer in layers])
        home = nearest(counts, held, topology.nodes)
    limit = (1 + slack) * _busiest(counts.sum(axis=0), topology, redundant)
    layers = _layers(counts, home, topology, redundant)
    where = [layer.levelled(most) for layer, most in zip(layers, limit.tolist(), strict=True)]
    weight = np.stack([layer.busy(*at) for layer, at in zip(layers, where, strict=True)])
    remote = weight - np.stack([layer.saved[at] for layer, at in zip(layers, where, strict=True)])
    expert, node = (np.stack(each) for each in zip(*where, strict=True))
    expert, gpu, rank = inside(counts, home, expert, node, weight, remote, topology, limit)
    return Laid(from_gpus(gpu, expert, counts.shape[2], topology.gpus), rank, topology)


def _layers(counts: Floats, home: Ints, topology: Topology, redundant: int) -> list[Nodes]:
    """Of clusters [C, L, E] at home on nodes [C]."""
    found = np.zeros((topology.nodes, *counts.shape[1:]))
    np.add.at(found, home, counts)
    mean = found.sum(axis=(0, 2))[:, None, None] / topology.gpus
    return [Nodes(saved, topology, redundant) for saved in found.transpose(1, 2, 0) / mean]


def _busiest(total: Floats, topology: Topology, redundant: int) -> Floats:
    """[L]: the busiest GPU's load / mean, experts placed by load alone."""
    start = items(total, replicate(total, redundant, topology.gpus), topology.gpus)
    gpu = pack(start, total.shape[1], topology.gpus)
    rows = zip(gpu, start.weight, strict=True)
    return np.array([np.bincount(row, weight, topology.gpus).max() for row, weight in rows])


def _checked(load: ArrayLike, topology: Topology, redundant: int) -> Floats:
    counts = np.array(load, np.float64)
    if counts.ndim != 3 or not counts.size:
        raise ValueError(f"load has shape {counts.shape}; [clusters, layers, experts] is needed")
    topology.slots(counts.shape[2], redundant)
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise ValueError("load holds counts that are negative or not finite")
    if topology.nodes < 2:
        raise ValueError(
            f"{topology.gpus} GPUs on one node have nothing to cross; use `joint`, or say how many "
            "GPUs a node has"
        )
    if len(counts) < topology.nodes:
        raise ValueError(
            f"{len(counts)} clusters for {topology.nodes} nodes: every node needs a cluster of its "
            f"own; fit {topology.nodes} or more"
        )
    most = counts.shape[2] * (topology.nodes - 1)
    if redundant > most:
        raise ValueError(
            f"{redundant} redundant experts are more than one replica of each on each of "
            f"{topology.nodes} nodes; use at most {most}"
        )
    for axes, what in (((1, 2), "cluster"), ((0, 2), "layer")):
        silent = np.flatnonzero(counts.sum(axis=axes) == 0)
        if len(silent):
            raise ValueError(f"no expert ever fires in {what} {', '.join(map(str, silent))}")
    return counts
