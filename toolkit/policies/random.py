"""Uniform random choice."""

from collections.abc import Sequence
from random import Random

from toolkit.policies.base import Decision, Policy, RequestView, WorkerView, healthy_indices


class RandomPolicy(Policy):
    """A healthy worker, uniformly.

    Formula: P(i) = 1 / healthy. Needs no load; the floor that other policies must beat, and a safe
    choice when several routers share workers without seeing each other. Degraded: nothing can
    be missing. Knobs: `seed`.
    """

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        healthy = healthy_indices(workers)
        if not healthy:
            return None
        return Decision(self._random.choice(healthy), f"one of {len(healthy)}")
