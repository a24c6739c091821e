"""Gimbal's engine selection as its paper has it, line by line."""

from collections.abc import Sequence

from msgspec.structs import replace

from toolkit.policies.base import Decision, RequestView, WorkerView, healthy_indices
from toolkit.policies.gimbal import GimbalPolicy, Thresholds

CHOSEN = ("least_kv", "least_load", "affinity")
"""The branches that take another engine than the next one."""


class PaperGimbalPolicy(GimbalPolicy):
    """Algorithm 1: `gimbal` without what we added.

    Formula: `gimbal`'s branches, with usage_i = used / total KV tokens and load_i = used + waiting
    tokens as published, and e* = the next engine of the list (line 1), which moves on at every
    request, whichever engine this gets in the end; of equal engines argmin is the first.

    Not in it, though in `gimbal`: what was sent since the reading, so that all requests between two
    readings find the same engine empty; turns by who was chosen least recently, also among equals;
    a user's engine must have published its load.
    Where the paper is silent, as in `gimbal`: affinity expires after 300 s and 100,000 users are
    remembered, as no time is given; engines that are down are left out; of what cannot be a load
    nothing is read. Degraded: as `gimbal`, but for the user's engine without a load.
    Knobs: `thresholds` (0.9, 0.10, 3000; `gimbal@paper:KV[:DIFF[:LOAD]]`), `expiry`, `capacity`.
    Source: Gimbal, "Multi-Layer Scheduling for MoE-Based LLM Reasoning", III B, Algorithm 1. Its
    Algorithm 2 is the order inside an engine: `toolkit.policies.sjf`.
    """

    name = "gimbal@paper"

    def __init__(
        self,
        seed: int = 0,
        thresholds: Thresholds | None = None,
        expiry: float = 300.0,
        capacity: int = 100_000,
    ) -> None:
        super().__init__(seed, thresholds, expiry, capacity)
        self._at = 0

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        healthy = healthy_indices(workers)
        if not healthy:
            return None
        index = self._next(healthy)
        published = [_published(worker) for worker in workers]
        branch, among = self._branch(published, healthy, request.user, request.now)
        if branch == "home_lost":
            branch, among = self._without_load(workers, healthy, request)
        if branch in CHOSEN:
            index = among[0]
        self.counters.decisions[branch] += 1
        if request.user:
            self.users.store(request.user, workers[index].key, request.now)
        return Decision(index, f"{branch}, one of {len(among)}")

    def _next(self, healthy: list[int]) -> int:
        """Line 1: the next engine of the list, after the last one the first."""
        index = next((i for i in healthy if i >= self._at), healthy[0])
        self._at = index + 1
        return index

    def _without_load(
        self, workers: Sequence[WorkerView], healthy: list[int], request: RequestView
    ) -> tuple[str, list[int]]:
        """Line 17 asks the map alone, not the engine's load."""
        assert request.user is not None
        home = self.users.find(request.user, request.now)
        at = [i for i in healthy if workers[i].key == home]
        return ("affinity", at) if at else ("home_lost", healthy)


def _published(worker: WorkerView) -> WorkerView:
    """The worker as its last reading has it."""
    if worker.load is None:
        return worker
    return replace(worker, load=replace(worker.load, sent_requests=0, sent_tokens=0))
