"""Power of two choices."""

from collections.abc import Sequence
from random import Random

from toolkit.policies.base import Decision, Policy, RequestView, WorkerView, healthy_indices


class PowerOfTwoPolicy(Policy):
    """Two different healthy workers at random, then the one with fewer requests.

    Formula: argmin over {i, j} ~ uniform pairs of (running + waiting + sent), in requests. Two
    samples already bring the longest queue from log n / log log n down to log log n, and since
    routers do not all see the same pair they do not herd onto one worker when readings are old.
    A tie goes to the first sample, which is itself random. Degraded: a worker without a
    reading is counted by this router's own requests in flight; with one worker there is no
    choice. Knobs: `seed`. Source: Mitzenmacher, "The power of two choices in randomized load
    balancing", IEEE TPDS 12(10), 2001.
    """

    name = "power_of_two"

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        healthy = healthy_indices(workers)
        if not healthy:
            return None
        if len(healthy) == 1:
            return Decision(healthy[0], "the only one")
        first, second = self._random.sample(healthy, 2)
        best = min(first, second, key=lambda i: workers[i].requests)
        if workers[first].requests == workers[second].requests:
            best = first
        other = second if best == first else first
        return Decision(best, f"{workers[best].requests} against {workers[other].requests}")
