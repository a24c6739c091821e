"""Whether a request that failed on a worker is run again, and whose fault that was."""

from __future__ import annotations

import asyncio
import logging
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING

from toolkit.decide.poison import Quarantine, Record, RetryBudget, Strike
from toolkit.router.errors import ApiError, Retry
from toolkit.router.packed import segments
from toolkit.router.request import SubRequest

if TYPE_CHECKING:
    from toolkit.router.known_workers import KnownWorkers
    from toolkit.router.metrics import Metrics
    from toolkit.settings.router.config import RouterConfig

OUTCOME_S = 0.3
LOOK_S = 0.02

log = logging.getLogger("toolkit.router")


class Reruns:
    """Judges failed attempts. Workers are blamed only for what the request did not do elsewhere
    (`blame`), requests only for what they saw happen to several workers (`judge`)."""

    def __init__(self, config: RouterConfig, known_workers: KnownWorkers, metrics: Metrics) -> None:
        self._config = config
        self._fleet = known_workers
        self._metrics = metrics
        self._quarantine = Quarantine()
        self.budget = RetryBudget(2 * config.max_inflight)

    def refuse_quarantined(self, sub_request: SubRequest) -> None:
        """ApiError for a request that was put in quarantine a while ago and is sent again."""
        if self._quarantine and self._quarantine.holds(_digest(sub_request), monotonic()):
            raise _poisonous("workers that ran this very request died, or failed, a while ago")

    async def await_outcome(self, failure: Retry) -> None:
        """Return when it is known whether the worker died: a process that ends closes one
        connection after the other. At most OUTCOME_S after the connection broke."""
        if failure.kind not in ("lost", "early") or failure.proven:
            return
        deadline = monotonic() + OUTCOME_S
        while not self._died(failure) and monotonic() < deadline:
            await asyncio.sleep(LOOK_S)

    def judge(self, sub_request: SubRequest, failure: Retry, attempts: int, busy: int) -> None:
        """Return when it is to be run again.

        `attempts`: those made so far, of which workers turned away `busy` as they were full.

        Raises:
            ApiError: what the client gets instead.
        """
        now = monotonic()
        if failure.kind == "busy":
            if busy > len(self._fleet.workers):
                raise failure.answer from failure
            return
        strike = self._strike(sub_request.record, failure)
        if strike is not None:
            sub_request.record.strikes.append((strike, failure.worker))
            if sub_request.record.poisonous(self._fleet.deaths.lately(now)):
                self._put_in_quarantine(sub_request, failure, now)
        elif not self._died(failure):
            sub_request.faults.append(failure.worker)
        if attempts - busy > self._config.max_retries:
            raise failure.answer from failure
        if not self.budget.take(now):
            log.error("request %s: no rerun: the budget of reruns is spent", sub_request.request_id)
            message = "A worker failed this request, and too many others wait to be run again."
            raise ApiError(503, message, retry_after=5) from failure

    def _strike(self, record: Record, failure: Retry) -> Strike | None:
        if failure.kind == "stuck" and failure.begun > self._stood_from(failure):
            return None  # the rank stood already when it came
        if failure.kind == "stuck" and (record.lingering or failure.proven):
            return None if record.suspect and failure.proven else "stood"
        if failure.proven:
            return None
        if failure.kind in ("answer", "transfer"):
            return "answer" if failure.kind == "answer" else "transfer"
        if failure.kind in ("lost", "early", "stuck") and self._died(failure):
            crashed = self._fleet.named(failure.worker).crashed_at >= failure.begun
            return "crash" if crashed else "gone"
        return None

    def _died(self, failure: Retry) -> bool:
        """Whether the worker has gone since it got the request: its health tells, and nobody needs
        to be warned of it."""
        worker = self._fleet.named(failure.worker)
        return max(worker.crashed_at, worker.gone_at) >= failure.begun

    def _stood_from(self, failure: Retry) -> float:
        return self._fleet.named(failure.worker).stood_from

    def _put_in_quarantine(self, sub_request: SubRequest, failure: Retry, now: float) -> None:
        record = sub_request.record
        self._quarantine.add(_digest(sub_request), now)
        self._fleet.poisoned.update(record.deaths)
        self._metrics.poisoned.inc()
        seen = ", ".join(f"{worker} ({what})" for what, worker in record.strikes)
        log.error("request %s is not run again: %s", sub_request.request_id, seen)
        if failure.kind == "answer":  # the worker says more than we can
            answer = failure.answer
            answer.final = True
            raise answer from failure
        raise _poisonous(
            f"{len(record.strikes)} workers that ran it died, or failed, one after the other"
        ) from failure

    def blame(self, sub_request: SubRequest) -> None:
        """It runs well on another worker: those that failed it are to blame for that."""
        if not sub_request.record.strikes and not sub_request.faults:
            return
        now = monotonic()
        faults, sub_request.faults = sub_request.faults, []
        answered = [
            name for what, name in sub_request.record.strikes if what in ("answer", "transfer")
        ]
        for name in faults + answered:
            if self._fleet.named(name).record.failed(now):
                self._metrics.ejected.labels(name).inc()
                log.warning("worker %s is left alone for a while: it fails requests", name)
        sub_request.record.strikes = [
            (what, name)
            for what, name in sub_request.record.strikes
            if what in ("crash", "gone", "stood")
        ]


def _poisonous(what: str) -> ApiError:
    return ApiError(
        422,
        f"This request is not run again: {what}. Other requests were served meanwhile; if it is "
        "ordinary, the workers' logs tell more.",
        "RequestFailsWorkers",
        final=True,
    )


def _digest(sub_request: SubRequest) -> bytes:
    """Of what a request asks for, whoever sends it and under whatever id."""
    asked = {key: value for key, value in sub_request.body.items() if key not in ("rid", "user")}
    digest = blake2b(sub_request.path.encode(), digest_size=16)
    for piece in segments(asked):
        digest.update(piece)
    return digest.digest()
