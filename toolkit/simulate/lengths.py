"""Tokens of simulated answers, counted by the steps of their ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from toolkit.policies.following import Following, Key

if TYPE_CHECKING:
    from toolkit.policies.base import Group, Policy, RequestView
    from toolkit.simulate.movable import Movable
    from toolkit.simulate.rank import SimulatedRank
    from toolkit.simulate.worker_states import SimulatedRankState


class SteppedFollowing(Following):
    """What is in flight, as elsewhere; but nobody hears a simulated token. Ranks are asked for
    their steps when somebody wants to know (`catch_up`), and each answer is set right by what it
    has said (`has_said`) where steps do not tell: when it begins, moves, and ends."""

    def __init__(self, policy: Policy, ranks: Mapping[Key, SimulatedRankState]) -> None:
        super().__init__(policy.inflight, policy.locality)
        self._ranks = ranks
        self._of: dict[Movable, list[tuple[Key, SimulatedRank]]] = {}
        for key, state in ranks.items():
            self._of.setdefault(state.loop, []).append((key, state.rank))
        self._seen: dict[Movable, tuple[int, int]] = {}
        """Of each loop, its `progress` at the last look at all of them."""
        self._told: dict[Key, int] = {}
        """Of each rank, tokens of its steps that were counted (`Loop.tokens_of`)."""
        self._since: dict[str, tuple[Key, int]] = {}
        """Where each request is, and how many of these were not its own."""

    def sent(
        self, rid: str, key: Key, group: Group, request: RequestView, generated: int = 0
    ) -> None:
        if self.lengths:
            self._catch_up(key)
            self._since[rid] = key, self._told[key]
        super().sent(rid, key, group, request, generated)

    def has_said(self, rid: str, tokens: int) -> None:
        """So many tokens of its answer, since it was sent there, in all."""
        if not self.lengths:
            return
        key, since = self._since[rid]
        self._catch_up(key)
        told = self._told[key]
        self.counted(rid, tokens - (told - since))
        self._since[rid] = key, told - tokens

    def ended(self, rid: str, finished: bool = True) -> None:
        self._since.pop(rid, None)
        super().ended(rid, finished)

    def catch_up(self) -> None:
        """Count the steps that the ranks have done since."""
        if not self.lengths:
            return
        told, given = self._told, {}
        for loop, ranks in self._of.items():
            progress = loop.progress()
            if progress == self._seen.get(loop):
                continue
            self._seen[loop] = progress
            steps, skips = progress
            done = loop.said_in(steps)
            for key, rank in ranks:
                if skips:
                    done = loop.said_in(steps - rank.skipped)  # `tokens_of`
                before = told.get(key, done)
                if done != before:
                    given[key] = done - before
                told[key] = done
        if given:
            self.all_stepped(given)

    def _catch_up(self, key: Key) -> None:
        state = self._ranks[key]
        done = state.loop.tokens_of(state.rank)
        before = self._told.get(key, done)
        if done > before:
            self.stepped(key, done - before)
        self._told[key] = done
