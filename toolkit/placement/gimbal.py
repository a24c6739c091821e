"""Gimbal's Algorithm 3 as published (arXiv text in `papers/gimbal.txt`, section III-C).

1. Affinity placement: all experts that appear in the affinity matrix M go to the anchor GPU.
2. Greedy balancing: the remaining experts, busiest first, each to the least loaded GPU.
An expert's GPU is the same in every layer, and the paper knows no replicas.

Where the text is silent (ours): an expert's activation is its sum over layers, since its GPU is
tied. Every GPU holds m/g experts, as eq. 4 has it. M keeps the expert pairs whose weight
W_jk + W_kj (eq. 2, both directions) lies `sigmas` standard deviations above the mean, strongest
first, for as long as both fit on the anchor ("tightening the statistical threshold"). Anchor and
`sigmas` are settings: `gimbal@ANCHOR:SIGMAS`.
"""

import numpy as np

from toolkit.placement.base import Placement, from_gpus
from toolkit.placement.topology import Topology
from toolkit.placement.traffic import Traffic

ANCHOR = 0
SIGMAS = 3.0


def gimbal_knobs(text: str) -> tuple[int, float]:
    """The anchor GPU and the threshold of M, of `ANCHOR`, `ANCHOR:SIGMAS` or nothing.

    Raises:
        ValueError: it is none of these.
    """
    anchor, _, sigmas = text.partition(":")
    try:
        found = int(anchor or ANCHOR), float(sigmas or SIGMAS)
    except ValueError:
        found = (-1, -1.0)
    if found[0] < 0 or not 0 <= found[1] < float("inf"):
        raise ValueError(
            f"{text!r} is no ANCHOR:SIGMAS of Gimbal's placement: give a GPU, and how many "
            "standard deviations above the mean a pair of experts must lie, as in 2:1.5"
        )
    return found


def gimbal(
    traffic: Traffic,
    topology: Topology,
    redundant: int = 0,
    *,
    anchor: int = ANCHOR,
    sigmas: float = SIGMAS,
) -> Placement:
    """Algorithm 3 with GPU `anchor`; raises ValueError for redundant experts and bad sizes."""
    no_replicas(redundant, "Gimbal's Algorithm 3")
    slots = topology.slots(traffic.experts, 0)
    if not 0 <= anchor < topology.gpus:
        raise ValueError(f"anchor GPU {anchor} is not one of 0 to {topology.gpus - 1}")
    activation = traffic.load.sum(axis=0)
    gpu = np.full(traffic.experts, -1)
    gpu[_linked(traffic, slots, sigmas)] = anchor
    used = np.bincount(gpu[gpu >= 0], minlength=topology.gpus)
    load = np.bincount(gpu[gpu >= 0], activation[gpu >= 0], topology.gpus)
    for expert in np.argsort(-activation, kind="stable"):
        if gpu[expert] < 0:
            gpu[expert] = least = np.where(used < slots, load, np.inf).argmin()
            used[least] += 1
            load[least] += activation[expert]
    tied = np.tile(gpu, (traffic.layers, 1))
    expert = np.tile(np.arange(traffic.experts), (traffic.layers, 1))
    return from_gpus(tied, expert, traffic.experts, topology.gpus)


def no_replicas(redundant: int, what: str) -> None:
    """ValueError for redundant experts where the source has none."""
    if redundant:
        raise ValueError(
            f"{what} places each expert once: the paper has no redundant experts. Use 0 instead of "
            f"{redundant}, or the placement 'joint' or 'eplb'"
        )


def _linked(traffic: Traffic, slots: int, sigmas: float) -> list[int]:
    """Experts of the strongest pairs, at most `slots`."""
    weight = traffic.affinity.sum(axis=0)
    pairs = np.triu(weight + weight.T, 1)
    one, other = np.triu_indices(traffic.experts, 1)
    values = pairs[one, other]
    # Where all pairs are equal, rounding may leave their mean a bit below them.
    threshold = (values.mean() + sigmas * values.std()) * (1 + 1e-9)
    linked: list[int] = []
    for pair in np.argsort(-values, kind="stable"):
        if values[pair] <= threshold:
            break
        new = [int(e) for e in (one[pair], other[pair]) if e not in linked]
        if len(linked) + len(new) > slots:
            break
        linked += new
    return linked
