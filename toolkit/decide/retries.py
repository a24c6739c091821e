"""Whether a request that failed on a worker is run again, and whose fault that was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from toolkit.decide.poison import LATELY_S, Quarantine, Record, RetryBudget, Strike, ToldQuarantine

if TYPE_CHECKING:
    from toolkit.decide.messages import Failed
    from toolkit.decide.poison import InQuarantine, ToldStrikes
    from toolkit.decide.ranks import KnownRanks
    from toolkit.decide.requests import RequestState

Judgement = Literal["again", "failure", "poisonous", "budget"]


class Retries:
    """Judges failed attempts. Workers are blamed only for what the request did not do elsewhere
    (`blame`), requests only for what they saw happen to several workers (`judge`)."""

    def __init__(self, ranks: KnownRanks, max_retries: int, max_inflight: int) -> None:
        self._ranks = ranks
        self._max_retries = max_retries
        self.quarantine = Quarantine()
        self.told = ToldQuarantine()
        self.budget = RetryBudget(2 * max_inflight)
        self.poisoned: Counter[str] = Counter()
        """By worker: its deaths for which a request was put in quarantine."""

    def died(self, failure: Failed) -> bool:
        """Whether the worker has gone since it got the request: its health tells, and nobody needs
        to be warned of it."""
        return self._ranks.workers[failure.worker].died_since(failure.begun)

    @property
    def quarantines(self) -> bool:
        """Whether requests must come with a digest."""
        return bool(self.quarantine) or bool(self.told)

    def quarantined(self, digest: bytes, now: float) -> bool:
        """Whether a request of this digest is not to run: it failed workers a while ago, here or
        at another router. That one's word is not enough: a worker's death counts when it was seen
        here, too, as every router hears of it that listens there; what a worker answered is taken
        as it is told, and so is what was before this router came. What then remains must be what
        puts a request in quarantine here."""
        if self.quarantine.holds(digest, now):
            return True
        told = self.told.of(digest, now)
        if told is None or told.held.until <= now:
            return False
        seen = [each for each in told.held.strikes if self._seen(*each, told)]
        if not Record(seen).poisonous(self._ranks.deaths.lately(now)):
            return False
        self.quarantine.add_told(digest, told.held)
        return True

    def take_told(
        self, digest: bytes, strikes: Sequence[tuple[Strike, str]], left_s: float, now: float
    ) -> None:
        """Another router has it in quarantine for `left_s`. It counts at once if all of it has been
        seen here; what has not may still be."""
        self.told.add(digest, strikes, left_s, now)
        self.quarantined(digest, now)

    def in_force(self, now: float) -> Iterator[tuple[bytes, InQuarantine]]:
        """What another router is to know of: requests in quarantine by their digests."""
        return (each for each in self.quarantine.newest(now) if each[0])

    def _seen(self, what: Strike, worker: str, told: ToldStrikes) -> bool:
        known = self._ranks.workers.get(worker)
        if known is None:
            return False
        if what in ("answer", "transfer") or told.begun < self._ranks.since:
            return True
        return known.died_since(told.at - LATELY_S)

    def judge(self, request: RequestState, failure: Failed, now: float) -> Judgement:
        """What becomes of the request. A poisonous one is in quarantine then."""
        if failure.kind == "busy":
            return "failure" if request.busy > len(self._ranks.workers) else "again"
        record, strike = request.record, self._strike(request, failure)
        if strike is not None:
            record.strikes.append((strike, failure.worker))
            if record.poisonous(self._ranks.deaths.lately(now)):
                self.quarantine.add(failure.digest, record.strikes, now)
                self.poisoned.update(record.deaths)
                return "poisonous"
        elif not self.died(failure):
            request.faults.append(failure.worker)
        if request.attempts - request.busy > self._max_retries:
            return "failure"
        return "again" if self.budget.take(now) else "budget"

    def _strike(self, request: RequestState, failure: Failed) -> Strike | None:
        worker, record = self._ranks.workers[failure.worker], request.record
        if failure.kind == "stuck" and failure.begun > worker.stood_from:
            return None  # the rank stood already when it came
        if failure.kind == "stuck" and (record.lingering or failure.proven):
            return None if record.suspect and failure.proven else "stood"
        if failure.proven:
            return None
        if failure.kind in ("answer", "transfer"):
            return "answer" if failure.kind == "answer" else "transfer"
        if failure.kind in ("lost", "early", "stuck") and self.died(failure):
            return "crash" if worker.crashed_at >= failure.begun else "gone"
        return None

    def blame(self, request: RequestState, now: float) -> Iterator[str]:
        """It runs well on another worker: those that failed it are to blame for that, but for KV
        that did not get across whoever is worse off with others (`toolkit.decide.pairs`). Those
        that are left alone for a while now."""
        record = request.record
        if not record.strikes and not request.faults:
            return
        faults, request.faults = request.faults, []
        answered = [name for what, name in record.strikes if what in ("answer", "transfer")]
        blamed, request.blamed = request.blamed, {}
        for said_by in faults + answered:
            name = blamed.get(said_by, said_by)
            if name and self._ranks.workers[name].record.failed(now):
                yield name
        record.strikes = [
            (what, name) for what, name in record.strikes if what in ("crash", "gone", "stood")
        ]
