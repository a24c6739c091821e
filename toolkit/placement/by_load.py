"""Experts placed by their load alone: what servers of one node need."""

import numpy as np
from numpy.typing import ArrayLike

from toolkit.placement.base import Placement, from_gpus
from toolkit.placement.replicas import items, pack, replicate
from toolkit.placement.topology import Topology


def by_load(load: ArrayLike, topology: Topology, redundant: int = 0) -> Placement:
    """Placement by load [L, E]: each further replica to the expert whose replicas are the busiest,
    then the heaviest first on the least loaded GPU (DeepSeek's EPLB without its groups; no two
    replicas of one expert on one GPU). Nodes are not looked at.

    Raises ValueError: another shape, counts that are negative or not finite, a layer without any,
    sizes that do not divide.
    """
    counts = np.asarray(load, np.float64)
    if counts.ndim != 2 or not counts.size:
        raise ValueError(f"load has shape {counts.shape}; [layers, experts] is needed")
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise ValueError("load holds counts that are negative or not finite")
    if not counts.any(axis=1).all():
        raise ValueError("load has a layer without any tokens")
    experts = counts.shape[1]
    topology.slots(experts, redundant)
    batch = items(counts, replicate(counts, redundant, topology.gpus), topology.gpus)
    gpu = pack(batch, experts, topology.gpus)
    return from_gpus(gpu, batch.expert, experts, topology.gpus)


def busiest(placement: Placement, loads: ArrayLike) -> np.ndarray:
    """[K]: the busiest GPU's load over the mean, mean of layers, for each of loads [K, L, E].

    Tokens go to each replica in turn. Raises ValueError: another shape than the placement's, a
    layer without any load.
    """
    counts = np.asarray(loads, np.float64)
    if counts.shape[1:] != (placement.layers, placement.experts):
        raise ValueError(
            f"loads have shape {counts.shape}; [K, {placement.layers}, {placement.experts}] is "
            "needed"
        )
    means = counts.sum(axis=2) / placement.gpus
    if not means.all():
        raise ValueError("loads have a layer without any")
    each = counts / placement.replicas()
    layers = np.arange(placement.layers)[:, None]
    slots = each[:, layers, placement.physical_to_logical]
    by_gpu = slots.reshape(*slots.shape[:2], placement.gpus, -1).sum(axis=3)
    found: np.ndarray = (by_gpu.max(axis=2) / means).mean(axis=1)
    return found
