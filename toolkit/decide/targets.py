"""Which rank a request can move to: it takes requests, and has a slot and KV free for this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.decide.ejection import usable as ejected_left_out
from toolkit.decide.watchdog import Health
from toolkit.policies.support.readings import read_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.decide.choosing import Chooser
    from toolkit.decide.ranks import RankState
    from toolkit.policies.base import RequestView


class Targets:
    """Looks for room by the last readings and what was sent since. The `prompt_tokens` of a view
    are all that the target has to take: prompt, and what was generated."""

    def __init__(self, choosing: Chooser, eject_share: float) -> None:
        self._choosing = choosing
        self._eject_share = eject_share

    def why_not(
        self, source: RankState, target: RankState, view: RequestView, now: float
    ) -> str | None:
        """Why this rank cannot take the request now; None when it can."""
        if target is source:
            return f"it is on {target.name} already"
        role = target.worker.spec.role
        if role != source.worker.spec.role:
            return f"{target.name} is a {role} worker"
        if not target.worker.healthy:
            return f"{target.name} is down"
        if target.held:
            return f"{target.name} is being drained"
        if target.health is not Health.HEALTHY:
            return f"{target.name} makes no step while it holds work"
        if target.worker.record.out:
            return f"{target.name} is left alone for a while: it failed requests"
        return _why_no_room(target, view.prompt_tokens, now)

    def best(
        self, source: RankState, ranks: Sequence[RankState], view: RequestView, now: float
    ) -> RankState | str:
        """Of several ranks the one that has the most KV free; why none can take it."""
        reasons = {rank: self.why_not(source, rank, view, now) for rank in ranks}
        able = [rank for rank, reason in reasons.items() if reason is None]
        if not able:
            return next(reason for reason in reasons.values() if reason is not None)
        return max(able, key=lambda rank: room_of(rank, now))

    def choose(self, source: RankState, view: RequestView, now: float) -> RankState | str:
        """The decode policy's choice among the others; why there is none."""
        choosing, role = self._choosing, source.worker.spec.role
        ranks = choosing.ranks.of(role)
        records = [rank.worker.record for rank in ranks]
        up = [rank.open and rank is not source for rank in ranks]
        if not any(up):
            return "there is no other worker that takes requests"
        usable = ejected_left_out(up, records, now, self._eject_share)
        length = view.prompt_tokens
        room = [
            ok and not _why_no_room(rank, length, now)
            for ok, rank in zip(usable, ranks, strict=True)
        ]
        if choosing.stages is not None and role == "decode":
            room = choosing.stages.narrow(length, room)
        if not any(room):
            return f"no other worker has a slot and {length} KV tokens free"
        views = [rank.view(now, ok) for rank, ok in zip(ranks, room, strict=True)]
        policy = choosing.policy(role)
        try:
            decision = policy.choose(views, view)
        except Exception as error:  # its own text may hold anything
            return f"policy {policy.name} failed ({type(error).__name__})"
        if decision is None or not room[decision.index]:
            return f"policy {policy.name} chose none of the others"
        return ranks[decision.index]


def room_of(rank: RankState, now: float) -> float:
    """KV tokens that one more request may bring; infinite where the pool's size is unknown."""
    return read_ranks([rank.view(now, True)]).room[0]


def _why_no_room(rank: RankState, tokens: int, now: float) -> str | None:
    view = rank.view(now, True)
    if view.load is None:
        return f"{rank.name} has not said how loaded it is"
    room = read_ranks([view])
    if room.slots[0] < 1:
        return f"{rank.name} has no free slot"
    if room.room[0] < tokens:
        return f"{rank.name} has no {tokens} KV tokens free"
    return None
