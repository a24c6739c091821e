"""Ours under Gimbal's objective, eq. 12, so that it can be held against a proven optimum."""

from dataclasses import replace

import numpy as np

from toolkit.placement.base import Placement, from_gpus
from toolkit.placement.joint import ROUNDS, Weights, solve, state
from toolkit.placement.milp import objective
from toolkit.placement.swaps import improve
from toolkit.placement.topology import Topology
from toolkit.placement.traffic import Traffic

STEPS = 24


def joint_for(
    traffic: Traffic, topology: Topology, alpha: float, beta: float, seed: int = 0
) -> tuple[Placement, float]:
    """The best placement for alpha * D + beta * cut, untied and without replicas; its objective.

    `joint` minimises the cut within load limits, so D is tried on a ladder: from below that of a
    start improved for balance alone to where it limits nothing.
    """
    flat = Topology(topology.gpus)
    problem = state(traffic, flat, 0, Weights(drift=np.inf))
    mean = traffic.load.sum(axis=1) / flat.gpus
    gain = np.zeros((traffic.experts, flat.gpus), np.float32)
    even = [replace(layer, limit=1.0, floor=1.0) for layer in problem.layers]
    start = np.stack(
        [
            improve(layer, gain, gpu, 1e3, 3 * ROUNDS)
            for layer, gpu in zip(even, problem.start, strict=True)
        ]
    )
    problem = replace(problem, start=start)
    least = max(
        float(np.abs(layer.loads(gpu) - 1).max() * m)
        for layer, gpu, m in zip(even, start, mean, strict=True)
    )
    best: tuple[Placement, float] | None = None
    ladder = np.geomspace(max(least / 4, 1e-3 * mean.max()), flat.gpus * mean.max(), STEPS)
    # Rounded: the last bit of a power is the CPU's.
    for deviation in ladder.round(9):
        layers = tuple(
            replace(layer, limit=1 + deviation / m, floor=1 - deviation / m)
            for layer, m in zip(even, mean, strict=True)
        )
        gpu = solve(replace(problem, layers=layers), seed)
        placement = from_gpus(gpu, problem.items.expert, traffic.experts, flat.gpus)
        value = objective(placement, traffic, alpha, beta)
        if best is None or value < best[1]:
            best = placement, value
    assert best is not None
    return best
