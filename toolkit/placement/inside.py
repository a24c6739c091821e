"""GPUs of experts and clusters inside their nodes, all of them at once: part of `clusters`.

R = L * N pairs of layer and node, S replicas each, g GPUs a node.
"""

from __future__ import annotations

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
PRICE = 1e4
"""Of a GPU's load above its limit, for as many pairs that stay on their GPU."""
LEAST = 1e-4


def inside(
    counts: Floats,
    home: Ints,
    expert: Ints,
    node: Ints,
    weight: Floats,
    topology: Topology,
    limit: Floats,
) -> tuple[Ints, Ints, Ints]:
    """(expert [L, P], GPU [L, P], home GPU [C]) for replicas and clusters that have nodes.

    counts [C, L, E], home [C] node; expert, node, weight [L, P], weights and limit [L] in units of
    a GPU's mean load.
    """
    layers, nodes, per_node = len(expert), topology.nodes, topology.gpus_per_node
    rounded = np.round(weight, DIGITS)
    order = np.lexsort((expert, -rounded, node), axis=1)
    held = np.take_along_axis(expert, order, axis=1).reshape(layers, nodes, -1)
    what = held.reshape(layers * nodes, -1)
    heavy = np.take_along_axis(rounded, order, axis=1).reshape(what.shape)
    gpu = pack(Items(what, np.ones_like(what), heavy), counts.shape[2], per_node)
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
        gpu = settle(heavy, gain.reshape(*what.shape, per_node), gpu, np.repeat(limit, nodes))
    whole = gpu.reshape(held.shape) + per_node * np.arange(nodes)[:, None]
    return held.reshape(layers, -1), whole.reshape(layers, -1), rank + per_node * home


def settle(weight: Floats, gain: Floats, gpu: Ints, limit: Floats) -> Ints:
    """GPU [R, S] after exchanges that gain most, PRICE for load above `limit` [R] taken off.

    weight [R, S] and gain [R, S, g] in units of a GPU's mean load.
    """
    gpu, size = gpu.copy(), weight.shape[1]
    light, worth = weight.astype(np.float32), gain.astype(np.float32)
    shift = light[:, :, None] - light[:, None, :]
    top = limit.astype(np.float32)[:, None, None]
    active = np.arange(len(gpu))
    for _ in range(ROUNDS):
        place = gpu[active]
        on = _one_hot(place, gain.shape[2]).astype(np.float32)
        load = np.einsum("rs,rsg->rg", light[active], on)
        mine = np.take_along_axis(load, place, axis=1)
        wide = np.broadcast_to(place[:, None, :], (len(active), size, size))
        value = np.take_along_axis(worth[active], wide, axis=2)
        value -= np.take_along_axis(worth[active], place[:, :, None], axis=2)
        # On q's GPU when p comes for q.
        over = np.maximum(mine[:, None, :] + shift[active] - top[active], 0)
        over -= np.maximum(mine[:, None, :] - top[active], 0)
        value -= np.float32(PRICE) * over
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
