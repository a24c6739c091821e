"""Prefix affinity: send a prompt where its beginning was prefilled before."""

from collections import OrderedDict
from collections.abc import Sequence

from toolkit.policies.base import Decision, Needs, Policy, RequestView, WorkerView, healthy_indices
from toolkit.policies.support.rotation import Rotation


class PrefixAffinityPolicy(Policy):
    """The worker holding the longest known prefix, unless it is too busy (prefill side).

    Formula: argmax match_i over healthy workers, match_i = leading blocks of the prompt that
    worker i was sent before, if requests_best - min requests <= `max_imbalance` (requests);
    otherwise, or with no match, the shortest queue. The match saves prefill work on the cached
    blocks; the guard stops one popular prefix from piling its users onto one worker. Among equal
    matches the shorter queue wins, then the least recently chosen.

    What a worker holds is inferred from what this object sent to it, not read from its cache:
    after evictions there a match can be wrong, which costs a normal prefill and nothing else. A
    worker that was started again holds nothing. Degraded: without blocks (not computed, prompt
    shorter than a block) it is the shortest queue. Knobs: `max_imbalance` (requests), `capacity`
    (block hashes remembered over all workers, least recently used out first; about 200 bytes each).
    Source: the idea of SGLang's cache_aware routing (sgl-model-gateway policies/cache_aware.rs),
    with block hashes in place of its radix tree.
    """

    name = "prefix_affinity"
    needs = Needs(blocks=True)

    def __init__(self, seed: int = 0, max_imbalance: int = 8, capacity: int = 100_000) -> None:
        self._rotation = Rotation(seed)
        self._max_imbalance = max_imbalance
        self._capacity = capacity
        self._holders: OrderedDict[int, set[tuple[str, int, int]]] = OrderedDict()
        """Ranks, each in the life of its worker in which it was sent the block."""
        self._lives: dict[str, int] = {}
        """How often each worker was replaced."""

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        healthy = healthy_indices(workers)
        if not healthy:
            return None
        shortest = min(workers[i].requests for i in healthy)
        allowed = [i for i in healthy if workers[i].requests - shortest <= self._max_imbalance]
        matches = {i: self._match(workers[i], request.blocks) for i in allowed}
        longest = max(matches.values())
        candidates = [i for i in allowed if matches[i] == longest]
        queue = min(workers[i].requests for i in candidates)
        ties = [i for i in candidates if workers[i].requests == queue]
        index = self._rotation.take(workers, ties)
        self._remember(workers[index], request.blocks)
        return Decision(index, f"{longest} of {len(request.blocks)} blocks, {queue} requests")

    def replaced(self, worker: str) -> None:
        self._lives[worker] = self._lives.get(worker, 0) + 1

    def __len__(self) -> int:
        """Block hashes remembered now."""
        return len(self._holders)

    def _key(self, worker: WorkerView) -> tuple[str, int, int]:
        return worker.name, worker.dp_rank, self._lives.get(worker.name, 0)

    def _match(self, worker: WorkerView, blocks: tuple[int, ...]) -> int:
        key = self._key(worker)
        for count, block in enumerate(blocks):
            if key not in self._holders.get(block, ()):
                return count
        return len(blocks)

    def _remember(self, worker: WorkerView, blocks: tuple[int, ...]) -> None:
        # Last block first: a chain's head is then the most recent and leaves last, as a prefix
        # without its head can never match.
        key = self._key(worker)
        for block in reversed(blocks):
            self._holders.setdefault(block, set()).add(key)
            self._holders.move_to_end(block)
        while len(self._holders) > self._capacity:
            self._holders.popitem(last=False)
