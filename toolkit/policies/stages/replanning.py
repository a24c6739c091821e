"""Stages that are planned anew, for the requests that decode now."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.partition import heuristic
from toolkit.policies.stages.population import of_live
from toolkit.policies.stages.problem import MoveCost, StageProblem
from toolkit.policies.stages.qoe import Qoe

LEAST = 4
"""Requests of each rank: fewer say too little of the lengths that come."""
GAIN = 0.05
"""By which share of a token's mean time other stages must be better."""


class Replanner:
    """`plan(live, layout) -> Layout | None`, once an interval.

    Which lengths and how many ranks each stage gets is planned by the heuristic that plans a
    deployment's stages (`partition.heuristic`), for the lengths that are live. There are never more
    stages than the file has. Stages that are not better by GAIN than those that are there, for the
    same lengths, are not taken. It takes some milliseconds for 16 ranks: not for an event loop.

    Source: CascadeInfer, section 4.2, where a coordinator plans again as lengths change; the least
    gain is *ours*.
    """

    def __init__(self, qoe: Qoe, most_stages: int) -> None:
        self._qoe = qoe
        self._most_stages = most_stages

    def plan(
        self, live: Sequence[tuple[int, int]], layout: Layout, move_s: float = 0.0
    ) -> Layout | None:
        """For the (prompt, KV tokens) of all that decodes, where `layout` is now; None: it stays.
        `move_s`: what a move stalls a request."""
        if len(live) < LEAST * layout.ranks:
            return None
        problem = StageProblem(
            of_live(live),
            layout.ranks,
            self._qoe,
            MoveCost(move_s),
            most_stages=self._most_stages,
        )
        found = heuristic(problem).layout
        if problem.quality_of(found) >= (1 - GAIN) * problem.quality_of(layout):
            return None
        return found
