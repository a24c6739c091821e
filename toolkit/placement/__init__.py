"""Expert placement: which GPU holds which expert in which layer. `place(name, ...)` and `judge`."""

from collections.abc import Callable

from toolkit.placement.alltoall import SentCopies, Wire, between, sent
from toolkit.placement.base import Placement, from_gpus, from_sglang, load_placement
from toolkit.placement.clusters import Laid, lay
from toolkit.placement.eplb import eplb
from toolkit.placement.gimbal import gimbal, gimbal_knobs
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
    "check_placement",
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


def check_placement(name: str) -> str:
    """The placement's name without its knobs. ValueError: an unknown one (it lists the known ones),
    or knobs that it does not have."""
    known, mark, knobs = name.partition("@")
    if known not in PLACEMENTS or (mark and known != "gimbal"):
        listed = ", ".join(placement_names())
        raise ValueError(f"unknown placement {name!r}; known: {listed} (gimbal@ANCHOR:SIGMAS)")
    gimbal_knobs(knobs)
    return known


def place(
    name: str,
    traffic: Traffic,
    topology: Topology,
    redundant: int = 0,
    seed: int = 0,
    time_limit: float = 60.0,
) -> Placement:
    """A placement by name. Only `joint` uses the seed and only `milp` the time limit (seconds).

    Raises ValueError for unknown names (as `check_placement`) and for sizes that do not fit.
    """
    known = check_placement(name)
    if known == "gimbal":
        anchor, sigmas = gimbal_knobs(name.partition("@")[2])
        return gimbal(traffic, topology, redundant, anchor=anchor, sigmas=sigmas)
    return PLACEMENTS[known](traffic, topology, redundant, seed, time_limit)
