"""Join the shortest queue, in KV tokens."""

from collections.abc import Sequence

from toolkit.policies.base import Decision, Policy, RequestView, WorkerView
from toolkit.policies.support.readings import read_ranks
from toolkit.policies.support.rotation import Rotation


class KvShortestQueuePolicy(Policy):
    """The healthy worker with the fewest KV tokens.

    Formula: argmin L_i, L_i = used + waiting + sent tokens, as BR-0 reads it (`read_ranks`). A
    decode step's time follows the KV tokens that it reads, not the requests, so this is the queue
    to join where their sizes differ; `sent` keeps every request between two readings from joining
    the same one. It looks at no rank's slots and chooses at once, without a pool: the baseline that
    tells what BalanceRoute's score adds to counting tokens. Ties go to the fewest requests, then to
    the least recently chosen.

    Degraded: a worker without a possible reading counts as the heaviest, or by this router's own
    tokens in flight where nobody has one. Knobs: none. Source: SGLang's `total_tokens` of the DP
    controller (`data_parallel_controller.py`), with the reading corrected.
    """

    name = "kv_shortest_queue"

    def __init__(self, seed: int = 0) -> None:
        self._rotation = Rotation(seed)

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        ranks = read_ranks(workers)
        if not ranks.index:
            return None
        # Silent ones last: their load is a guess.
        keys = [
            (silent, load, workers[i].requests)
            for i, load, silent in zip(ranks.index, ranks.load, ranks.silent, strict=True)
        ]
        best = min(keys)
        ties = [i for i, key in zip(ranks.index, keys, strict=True) if key == best]
        return Decision(self._rotation.take(workers, ties), f"{best[1]:.0f} KV tokens")
