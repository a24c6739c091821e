"""Which rank a request can move to: it takes requests, and has a slot and KV free for this one."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from toolkit.decide.ejection import usable as ejected_left_out
from toolkit.decide.watchdog import Health
from toolkit.policies.support.readings import read_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.policies.base import WorkerView
    from toolkit.router.known_workers import KnownWorkers
    from toolkit.router.moves.live import Live
    from toolkit.router.worker import Rank


class Targets:
    """Looks for room by the last readings and what was sent since."""

    def __init__(self, known_workers: KnownWorkers, eject_share: float) -> None:
        self._known_workers = known_workers
        self._eject_share = eject_share

    def why_not(self, live: Live, target: Rank) -> str | None:
        """Why this rank cannot take the request now; None when it can."""
        source = live.rank
        if target is source:
            return f"it is on {target.name} already"
        if source is not None and target.worker.config.role != source.worker.config.role:
            return f"{target.name} is a {target.worker.config.role} worker"
        if not target.worker.healthy:
            return f"{target.name} is down"
        if target.held:
            return f"{target.name} is being drained"
        if target.health is not Health.HEALTHY:
            return f"{target.name} makes no step while it holds work"
        if target.worker.record.out:
            return f"{target.name} is left alone for a while: it failed requests"
        return _why_no_room(target, live.length)

    def best(self, live: Live, ranks: Sequence[Rank]) -> Rank | str:
        """Of several ranks the one that has the most KV free; why none can take it."""
        reasons = {rank: self.why_not(live, rank) for rank in ranks}
        able = [rank for rank, reason in reasons.items() if reason is None]
        if not able:
            return next(reason for reason in reasons.values() if reason is not None)
        return max(able, key=room_of)

    def choose(self, live: Live) -> Rank | str:
        """The decode policy's choice among the others; why there is none."""
        source = live.rank
        assert source is not None
        role = source.worker.config.role
        ranks = self._known_workers.side(role)
        now = monotonic()
        records = [rank.worker.record for rank in ranks]
        up = [rank.open and rank is not source for rank in ranks]
        if not any(up):
            return "there is no other worker that takes requests"
        usable = ejected_left_out(up, records, now, self._eject_share)
        length = live.length
        room = [
            ok and not _why_no_room(rank, length) for ok, rank in zip(usable, ranks, strict=True)
        ]
        choosing = self._known_workers.decider.choosing
        if choosing.stages is not None and role == "decode":
            room = choosing.stages.narrow(length, room)
        if not any(room):
            return f"no other worker has a slot and {length} KV tokens free"
        views = [rank.view(now, ok) for rank, ok in zip(ranks, room, strict=True)]
        policy = choosing.policy(role)
        decision = policy.choose(views, replace(live.view(), now=now))
        if decision is None or not room[decision.index]:
            return f"policy {policy.name} chose none of the others"
        return ranks[decision.index]


def room_of(rank: Rank) -> float:
    """KV tokens that one more request may bring; infinite where the pool's size is unknown."""
    return read_ranks([rank.view(monotonic(), True)]).room[0]


def _why_no_room(rank: Rank, tokens: int) -> str | None:
    view: WorkerView = rank.view(monotonic(), True)
    if view.load is None:
        return f"{rank.name} has not said how loaded it is"
    room = read_ranks([view])
    if room.slots[0] < 1:
        return f"{rank.name} has no free slot"
    if room.room[0] < tokens:
        return f"{rank.name} has no {tokens} KV tokens free"
    return None
