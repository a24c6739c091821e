"""What an MoE layer sends: which copies of a token stay on its GPU, in its node, or cross nodes.

A token's attention runs on its home rank; its k experts lie where the placement has them. How many
copies of its hidden state travel depends on the kernels' unit:
- pair: one a (token, expert) pair, as DeepEP's low-latency kernels send (decode);
- gpu: one to each GPU that serves some of its experts;
- node: one to each other node, over the network to the GPU of the home rank's own number there,
  which hands it on inside the node: DeepEP's normal kernels (prefill, large batches).
Combine sends as many copies the other way. Bytes = copies * hidden * bytes an element.

Source: DeepEP's README (github.com/deepseek-ai/DeepEP). Numbers are expectations over which replica
is picked, exact where there is nothing to pick.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toolkit.placement.base import Placement
from toolkit.placement.dispatch import Dispatch, Shares, of_homes
from toolkit.placement.topology import Topology

Floats = NDArray[np.float64]
Unit = Literal["pair", "gpu", "node"]

OWN, NODE, ACROSS = range(3)
"""Last axis of copies: to the token's own GPU, to others of its node, to other nodes."""
CHUNK = 4096
"""Tokens whose GPUs are looked at in one go."""


@dataclass(frozen=True, slots=True)
class Wire:
    """Size of one copy: `hidden` elements of so many bytes each way.

    The defaults are DeepSeek-V3's with DeepEP: 7,168 values, FP8 with a 4-byte scale each 128 on
    the way out, BF16 on the way back.
    """

    hidden: int = 7168
    dispatch: float = 1 + 4 / 128
    combine: float = 2.0

    def __post_init__(self) -> None:
        if self.hidden < 1 or not (self.dispatch > 0 and self.combine > 0):
            raise ValueError(
                f"a copy of {self.hidden} elements of {self.dispatch} and {self.combine} bytes is "
                "impossible; all three must be above 0"
            )


@dataclass(frozen=True, eq=False)
class SentCopies:
    """Copies that `tokens` tokens cause in each layer, one way.

    sent [L, G, 3] leave the tokens of each home rank, received [L, G, 3] arrive at each GPU; last
    axis own GPU, own node, other nodes. With the unit `node` what is handed on inside a node counts
    as its own node's (`NODE`), from the GPU that hands it on. nodes, gpus [L]: distinct ones that
    serve a token, its own among them only where they do; None for the unit `pair`.
    """

    tokens: int
    sent: Floats
    received: Floats
    nodes: Floats | None = None
    gpus: Floats | None = None

    @property
    def copies(self) -> Floats:
        """[L, 3]: of all tokens."""
        total: Floats = self.sent.sum(axis=1)
        return total

    @property
    def shares(self) -> Floats:
        """[3]: parts of all copies that stay on the GPU, in the node, and that cross nodes."""
        total = self.copies.sum(axis=0)
        share: Floats = total / total.sum()
        return share

    @property
    def load(self) -> Floats:
        """[L, G]: what each GPU has to work on; (token, expert) pairs for the unit `pair`."""
        load: Floats = self.received.sum(axis=2)
        return load

    def bytes(self, wire: Wire) -> tuple[Floats, Floats]:
        """([L, 3], [L, 3]): dispatched and combined by all tokens."""
        copies = self.copies * wire.hidden
        return copies * wire.dispatch, copies * wire.combine


def sent(
    placement: Placement,
    topology: Topology,
    ids: ArrayLike,
    home: ArrayLike,
    *,
    unit: Unit = "pair",
    dispatch: Dispatch = "nearest",
) -> SentCopies:
    """Copies sent for tokens' logical expert ids [T, L, k] with home ranks [T].

    `dispatch`: `nearest` is SGLang's `--ep-dispatch-algorithm static`, `random` its `dynamic`.

    Raises ValueError: ids or ranks of another shape or size, another unit, and the dispatch `row`,
    which has no all-to-all.
    """
    if unit not in get_args(Unit):
        raise ValueError(f"unknown unit {unit!r}; known: {', '.join(get_args(Unit))}")
    routed, homes = _checked(placement, topology, ids, home)
    shape = (placement.layers, topology.gpus, 3)
    out, into = np.zeros(shape), np.zeros(shape)
    nodes, gpus = np.zeros(placement.layers), np.zeros(placement.layers)
    shares = of_homes(placement, topology, dispatch)
    for rank in np.unique(homes).tolist():
        mine, share = routed[homes == rank], shares(rank)
        by_node = share.reshape(*share.shape[:2], topology.nodes, -1).sum(axis=3)
        if unit == "pair":
            _add(out, into, _pairs(mine, share), rank, topology)
            continue
        for start in range(0, len(mine), CHUNK):
            for layer in range(placement.layers):
                some, row = mine[start : start + CHUNK, layer], slice(layer, layer + 1)
                served, there = _reached(some, share[layer]), _reached(some, by_node[layer])
                gpus[layer] += served.sum()
                nodes[layer] += there.sum()
                if unit == "gpu":
                    _add(out[row], into[row], served, rank, topology)
                else:
                    _add_by_node(out[row], into[row], served, there, rank, topology)
    if unit == "pair":
        return SentCopies(len(routed), out, into)
    return SentCopies(len(routed), out, into, nodes / len(routed), gpus / len(routed))


