"""Emptying a worker: it gets no new requests, and what runs there moves away or ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING, Any

from toolkit.router.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.decide.moves import MoveDecider
    from toolkit.router.known_workers import KnownWorkers
    from toolkit.router.worker import Rank

LOOK_S = 0.02
FIELDS = {"worker", "deadline_s", "undo"}
SHAPE = (
    'the body must be {"worker": "decode-0", "deadline_s": 30}, or {"worker": "decode-0", '
    '"undo": true} to let it have requests again; a DP rank is named as in decode-0:1'
)
LONGEST_S = 86400.0


class Drains:
    """Holds ranks and empties them; `undo` lets them have requests again. A hold outlives its
    worker: who replaces it undoes it."""

    def __init__(self, known_workers: KnownWorkers, moves: MoveDecider) -> None:
        self._known_workers = known_workers
        self._moves = moves

    async def run(self, body: Any, default_s: float) -> dict[str, Any]:
        """What POST /admin/drain asks for of a worker.

        Raises:
            ApiError: 400 for a wrong body, 409 for a worker that no other one could stand in for.
        """
        if not isinstance(body, dict) or not set(body) <= FIELDS:
            raise ApiError(400, SHAPE)
        name, undo = body.get("worker"), body.get("undo", False)
        deadline_s = body.get("deadline_s", default_s)
        ranks = self._known_workers.ranks_named(name) if isinstance(name, str) else []
        if not ranks:
            known = ", ".join(worker.name for worker in self._known_workers.workers)
            raise ApiError(400, f'"worker" must be one of {known}; got {name!r:.80}')
        if not isinstance(undo, bool) or (undo and "deadline_s" in body):
            raise ApiError(400, f'"undo" must be true or false, and goes alone: {SHAPE}')
        if type(deadline_s) not in (int, float) or not 0 <= deadline_s <= LONGEST_S:
            raise ApiError(400, f'"deadline_s" must be a number from 0 to {LONGEST_S:g}')
        if undo:
            self._known_workers.hold(ranks, on=False)
            return {"worker": name, "held": False}
        self._refuse_last(ranks)
        return {"worker": name, "held": True, **await self.drain(ranks, deadline_s)}

    def _refuse_last(self, ranks: Sequence[Rank]) -> None:
        role = ranks[0].worker.config.role
        if any(rank.open and rank not in ranks for rank in self._known_workers.side(role)):
            return
        if all(rank.held for rank in ranks):
            return
        raise ApiError(
            409,
            f"it is the last {role} worker that takes requests: without it all new ones would get "
            "503. Start another one first, or end the deployment with `toolkit stop`",
        )

    async def drain(self, ranks: Sequence[Rank], deadline_s: float) -> dict[str, Any]:
        """Hold the ranks, and return when nothing of ours runs there, or after the deadline: what
        has `moved`, what is `left`, and why it `stays`."""
        known, moves = self._known_workers, self._moves
        known.hold(ranks)
        begun = monotonic()
        before = {rank: Counter(moves.emptied[rank]) for rank in ranks}
        known.empty(ranks)
        try:
            while self._busy(ranks) and monotonic() - begun < deadline_s:
                await asyncio.sleep(LOOK_S)
        finally:
            known.empty(ranks, on=False)
        left, outcomes = sum(rank.inflight for rank in ranks), Counter[str]()
        for rank in ranks:
            outcomes += moves.emptied[rank] - before[rank]
        return {
            "drained": not left,
            **{how: outcomes[how] for how in ("moved", "ended", "lost")},
            "left": left,
            "stays": dict(sum(map(moves.stays, ranks), Counter[str]())),
            "seconds": round(monotonic() - begun, 3),
        }

    def _busy(self, ranks: Sequence[Rank]) -> bool:
        """A request leaves its rank a little before its move is known to be over."""
        return any(rank.inflight or self._moves.leaving(rank) for rank in ranks)
