"""What BR-0 and BR-H share: rounds in two stages, and one request at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from toolkit.policies.assign import Assignment
from toolkit.policies.base import Decision, RequestView, WorkerView
from toolkit.policies.readings import Ranks, kv_sizes, kv_tokens, read_ranks
from toolkit.policies.two_stage import PATIENCE, R_MAX, Counters, Envelope, TwoStage


class BalanceRoute(ABC):
    """An `Assigner` that is a `Policy` too. A subclass says what a placement is worth."""

    name = ""
    needs_blocks = False

    def __init__(
        self, s_greedy: int | None = None, r_max: int = R_MAX, patience: float = PATIENCE
    ) -> None:
        self._stages = TwoStage(s_greedy, r_max, patience)

    @property
    def counters(self) -> Counters:
        return self._stages.counters

    @abstractmethod
    def _envelope(self, ranks: Ranks) -> Envelope:
        """The loads at the start of a round."""

    def assign(
        self, workers: Sequence[WorkerView], waiting: Sequence[RequestView]
    ) -> list[Assignment]:
        """One round; see `Assigner`."""
        ranks = read_ranks(workers)
        if not waiting or not ranks.index:
            return []
        sizes = kv_sizes(waiting)
        return self._stages.assign(ranks, sizes, self._envelope(ranks))

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        """For who has no pool: a round with this request alone. Where no rank has a slot and room
        for it, it must wait on one of them: on the one with the best F (*ours*)."""
        made = self.assign(workers, [request])
        if made:
            return Decision(made[0].worker, made[0].reason)
        ranks = read_ranks(workers)
        if not ranks.index:
            return None
        values = self._envelope(ranks).across(kv_tokens(request))
        fresh = [g for g, silent in enumerate(ranks.silent) if not silent]
        best = max(fresh, key=lambda g: (values[g], -ranks.load[g]))
        return Decision(ranks.index[best], f"all are full, F {values[best]:.0f}")
