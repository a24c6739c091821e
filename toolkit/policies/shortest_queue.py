"""Join the shortest queue."""

from collections.abc import Sequence

from toolkit.policies.base import Decision, Policy, RequestView, WorkerView, healthy_indices
from toolkit.policies.support.rotation import Rotation


class ShortestQueuePolicy(Policy):
    """The healthy worker with the fewest requests.

    Formula: argmin (running_i + waiting_i + sent_i), in requests. `running + waiting` is the
    worker's last published reading, `sent` what this router posted after it: without that term
    every request between two readings joins the same queue (sglang#25142). Ties go to the
    least recently chosen, so that equal workers share the load. Degraded: a worker without a
    reading is counted by this router's own requests in flight. Knobs: none.
    Source: Winston, "Optimality of the shortest line discipline", 1977.
    """

    name = "shortest_queue"

    def __init__(self, seed: int = 0) -> None:
        self._rotation = Rotation(seed)

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        healthy = healthy_indices(workers)
        if not healthy:
            return None
        shortest = min(workers[i].requests for i in healthy)
        ties = [i for i in healthy if workers[i].requests == shortest]
        return Decision(self._rotation.take(workers, ties), f"{shortest} requests")
