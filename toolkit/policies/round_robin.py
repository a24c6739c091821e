"""Strict rotation over healthy workers."""

from collections.abc import Sequence

from toolkit.policies.base import Decision, Policy, RequestView, WorkerView, healthy_indices
from toolkit.policies.support.rotation import Rotation


class RoundRobinPolicy(Policy):
    """The healthy worker that was chosen the longest ago.

    Formula: argmin last_turn_i over healthy workers. With a fixed set this is plain rotation;
    unlike a counter modulo the number of workers it stays fair when workers come and go (a
    counter skips or repeats neighbours then), and it cannot fall in step with the request ids
    (sglang#16080: "round_robin" under PD was bootstrap_room % dp). Degraded: needs no load; a
    worker that returns gets the next turn, once. Knobs: `seed`, where it begins.
    """

    name = "round_robin"

    def __init__(self, seed: int = 0) -> None:
        self._rotation = Rotation(seed)

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        healthy = healthy_indices(workers)
        if not healthy:
            return None
        return Decision(self._rotation.take(workers, healthy), "its turn")
