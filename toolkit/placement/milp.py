"""Gimbal's placement as a mixed-integer program, eq. 1 to 12, solved by HiGHS.

Tied, as in the paper: unit j is an expert on one GPU in every layer. Untied: unit (l, j). Binary
x[u, p] says unit u is on GPU p, continuous s[u, v, p] that u and v both are, D is the largest
deviation of a GPU's load from its layer's mean. Minimise alpha * D + beta * cut, with
  sum_p x = 1 (3), m/g experts a GPU (and layer) (4), |load - mean| <= D (8, 9),
  s <= x_u, s <= x_v (10), cut = sum W (1 - sum_p s) (11).
s >= x_u + x_v - 1 of (10) is left out: W >= 0, so the optimum raises s as far as the other two
allow. A pair counts with the weight of both directions (the paper's sum over j < k would lose one).

Two additions cut off no optimum and are what makes proofs possible:
- a unit has at most m/g partners in a group on its GPU: sum_v s[u, v, p] <= m/g * x[u, p]. Without
  it x = 1/g everywhere has a relaxed cut of zero;
- GPUs are interchangeable, so expert j of the first layer is on one of the first j + 1.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.placement.base import Placement, from_gpus
from toolkit.placement.gimbal import no_replicas
from toolkit.placement.topology import Topology
from toolkit.placement.traffic import Traffic

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_VARIABLES = 200_000
NOTHING = 1e-9
"""Of the traffic: an objective or a bound below it is zero."""


@dataclass(frozen=True, eq=False)
class Solution:
    """objective and bound: alpha * D + beta * cut of the placement, and what no other can beat.

    gap: (objective - bound) / objective, 0 where optimality is proven; None where the bound proves
    nothing (it is not above zero while the objective is).
    """

    placement: Placement
    objective: float
    bound: float
    gap: float | None


def objective(placement: Placement, traffic: Traffic, alpha: float, beta: float) -> float:
    """alpha * D + beta * cut (eq. 12) of a placement without replicas; D and cut in tokens."""
    no_replicas(placement.redundant, "eq. 12")
    held = placement.held().astype(np.float64)
    load = np.einsum("le,leg->lg", traffic.load, held)
    deviation = float(np.abs(load - load.mean(axis=1, keepdims=True)).max())
    same = sum(
        float(np.vdot(before, pairs @ after))
        for pairs, before, after in zip(traffic.affinity, held[:-1], held[1:], strict=True)
    )
    return alpha * deviation + beta * (float(traffic.affinity.sum()) - same)


def milp(
    traffic: Traffic,
    topology: Topology,
    redundant: int = 0,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    tied: bool = True,
    time_limit: float = 60.0,
) -> Solution:
    """Solve eq. 12 within `time_limit` seconds; nodes play no part in it.

    Raises ValueError for redundant experts, bad sizes and problems that cannot fit; TimeoutError
    where HiGHS finds no placement in time.
    """
    from scipy.optimize import Bounds, LinearConstraint
    from scipy.optimize import milp as solve

    no_replicas(redundant, "Gimbal's MILP")
    gpus, slots = topology.gpus, topology.slots(traffic.experts, 0)
    if alpha < 0 or beta < 0 or alpha + beta == 0:
        raise ValueError(f"alpha {alpha} and beta {beta} must not be negative, nor both zero")
    units = traffic.experts * (1 if tied else traffic.layers)
    pairs, weight = _pairs(traffic, tied)
    variables = gpus * (units + len(pairs)) + 1
    if variables > MOST_VARIABLES:
        raise ValueError(
            f"{traffic.layers} layers x {traffic.experts} experts on {gpus} GPUs need {variables} "
            f"variables, more than the {MOST_VARIABLES} that HiGHS can be expected to hold; use "
            "the placement 'joint', or fewer layers, experts or GPUs"
        )
    cost = np.concatenate(
        [np.zeros(units * gpus), -beta * np.repeat(weight, gpus), np.array([alpha])]
    )
    upper = np.ones(variables)
    upper[-1] = np.inf
    for expert in range(min(traffic.experts, gpus)):
        upper[expert * gpus + expert + 1 : (expert + 1) * gpus] = 0
    whole = np.zeros(variables)
    whole[: units * gpus] = 1
    matrix, low, high = _rows(traffic, gpus, slots, pairs, tied)
    result = solve(
        cost,
        integrality=whole,
        bounds=Bounds(np.zeros(variables), upper),
        constraints=LinearConstraint(matrix, low, high),
        options={"time_limit": float(time_limit), "mip_rel_gap": 1e-6},
    )
    if result.x is None:
        raise TimeoutError(
            f"HiGHS found no placement in {time_limit} s ({result.message.strip()}); give it more "
            "time or use the placement 'joint'"
        )
    chosen = result.x[: units * gpus].reshape(-1, traffic.experts, gpus).argmax(axis=2)
    gpu = np.broadcast_to(chosen, (traffic.layers, traffic.experts))
    every = np.tile(np.arange(traffic.experts), (traffic.layers, 1))
    placement = from_gpus(gpu, every, traffic.experts, gpus)
    value = objective(placement, traffic, alpha, beta)
    # Pairs that can never be cut (an expert with itself, tied) are in neither sum.
    bound = float(result.mip_dual_bound) + beta * float(weight.sum())
    # Both are differences of sums as large as all traffic: what rounding leaves of them is 0.
    least = NOTHING * (alpha * traffic.load.max() + beta * traffic.affinity.sum())
    value = value if value > least else 0.0
    bound = min(bound, value) if bound > least else 0.0
    gap = (value - bound) / value if value > 0 else 0.0
    return Solution(placement, value, bound, gap if bound > 0 or value == 0 else None)


def _pairs(traffic: Traffic, tied: bool) -> tuple[Ints, Floats]:
    """Unit pairs [S, 2] that have traffic, and their weights [S]."""
    experts = traffic.experts
    if tied:
        total = traffic.affinity.sum(axis=0)
        both = np.triu(total + total.T, 1)
        found = np.argwhere(both > 0)
        return found, both[both > 0]
    layer, one, other = np.nonzero(traffic.affinity)
    units = np.stack([layer * experts + one, (layer + 1) * experts + other], axis=1)
    return units, traffic.affinity[layer, one, other]


def _rows(
    traffic: Traffic, gpus: int, slots: int, pairs: Ints, tied: bool
) -> tuple[Any, Floats, Floats]:
    """The constraints as (sparse matrix, lower, upper); columns: x by unit and GPU, s, D."""
    from scipy.sparse import block_diag, coo_array, eye_array, hstack, kron, vstack

    layers, experts = traffic.load.shape
    groups = 1 if tied else layers
    units, count = groups * experts, len(pairs)
    gpu, s = eye_array(gpus), eye_array(count * gpus)
    means = np.repeat(traffic.load.sum(axis=1) / gpus, gpus)
    rows: list[tuple[Any, Floats | float, Floats | float]] = []

    def add(x: Any, s: Any, d: int, low: Floats | float, high: Floats | float) -> None:
        height = x.shape[0]
        s = coo_array((height, count * gpus)) if s is None else s
        rows.append((hstack([x, s, coo_array(np.full((height, 1), d))]), low, high))

    add(kron(eye_array(units), np.ones((1, gpus))), None, 0, 1, 1)  # (3)
    add(kron(kron(eye_array(groups), np.ones((1, experts))), gpu), None, 0, slots, slots)  # (4)
    weights = coo_array(traffic.load) if tied else block_diag([row[None] for row in traffic.load])
    load = kron(weights, gpu)
    add(load, None, -1, -np.inf, means)  # (8)
    add(load, None, 1, means, np.inf)  # (9)
    for side in (0, 1):  # (10)
        end = coo_array((np.ones(count), (np.arange(count), pairs[:, side])), (count, units))
        add(-kron(end, gpu), s, 0, -np.inf, 0)
    # Partners of a unit on its GPU: tied, both ends of a pair are each other's, in one group.
    column = np.arange(count)
    seen = [(pairs[:, 0], column), (pairs[:, 1], column)]
    if tied:
        seen = [(pairs.T.ravel(), np.tile(column, 2))]
    for who, which in seen:
        sums = coo_array((np.ones(len(who)), (who, which)), (units, count))
        most = slots - 1 if tied else slots
        add(-most * eye_array(units * gpus), kron(sums, gpu), 0, -np.inf, 0)
    matrix = vstack([row for row, _, _ in rows]).tocsr()
    heights = [row.shape[0] for row, _, _ in rows]
    low, high = (
        np.concatenate([np.broadcast_to(row[at], n) for row, n in zip(rows, heights, strict=True)])
        for at in (1, 2)
    )
    return matrix, low, high
