"""Emptying a worker: it gets no new requests, and what runs there moves away or ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any

from toolkit.decide.drain_orders import DrainOrder, DrainOrders
from toolkit.router.emptying import Emptyings
from toolkit.router.errors import ApiError

if TYPE_CHECKING:
    from toolkit.decide.moves import MoveDecider
    from toolkit.router.known_workers import KnownWorkers
    from toolkit.router.worker import Rank

FIELDS = {"worker", "deadline_s", "undo"}
SHAPE = (
    'the body must be {"worker": "decode-0", "deadline_s": 30}, or {"worker": "decode-0", '
    '"undo": true} to let it have requests again; a DP rank is named as in decode-0:1'
)
LONGEST_S = 86400.0
TRIAL_S = 5.0
"""So long a worker is held while routers agree on it, if nobody says what came of that."""
TRIALS_MAX = 64


@dataclass(frozen=True, slots=True)
class DrainWanted:
    """What the body of an order asks for. `worker`: or a rank, as it was named."""

    worker: str
    ranks: Sequence[Rank]
    undo: bool
    deadline_s: float


class Drains:
    """Holds ranks and empties them, by orders that hold until a newer one. A hold outlives its
    worker: who replaces it undoes it. While routers agree on an order (`attempt`) its ranks are
    held, too."""

    def __init__(self, known_workers: KnownWorkers, moves: MoveDecider) -> None:
        self._known_workers = known_workers
        self._trials: dict[DrainOrder, asyncio.TimerHandle] = {}
        self.orders = DrainOrders()
        self.emptyings = Emptyings(known_workers, moves)

    def read(self, body: Any, default_s: float) -> DrainWanted:
        """What the body of POST /admin/drain asks for of a worker. ApiError 400: it is wrong."""
        if not isinstance(body, dict) or not set(body) <= FIELDS:
            raise ApiError(400, SHAPE)
        name, undo = body.get("worker"), body.get("undo", False)
        deadline_s = body.get("deadline_s", default_s)
        ranks = self.ranks(name) if isinstance(name, str) else []
        if not ranks:
            known = ", ".join(worker.name for worker in self._known_workers.workers)
            raise ApiError(400, f'"worker" must be one of {known}; got {name!r:.80}')
        if not isinstance(undo, bool) or (undo and "deadline_s" in body):
            raise ApiError(400, f'"undo" must be true or false, and goes alone: {SHAPE}')
        if type(deadline_s) not in (int, float) or not 0 <= deadline_s <= LONGEST_S:
            raise ApiError(400, f'"deadline_s" must be a number from 0 to {LONGEST_S:g}')
        return DrainWanted(str(name), ranks, undo, float(deadline_s))

    def ranks(self, name: str) -> list[Rank]:
        """Those that an order is about; none of a worker that is not known here."""
        return self._known_workers.ranks_named(name)

    def made(self, wanted: DrainWanted) -> DrainOrder:
        """An order that is newer than all others about its ranks."""
        before = self.orders.newest_at(rank.key for rank in wanted.ranks)
        at = max(round(time() * 1e3), before + 1)
        empty_s = 0.0 if wanted.undo else wanted.deadline_s
        return DrainOrder(wanted.worker, not wanted.undo, at, empty_s)

    def attempt(self, order: DrainOrder, elsewhere: bool = False) -> None:
        """Hold its ranks until `take` or `let_go`, or for TRIAL_S. `elsewhere`: another router was
        told; then nothing is taken away here from who has none of them in any case.

        Raises:
            ApiError: 409 where no other worker could stand in for them.
        """
        ranks = self.ranks(order.worker)
        if not ranks or order in self._trials:
            return
        if not elsewhere or any(rank.open for rank in ranks):
            self._refuse_last(ranks)
        if len(self._trials) >= TRIALS_MAX:
            raise ApiError(409, f"{TRIALS_MAX} other drains are about to begin")
        loop = asyncio.get_running_loop()
        self._trials[order] = loop.call_later(TRIAL_S, self.let_go, order)
        self._settle(ranks)

    def let_go(self, order: DrainOrder) -> None:
        """Nothing came of it: its ranks are held no more, unless another order holds them."""
        timer = self._trials.pop(order, None)
        if timer is not None:
            timer.cancel()
            self._settle(self.ranks(order.worker))

    def take(self, order: DrainOrder) -> bool:
        """Carry an order out as far as no newer one is known. Whether that was anything new."""
        news = self.restore(order)
        if order.on and news:
            self.emptyings.begin(news, order.empty_s)
        elif news:
            self.emptyings.end(news)
        return bool(news)

    def restore(self, order: DrainOrder) -> list[Rank]:
        """As `take`, but what runs there stays. The ranks that had no order so new."""
        ranks = {rank.key: rank for rank in self.ranks(order.worker)}
        news = [ranks[key] for key in self.orders.take(order, ranks)]
        self.let_go(order)
        self._settle(news, anew=True)
        return news

    def stop(self) -> None:
        """Nothing is emptied any more."""
        for timer in self._trials.values():
            timer.cancel()
        self.emptyings.stop()

    def _settle(self, ranks: Iterable[Rank], anew: bool = False) -> None:
        """Hold those that an order or a trial is about, and no others. `anew`: say so also of those
        that are held already, so that whoever keeps orders hears of it."""
        tried = {rank for order in self._trials for rank in self.ranks(order.worker)}
        wanted = {rank: rank in tried or self.orders.holds(rank.key) for rank in ranks}
        for on in (True, False):
            changed = [
                rank for rank in wanted if wanted[rank] is on and (anew or rank.held is not on)
            ]
            if changed:
                self._known_workers.hold(changed, on)

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