def between(
    placement: Placement,
    topology: Topology,
    load: ArrayLike,
    *,
    dispatch: Dispatch = "nearest",
) -> Floats:
    """[L, G, G]: (token, expert) pairs from home ranks (second axis) to the GPUs that serve them,
    for `load` [G, L, E], the pairs of the tokens at home on each rank.

    Raises ValueError: load of another shape, negative or not finite, and dispatch as in `sent`.
    """
    counts = np.asarray(load, np.float64)
    size = (topology.gpus, placement.layers, placement.experts)
    if counts.shape != size:
        raise ValueError(f"load has shape {counts.shape}; the placement needs {size}")
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise ValueError("load holds counts that are negative or not finite")
    shares = of_homes(placement, topology, dispatch)
    return np.stack([_served(mine, shares(rank)) for rank, mine in enumerate(counts)], axis=1)


def _checked(
    placement: Placement, topology: Topology, ids: ArrayLike, home: ArrayLike
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    routed, homes = np.asarray(ids), np.asarray(home)
    if routed.ndim != 3 or routed.shape[1] != placement.layers or not len(routed):
        raise ValueError(
            f"ids have shape {routed.shape}; the placement needs [tokens, {placement.layers}, "
            "top_k] with at least one token"
        )
    if homes.shape != (len(routed),):
        raise ValueError(f"home ranks have shape {homes.shape} for {len(routed)} tokens")
    for name, array, limit in (("ids", routed, placement.experts), ("home", homes, topology.gpus)):
        if not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"{name} holds {array.dtype}; whole numbers are needed")
        if array.min() < 0 or array.max() >= limit:
            raise ValueError(
                f"{name} runs from {array.min()} to {array.max()}; it must lie in 0 .. {limit - 1}"
            )
    return routed.astype(np.intp), homes.astype(np.intp)


def _pairs(ids: NDArray[np.intp], share: Shares) -> Floats:
    """[L, G]: (token, expert) pairs that each GPU serves."""
    layers, experts, _ = share.shape
    keys = ids + experts * np.arange(layers)[:, None]
    load = np.bincount(keys.ravel(), minlength=layers * experts).reshape(layers, experts)
    return _served(load.astype(np.float64), share)


def _served(load: Floats, share: Shares) -> Floats:
    """[L, G]: of pairs [L, E] those that each GPU serves."""
    pairs: Floats = np.matmul(load[:, None], share)[:, 0]
    return pairs


def _reached(ids: NDArray[np.intp], share: Shares) -> Floats:
    """[1, G]: tokens of which a GPU serves some expert; `share` [E, G], or [E, N] for nodes."""
    missed = np.ones((len(ids), share.shape[1]), np.float32)
    for expert in ids.T:
        missed *= 1 - share[expert]
    served: Floats = len(ids) - missed.sum(axis=0, dtype=np.float64)[None]
    return served


def _add(out: Floats, into: Floats, served: Floats, rank: int, topology: Topology) -> None:
    """Copies `served` [L, G] of tokens at home on `rank`."""
    gpus = np.arange(topology.gpus)
    kind = np.where(
        gpus == rank, OWN, np.where(_node(gpus, topology) == _node(rank, topology), NODE, ACROSS)
    )
    into[:, gpus, kind] += served
    for which in (OWN, NODE, ACROSS):
        out[:, rank, which] += served[:, kind == which].sum(axis=1)


def _add_by_node(
    out: Floats, into: Floats, served: Floats, there: Floats, rank: int, topology: Topology
) -> None:
    """The same once a node: copies `there` [L, N] travel, and are handed on to GPUs `served`."""
    entry = np.arange(topology.nodes) * topology.gpus_per_node + rank % topology.gpus_per_node
    home = _node(rank, topology)
    far = np.arange(topology.nodes) != home
    into[:, entry[far], ACROSS] += there[:, far]
    out[:, rank, ACROSS] += there[:, far].sum(axis=1)
    into[:, rank, OWN] += served[:, rank]
    out[:, rank, OWN] += served[:, rank]
    inside = served.copy()
    inside[:, entry] = 0
    into[:, :, NODE] += inside
    out[:, entry, NODE] += inside.reshape(len(served), topology.nodes, -1).sum(axis=2)


def _node(gpu: ArrayLike, topology: Topology) -> NDArray[np.intp]:
    node: NDArray[np.intp] = np.asarray(gpu) // topology.gpus_per_node
    return node
