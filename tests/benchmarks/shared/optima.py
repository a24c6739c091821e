"""Placements that users can choose, held against optima of Gimbal's eq. 12 on small instances."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.synthetic_routing import Recipe, token_ids
from toolkit.placement import Topology, Traffic, Weights, count, gimbal, joint, milp
from toolkit.placement.milp import objective

PROVEN = 1e-4
"""A gap of the solver below which its placement is called optimal."""
LIMIT_S = 30.0
Instance = tuple[int, int, int, int]
"""Layers, experts, GPUs, top k."""


@dataclass(frozen=True)
class Case:
    """One instance: the objective of HiGHS's placement (`best`), what no placement can beat
    (`bound`), and the objectives of those that users can choose."""

    instance: Instance
    seed: int
    alpha: float
    best: float
    bound: float
    proven: bool
    objectives: dict[str, float]

    def gap(self, kind: str) -> float | None:
        """Percent above the proven optimum; where none was, above the bound, which is at least as
        much. None: the bound says nothing."""
        against = self.best if self.proven else self.bound
        return None if against <= 0 else 100 * (self.objectives[kind] / against - 1)

    def told(self) -> dict[str, Any]:
        layers, experts, gpus, k = self.instance
        name = "gap_percent" if self.proven else "gap_at_most_percent"
        return {
            "instance": f"{layers} x {experts}, top {k}, {gpus} GPUs",
            "seed": self.seed,
            "alpha": self.alpha,
            "best_known": self.best,
            "bound": self.bound,
            "proven": self.proven,
            name: {kind: self.gap(kind) for kind in self.objectives},
        }


def instance_traffic(instance: Instance, seed: int) -> Traffic:
    layers, experts, _, k = instance
    recipe = Recipe(layers, experts, k, 1.0, families=3, topics=2, classes=3, document=16)
    return count(token_ids(2000, recipe, seed), experts)


def solved(instance: Instance, seed: int, alpha: float, limit_s: float = LIMIT_S) -> Case:
    """Solve one, and place it in every way that a user can, with no setting of ours for it."""
    traffic, topology = instance_traffic(instance, seed), Topology(instance[2])
    best = milp(traffic, topology, alpha=alpha, tied=False, time_limit=limit_s)
    placed = {
        "joint": joint(traffic, topology, 0, seed),
        "unguarded": joint(traffic, topology, 0, seed, Weights(drift=math.inf)),
        "gimbal": gimbal(traffic, topology, 0),
    }
    return Case(
        instance,
        seed,
        alpha,
        best.objective,
        best.bound,
        best.gap is not None and best.gap < PROVEN,
        {kind: objective(found, traffic, alpha, 1.0) for kind, found in placed.items()},
    )


def gap_keys(cases: Sequence[Case]) -> dict[str, Any]:
    """The benchmark's keys; no case is left out of `milp_cases`."""
    proven = [case for case in cases if case.proven]

    def mean(kind: str, among: Sequence[Case]) -> float:
        gaps = [gap for case in among if (gap := case.gap(kind)) is not None]
        return statistics.fmean(gaps) if gaps else float("nan")

    return {
        "milp_gap_percent": mean("joint", proven),
        "milp_gap_unguarded_percent": mean("unguarded", proven),
        "milp_gap_gimbal_percent": mean("gimbal", proven),
        "milp_gap_worst_percent": max(
            (gap for case in proven if (gap := case.gap("joint")) is not None), default=float("nan")
        ),
        "milp_gap_at_most_percent": mean("joint", cases),
        "milp_proven": len(proven),
        "milp_tried": len(cases),
        "milp_cases": [case.told() for case in cases],
    }
