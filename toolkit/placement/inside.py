"""GPUs of experts and clusters inside their nodes, all of them at once: part of `clusters`.

R = L * N pairs of layer and node, S replicas each, g GPUs a node.
"""

import numpy as np
from numpy.typing import NDArray

from toolkit.placement.replicas import DIGITS, Items, pack
from toolkit.placement.topology import Topology
from toolkit.signatures.assignment import balanced_assignment

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TURNS = 2
"""Of experts for homes and homes for experts."""
ROUNDS = 150
"""Of exchanges, one in each layer and node."""
PRICES = (30.0, 300.0, 1e4)
"""Of a GPU's load above its limit, pass by pass, for as many pairs that stay on their GPU."""
REMOTE_PRICE = 30.0
"""The same for what a GPU receives from other nodes above the mean of its node's GPUs: a layer
waits for the one that receives most."""
LEAST = 1e-4


def inside(
    counts: Floats,
    home: Ints,
    expert: Ints,
    node: Ints,
    weight: Floats,
    remote: Floats,
    topology: Topology,
    limit: Floats,
) -> tuple[Ints, Ints, Ints]:
    """(expert [L, P], GPU [L, P], home GPU [C]) for replicas and clusters that have nodes.

    counts [C, L, E], home [C] node; expert, node, weight, remote [L, P] (of its load for tokens of
    other nodes), limit [L]; loads in units of a GPU's mean.
    """
    layers, nodes, per_node = len(expert), topology.nodes, topology.gpus_per_node
    rounded = np.round(weight, DIGITS)
    order = np.lexsort((expert, -rounded, node), axis=1)
    held = np.take_along_axis(expert, order, axis=1).reshape(layers, nodes, -1)
    what = held.reshape(layers * nodes, -1)
    heavy = np.take_along_axis(rounded, order, axis=1).reshape(what.shape)
    gpu = pack(Items(what, np.ones_like(what), heavy), counts.shape[2], per_node)
    far = np.take_along_axis(remote, order, axis=1).reshape(what.shape)
    members = [np.flatnonzero(home == each) for each in range(nodes)]
    used = [
        np.take_along_axis(counts[mine], held[None, :, each], axis=2)
        for each, mine in enumerate(members)
    ]  # of each node [c, L, S]
    rank = np.zeros(len(home), np.int64)
    for mine in members:
        rank[mine] = np.arange(len(mine)) % per_node
    mean = counts.sum(axis=(0, 2))[:, None, None] / topology.gpus
    for turn in range(TURNS):
        gain = np.empty((*held.shape, per_node))
        for each, mine in enumerate(members):
            if turn and len(mine):
                on = _one_hot(gpu.reshape(held.shape)[:, each], per_node)
                kept = np.einsum("cls,lsg->cg", used[each], on, optimize=True)
                rank[mine] = balanced_assignment(-kept).labels
            place = _one_hot(rank[mine], per_node)
            gain[:, each] = np.einsum("cls,cg->lsg", used[each], place, optimize=True) / mean
        flat, most = gain.reshape(*what.shape, per_node), np.repeat(limit, nodes)
        for price in PRICES:
            gpu = settle(heavy, far, flat, gpu, most, price)
    whole = gpu.reshape(held.shape) + per_node * np.arange(nodes)[:, None]
    return held.reshape(layers, -1), whole.reshape(layers, -1), rank + per_node * home


def settle(
    weight: Floats, remote: Floats, gain: Floats, gpu: Ints, limit: Floats, price: float
) -> Ints:
    """GPU [R, S] after exchanges that gain most, less `price` for load above `limit` [R] and
    REMOTE_PRICE for what is received from other nodes above the mean of a node's GPUs.

    weight, remote [R, S] (of it for tokens of other nodes) and gain [R, S, g] in units of a GPU's
    mean load.
    """
    gpu, size, gpus = gpu.copy(), weight.shape[1], gain.shape[2]
    worth = gain.astype(np.float32)
    bounds = [
        (np.float32(price), weight.astype(np.float32), limit.astype(np.float32)),
        (
            np.float32(REMOTE_PRICE),
            remote.astype(np.float32),
            (remote.sum(axis=1) / gpus).astype(np.float32),
        ),
    ]
    active = np.arange(len(gpu))
    for _ in range(ROUNDS):
        place = gpu[active]
        on = _one_hot(place, gpus).astype(np.float32)
        wide = np.broadcast_to(place[:, None, :], (len(active), size, size))
        value = np.take_along_axis(worth[active], wide, axis=2)
        value -= np.take_along_axis(worth[active], place[:, :, None], axis=2)
        for cost, items, most in bounds:
            mine = items[active]
            load = np.take_along_axis(np.einsum("rs,rsg->rg", mine, on), place, axis=1)
            load -= most[active][:, None]
            # On q's GPU when p comes for q.
            shift = mine[:, :, None] - mine[:, None, :]
            over = np.maximum(load[:, None, :] + shift, 0)
            over -= np.maximum(load[:, None, :], 0)
            value -= cost * over
        value = value + value.transpose(0, 2, 1)
        value[place[:, :, None] == place[:, None, :]] = 0
        flat = value.reshape(len(active), -1)
        best = flat.argmax(axis=1)
        better = flat[np.arange(len(active)), best] > LEAST
        if not better.any():
            break
        active, best = active[better], best[better]
        one, two = best // size, best % size
        gpu[active, one], gpu[active, two] = gpu[active, two], gpu[active, one]
    return gpu


def _one_hot(places: Ints, count: int) -> Floats:
    found = np.zeros((*places.shape, count))
    np.put_along_axis(found, places[..., None], 1.0, axis=-1)
    return found
