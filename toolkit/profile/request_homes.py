"""Which DP rank of one server each request comes to decode on, by a policy."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from toolkit.policies.base import Policy, RequestView, WorkerView

SERVER = "wide"
"""Its name, for policies that have a map of it."""


def request_homes(
    policy: Policy, signatures: NDArray[np.float32], ranks: int, per_rank: int
) -> tuple[NDArray[np.int64], list[float]]:
    """DP rank of each request [N] with these signatures [N, D], and the fullest rank's requests /
    mean after each one that came when half of what may be in flight was.

    They come one after the other; with `per_rank` a rank in flight the oldest ends for each.
    """
    queues, flying, chosen, uneven = [0] * ranks, deque[int](), [], []
    for signature in signatures:
        if len(flying) == ranks * per_rank:
            queues[flying.popleft()] -= 1
        views = [
            WorkerView(SERVER, dp_rank=rank, inflight=queue, shares_experts=True)
            for rank, queue in enumerate(queues)
        ]
        decision = policy.choose(views, RequestView(signature=signature))
        assert decision is not None
        queues[decision.index] += 1
        flying.append(decision.index)
        chosen.append(decision.index)
        if len(flying) >= ranks * per_rank // 2:
            uneven.append(max(queues) * ranks / len(flying))
    return np.array(chosen, np.int64), uneven
