"""What is in quarantine at other routers before this one comes, which is told nobody any more.

Who comes asks, rather than being told: it alone knows that it has begun anew, under whatever name,
and however fast. It asks each router that it has not met, once. What two of them tell alike counts
once, and there is little of it: some hundred bytes of a request.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import msgspec

from toolkit.contract.notices import BODY_MAX
from toolkit.decide import messages as m
from toolkit.router.others.findings import STRIKES_MAX, QuarantinedTold
from toolkit.router.worker_listener import WorkerListener

if TYPE_CHECKING:
    from toolkit.contract.notices import Notice
    from toolkit.router.known_workers import KnownWorkers
    from toolkit.router.others.exchange import NoticeExchange

log = logging.getLogger("toolkit.router")

EARLIER = "in_quarantine"
EARLIER_MAX = 512
"""That are told, the newest ones .."""
BYTES_MAX = BODY_MAX // 2
""".. and bytes of them."""
TRIES = 3
SETTLE_S = 0.1
"""Routers come at all workers, one after the other."""


class EarlierTold(msgspec.Struct, frozen=True):
    """What is in quarantine there."""

    quarantined: Annotated[list[QuarantinedTold], msgspec.Meta(max_length=EARLIER_MAX)] = []


class EarlierQuarantines(WorkerListener):
    """Asks others, and answers them. The decider judges what it is told (`Retries.quarantined`)."""

    def __init__(self, known_workers: KnownWorkers, exchange: NoticeExchange) -> None:
        self._channel = known_workers.channel
        self._retries = known_workers.decider.attempts.retries
        self._exchange = exchange
        self._met: set[str] = set()
        """Those that have answered, or did not when they were asked often enough."""
        self._task: asyncio.Task[None] | None = None
        exchange.give((EARLIER,), self)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def routers_changed(self) -> None:
        self._look()

    def health_changed(self, worker: str) -> None:
        self._look()  # only through those that are up others are heard of

    def _look(self) -> None:
        others = self._exchange.others
        self._met &= others
        idle = self._task is None or self._task.done()
        if idle and others - self._met:
            self._task = asyncio.get_running_loop().create_task(self._ask())

    async def _ask(self) -> None:
        for _ in range(TRIES):
            await asyncio.sleep(SETTLE_S)
            for router in sorted(self._exchange.others - self._met):
                answers, _ = await self._exchange.ask(EARLIER, {}, EarlierTold, router)
                if router in answers:
                    self._met.add(router)
                    self._take(router, answers[router])
            if self._exchange.others <= self._met:
                return
        self._met |= self._exchange.others

    def _take(self, router: str, told: EarlierTold) -> None:
        for each in reversed(told.quarantined):
            self._channel.send(m.QuarantineTold(each.digest, each.strikes, each.left_s))
        if told.quarantined:
            log.info("%d requests are in quarantine at router %s", len(told.quarantined), router)

    async def take_notice(self, notice: Notice) -> EarlierTold:
        now, found, size = monotonic(), list[QuarantinedTold](), 0
        for digest, held in self._retries.in_force(now):
            told = QuarantinedTold(digest, held.strikes[-STRIKES_MAX:], held.until - now)
            size += len(msgspec.json.encode(told))
            if size > BYTES_MAX or len(found) == EARLIER_MAX:
                break
            found.append(told)
        return EarlierTold(found)
