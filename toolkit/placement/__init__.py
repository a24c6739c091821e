"""Expert placement: which GPU holds which expert in which layer. `place(name, ...)` and `judge`."""

from collections.abc import Callable

from toolkit.placement.alltoall import SentCopies, Wire, between, sent
from toolkit.placement.base import Placement, from_gpus, from_sglang, load_placement
from toolkit.placement.clusters import Laid, lay
from toolkit.placement.eplb import eplb
from toolkit.placement.gimbal import gimbal
from toolkit.placement.joint import Weights, joint
from toolkit.placement.judge import Judgement, StepCost, judge, least_crossing
from toolkit.placement.linear import linear
from toolkit.placement.milp import Solution, milp
from toolkit.placement.topology import Topology
from toolkit.placement.traffic import Traffic, count

__all__ = [
    "PLACEMENTS",
    "Judgement",
    "Laid",
    "Placement",
    "SentCopies",
    "Solution",
    "StepCost",
    "Topology",
    "Traffic",
    "Weights",
    "Wire",
    "between",
    "count",
    "eplb",
    "from_gpus",
    "from_sglang",
    "gimbal",
    "joint",
    "judge",
    "lay",
    "least_crossing",
    "linear",
    "load_placement",
    "milp",
    "place",
    "placement_names",
    "sent",
]

Maker = Callable[[Traffic, Topology, int, int, float], Placement]

PLACEMENTS: dict[str, Maker] = {
    "linear": lambda traffic, topology, redundant, seed, limit: linear(
        traffic.layers, traffic.experts, topology, redundant
    ),
    "eplb": lambda traffic, topology, redundant, seed, limit: eplb(traffic, topology, redundant),
    "gimbal": lambda traffic, topology, redundant, seed, limit: gimbal(
        traffic, topology, redundant
    ),
    "milp": lambda traffic, topology, redundant, seed, limit: (
        milp(traffic, topology, redundant, time_limit=limit).placement
    ),
    "joint": lambda traffic, topology, redundant, seed, limit: joint(
        traffic, topology, redundant, seed
    ),
}
"""Name -> function of (traffic, topology, redundant, seed, time limit in seconds)."""


def placement_names() -> list[str]:
    """Known placements."""
    return list(PLACEMENTS)


def place(
    name: str,
    traffic: Traffic,
    topology: Topology,
    redundant: int = 0,
    seed: int = 0,
    time_limit: float = 60.0,
) -> Placement:
    """A placement by name. Only `joint` uses the seed and only `milp` the time limit (seconds).

    Raises ValueError for unknown names (it lists the known ones) and for sizes that do not fit.
    """
    if name not in PLACEMENTS:
        raise ValueError(f"unknown placement {name!r}; known: {', '.join(placement_names())}")
    return PLACEMENTS[name](traffic, topology, redundant, seed, time_limit)
