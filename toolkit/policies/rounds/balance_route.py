"""What BR-0 and BR-H share: rounds in two stages, and one request at a time."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from toolkit.policies.base import Decision, Needs, RequestView, WorkerView
from toolkit.policies.rounds.assign import Assigner, Assignment
from toolkit.policies.rounds.two_stage import (
    R_MAX,
    WAIT_LIMIT,
    Envelope,
    Near,
    RoundCounters,
    TwoStage,
)
from toolkit.policies.support.readings import Ranks, kv_sizes, kv_tokens, read_ranks


def check_s_greedy(text: str) -> int:
    """`TwoStage.s_greedy` as a number. ValueError: no whole number, or a negative one."""
    try:
        value = int(text)
    except ValueError as error:
        raise ValueError(f"s_greedy = {text} must be a number of slots, 0 or more") from error
    if value < 0:
        raise ValueError(f"s_greedy = {value} must not be negative")
    return value


@dataclass(frozen=True)
class Weighed:
    """A request of `size` KV tokens before the ranks; `values` is F on each of them."""

    size: float
    envelope: Envelope

    @cached_property
    def values(self) -> list[float]:
        return self.envelope.across(self.size)


class BalanceRoute(Assigner):
    """Rounds, and one request at a time. A subclass says what a placement is worth."""

    needs = Needs(pool=True)
    by_slots = False
    """The paper's stage 1, see `TwoStage`."""

    def __init__(
        self,
        seed: int = 0,
        s_greedy: int | None = None,
        r_max: int = R_MAX,
        wait_limit: float = WAIT_LIMIT,
    ) -> None:
        """`seed` as every policy takes it; nothing is drawn here. The others: `TwoStage`."""
        self._stages = TwoStage(s_greedy, r_max, wait_limit, self.by_slots)
        self.counters: RoundCounters = self._stages.counters

    @abstractmethod
    def _envelope(self, ranks: Ranks) -> Envelope:
        """The loads at the start of a round."""

    def _alone(self, ranks: Ranks) -> Envelope:
        """The same for a request that comes alone (the pool bypass)."""
        return self._envelope(ranks)

    def assign(
        self,
        workers: Sequence[WorkerView],
        waiting: Sequence[RequestView],
        near: Near | None = None,
    ) -> list[Assignment]:
        """One round; see `Assigner`. `near` as in `TwoStage`."""
        ranks = read_ranks(workers)
        if not waiting or not ranks.index:
            return []
        envelope = self._alone(ranks) if len(waiting) == 1 else self._envelope(ranks)
        return self._stages.assign(ranks, kv_sizes(waiting), envelope, near)

    def choose(self, workers: Sequence[WorkerView], request: RequestView) -> Decision | None:
        """For who has no pool: a round with this request alone. Where no rank has a slot and room
        for it, it must wait on one of them: on the one with the best F (*ours*)."""
        ranks = read_ranks(workers)
        if not ranks.index:
            return None
        return self.place(ranks, self.weigh(ranks, request), range(len(ranks.index)))

    def weigh(self, ranks: Ranks, request: RequestView) -> Weighed:
        """F of this request on every rank."""
        return Weighed(kv_tokens(request), self._alone(ranks))

    def best(self, ranks: Ranks, weighed: Weighed, among: Sequence[int]) -> list[int]:
        """Those of `among` (positions in `ranks`, at least one) between which `place` chooses by
        something else than F: of those that can take the request now, or where none can of all, the
        ones with the best F that are not silent. One that no pool could hold has no F."""
        size, slots, room = weighed.size, ranks.slots, ranks.room
        if size > ranks.pool:
            return list(among)
        left = [g for g in among if slots[g] >= 1 and room[g] >= size] or among
        left = [g for g in left if not ranks.silent[g]] or left
        most = max([weighed.values[g] for g in left])
        return [g for g in left if weighed.values[g] == most]

    def place(self, ranks: Ranks, weighed: Weighed, among: Sequence[int]) -> Decision:
        """`choose` among some of the ranks, at least one; all of them wait at the barrier. What
        was read and weighed is used up."""
        if len(among) < len(ranks.slots):
            allowed = set(among)
            ranks.slots = [free if g in allowed else 0.0 for g, free in enumerate(ranks.slots)]
        made = self._stages.assign(ranks, [weighed.size], weighed.envelope)
        if made:
            return Decision(made[0].worker, made[0].reason)
        values = weighed.values
        fresh = [g for g in among if not ranks.silent[g]] or among
        best = max(fresh, key=lambda g: (values[g], -ranks.load[g]))
        return Decision(ranks.index[best], f"all are full, F {values[best]:.0f}")
