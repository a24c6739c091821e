"""What one router has found out the others are told: a worker that fails, a request that does."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import msgspec

from toolkit.contract.numbers import Name, Seconds
from toolkit.decide import messages as m
from toolkit.decide.poison import QUARANTINE_S, Strike
from toolkit.router.worker_listener import WorkerListener

if TYPE_CHECKING:
    from toolkit.contract.notices import Notice
    from toolkit.router.known_workers import KnownWorkers
    from toolkit.router.others.exchange import NoticeExchange

log = logging.getLogger("toolkit.router")

EJECTED, QUARANTINED = "ejected", "quarantined"
DIGEST_MAX = 64
STRIKES_MAX = 32


class EjectedTold(msgspec.Struct, frozen=True):
    """That worker, by the name that routers give it, fails requests."""

    worker: Name


class QuarantinedTold(msgspec.Struct, frozen=True):
    """A request, by its digest, for so long; what it saw, the last of it."""

    digest: Annotated[bytes, msgspec.Meta(min_length=1, max_length=DIGEST_MAX)]
    strikes: Annotated[tuple[tuple[Strike, Name], ...], msgspec.Meta(max_length=STRIKES_MAX)]
    left_s: Seconds


class SharedFindings(WorkerListener):
    """Tells what the decider finds, and tells the decider what others found. That one takes it as
    advice (`Ejection.warned`, `Retries.quarantined`): workers are known by their names in the
    configuration, and a name that is not there is passed over."""

    def __init__(self, known_workers: KnownWorkers, exchange: NoticeExchange) -> None:
        self._channel = known_workers.channel
        self._names = {worker.name for worker in known_workers.workers}
        self._exchange = exchange
        exchange.give((EJECTED, QUARANTINED), self)

    def note(self, order: m.Noted) -> None:
        match order:
            case m.Ejected():
                self._exchange.tell(EJECTED, EjectedTold(order.worker))
            case m.Quarantined() if order.digest:
                strikes = order.strikes[-STRIKES_MAX:]
                told = QuarantinedTold(order.digest, strikes, QUARANTINE_S)
                self._exchange.tell(QUARANTINED, told)
            case _:
                pass

    async def take_notice(self, notice: Notice) -> None:
        if notice.kind == QUARANTINED:
            told = msgspec.json.decode(notice.body, type=QuarantinedTold)
            self._channel.send(m.QuarantineTold(told.digest, told.strikes, told.left_s))
            return
        name = msgspec.json.decode(notice.body, type=EjectedTold).worker
        if name in self._names:
            log.info("worker %s is probed: router %s leaves it alone", name, notice.sender)
            self._channel.send(m.WorkerWarned(name))
