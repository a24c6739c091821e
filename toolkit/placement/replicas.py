"""How many replicas each expert gets, and a start that is balanced by load alone.

Both follow DeepSeek's EPLB (github.com/deepseek-ai/EPLB): replicate the expert whose replicas are
the busiest, then pack the heaviest first on the least loaded GPU. Unlike EPLB the packing avoids
two replicas of one expert on one GPU, and no expert gets more replicas than there are GPUs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DIGITS = 12
"""Of shares and of loads in units of a GPU's: what differs by less is equal, and the lower number
goes first. 2/3 + 1/3 is not 1/3 + 2/3 in every order, and no tie is to hang on that."""


@dataclass(frozen=True, eq=False)
class Items:
    """The P replicas of every layer, heaviest first.

    expert [L, P]: whose replica it is; copies [L, P]: how many that expert has; weight [L, P]:
    the replica's share of the load, in units of a GPU's mean load.
    """

    expert: Ints
    copies: Ints
    weight: Floats


def replicate(load: Floats, redundant: int, gpus: int) -> Ints:
    """Replica counts [L, E] for load [L, E]: each further one to the busiest replica's expert."""
    counts = np.ones(load.shape, np.int64)
    rows = np.arange(len(load))
    share = load / load.sum(axis=1, keepdims=True)
    for _ in range(redundant):
        each = np.round(share / counts, DIGITS)
        busiest = np.where(counts < gpus, each, -1.0).argmax(axis=1)
        counts[rows, busiest] += 1
    return counts


def items(load: Floats, counts: Ints, gpus: int) -> Items:
    """The replicas that `counts` [L, E] asks for (equally many in every layer), heaviest first."""
    layers, physical = len(load), int(counts[0].sum())
    expert = np.empty((layers, physical), np.int64)
    for layer in range(layers):
        expert[layer] = np.repeat(np.arange(load.shape[1]), counts[layer])
    copies = np.take_along_axis(counts, expert, axis=1)
    weight = np.take_along_axis(load / load.sum(axis=1, keepdims=True) * gpus, expert, axis=1)
    weight = np.round(weight / copies, DIGITS)
    order = np.argsort(-weight, axis=1, kind="stable")
    return Items(*(np.take_along_axis(array, order, axis=1) for array in (expert, copies, weight)))


def pack(batch: Items, experts: int, gpus: int) -> Ints:
    """GPU of each item [L, P]: heaviest first, on the least loaded GPU with a free slot.

    A GPU that holds the expert already is taken only where no other has a free slot.
    """
    layers, physical = batch.expert.shape
    slots = physical // gpus
    rows = np.arange(layers)
    loads, used = np.zeros((layers, gpus)), np.zeros((layers, gpus), np.int64)
    held = np.zeros((layers, experts, gpus), bool)
    gpu = np.empty((layers, physical), np.int64)
    for item in range(physical):
        expert = batch.expert[:, item]
        price = np.round(loads, DIGITS) + 1e6 * held[rows, expert]
        gpu[:, item] = chosen = np.where(used < slots, price, np.inf).argmin(axis=1)
        loads[rows, chosen] += batch.weight[:, item]
        used[rows, chosen] += 1
        held[rows, expert, chosen] = True
    return gpu
