"""Attempts of requests: what each waits for, and the orders that follow from what happens to it.

A request of two workers goes through these steps, each of which it may have to wait in:

    Arrive -> a decode worker is there -> Prefill -> Prefilled -> Decode -> Ended
                                             |                      |
                                             +------- Failed -------+-> Again -> GoOn -> ...
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from toolkit.decide import messages as m
from toolkit.decide.choosing import PolicyFailed
from toolkit.decide.pool import Pool
from toolkit.decide.requests import Due, ProbeDue, RequestState, Wait, WaitStep
from toolkit.decide.retries import Retries
from toolkit.decide.waiting import Unserved, WaitQueues

if TYPE_CHECKING:
    from toolkit.decide.bounds import DeciderBounds
    from toolkit.decide.choosing import Chooser
    from toolkit.decide.ranks import RankState, WorkerState
    from toolkit.decide.reservation import Reservation
    from toolkit.decide.timers import Timers

RETRY_PAUSE_S = 0.02
"""Before the first rerun; twice, three times as long before the next ones."""
VERDICT_S = 0.3
"""So long after a connection broke it may take until a death is known: a process that ends closes
one connection after the other."""
LAST_WORD_S = 0.3
"""Between the break of a worker's event stream and that of a request's connection."""
PROBE_S = 10.0
"""A worker on probation is well again when an answer has run for so long, or to its end."""
PROBATION_S = 2.0
"""So long a suspect has a worker to itself whose answer does not stream."""
GONE_RETRY_AFTER_S = 2
REJOINED_S = 0.5
"""So long a request that rejoined waits for word of its prefill: it may have been missed."""


class Attempts:
    """Takes what is said of requests; `orders` are those that followed since they were taken."""

    def __init__(self, choosing: Chooser, bounds: DeciderBounds, timers: Timers[Due]) -> None:
        self._choosing = choosing
        self._bounds = bounds
        self._timers = timers
        self.late = bounds.late
        self.retries = Retries(choosing.ranks, bounds.max_retries, bounds.max_inflight)
        self.unserved: Counter[str] = Counter()
        """Requests given up as nobody served a role, by that role."""
        self.pool = Pool(choosing, bounds.park_timeout_s) if choosing.ranks.splits else None
        self.waiting = WaitQueues(choosing, bounds, timers)
        self.requests: dict[int, RequestState] = {}
        self.parked = 0
        """Prefills that have been sent, and whose decode rank is not chosen."""
        self.orders: list[m.Order] = []

    @property
    def pooling(self) -> bool:
        """Whether finished prefills wait in the pool: the decode policy assigns in rounds."""
        return self.pool is not None and self._choosing.policies["decode"].needs.pool

    def notify_pool(self, now: float) -> None:
        """Something has changed that may let one of the pool go."""
        if self.pool is not None:
            self.pool.notified(now)

    def wake(self, now: float) -> None:
        """Whoever may go now goes on."""
        while (request := self.waiting.next_woken()) is not None:
            self._advance(request, now)

    # What requests say.

    def arrive(self, message: m.Arrive, now: float) -> None:
        if message.digest and self.retries.quarantined(message.digest, now):
            self.orders.append(m.Refuse(message.request, "quarantined"))
            return
        request = self.requests[message.request] = RequestState(
            message.request, message.view, message.shape, message.streams, message.arrived,
            message.deadline,
        )  # fmt: skip
        self._begin(request, now)

    def rejoined(self, message: m.Rejoined, now: float) -> None:
        request = self.requests[message.request] = RequestState(
            message.request, message.view, message.shape, message.streams, message.arrived,
            message.deadline,
        )  # fmt: skip
        request.generated, request.attempt = message.generated, message.attempts
        for call in message.calls:
            rank = self._choosing.ranks.rank(call.rank)
            reservation = self._choosing.reserve(
                rank, request.view, now,
                generates=call.answers and rank.worker.spec.role != "prefill",
                streams=request.streams, generated=request.generated,
            )  # fmt: skip
            reservation.proven = call.proven
            request.calls.append(reservation)
        places, waits = tuple(request.calls), None
        if places and not any(call.answers for call in message.calls):
            waits = places[-1]
        self.orders.append(m.Restored(request.number, places, waits))
        if message.begins:
            self._begin(request, now)
        elif waits is not None:
            request.prefill_rank = waits.rank
            if self.late:
                request.credit = waits.rank
                waits.rank.credit -= 1
            self.parked += 1
            self._wait_for(request, WaitStep.PREFILLING, now + REJOINED_S)
        elif places:
            self._run(request, now)

    def go_on(self, message: m.NextAttempt, now: float) -> None:
        request = self.requests[message.request]
        self._over(request)
        request.view, request.generated = message.view, message.generated
        request.attempt += 1
        if message.place is not None:
            request.place = message.place
        self._begin(request, now)

    def prefilled(self, message: m.Prefilled, now: float) -> None:
        request = self.requests.get(message.request)
        if request is None or request.step not in (WaitStep.PREFILLING, WaitStep.LAST_WORD):
            return
        if message.view is not None:
            request.view = message.view
        self._choose_decode(request, now, known=message.view is not None)

    def proven(self, message: m.Proven, now: float) -> None:
        reservation = message.reservation
        reservation.proven = True
        if reservation.probe:
            self._timers.set(now + PROBE_S, ProbeDue(reservation))
        request = self.requests.get(message.request)
        if request is None:
            return
        self._leave_probation(request)
        if message.decode:
            pair, request.pair = request.pair, None  # it has its KV
            if pair is not None and self._choosing.pairs.known:
                self._choosing.pairs.went(pair, now)
            for name in self.retries.blame(request, now):
                self.orders.append(m.Ejected(name))

    def tokens_came(self, message: m.TokensCame, now: float) -> None:
        for reservation, tokens in message.tokens:
            if not reservation.over:
                reservation.count(tokens)

    def released(self, message: m.CallReleased, now: float) -> None:
        reservation = message.reservation
        record = reservation.rank.worker.record
        if message.outcome == "unsent":
            reservation.cancel()
        else:
            if message.outcome == "served":
                record.answered(now)
            elif reservation.probe and message.outcome == "failed":
                record.failed(now)
            elif reservation.probe:
                record.unknown()
            answered = None if message.outcome == "moved" else message.answered
            reservation.end(answered, now, message.generated, message.finished)
        self.notify_pool(now)

    def failed(self, message: m.Failed, now: float) -> None:
        request = self.requests[message.request]
        self._not_across(request, message, now)
        self._over(request)
        if message.kind == "busy":
            self._choosing.ranks.workers[message.worker].record.full(now)
            request.busy += 1
        request.attempts += 1
        request.avoid |= message.suspects
        request.failure = message
        place = request.place
        if place is not None and place.rank.worker.name == message.worker:
            request.place = None
            place.cancel()
        self._wait_for(request, WaitStep.PAUSE, now + RETRY_PAUSE_S * request.attempts)

    def ended(self, message: m.RequestEnded, now: float) -> None:
        request = self.requests.pop(message.request, None)
        if request is None:
            return
        self._over(request)
        place, request.place = request.place, None
        if place is not None:
            place.cancel()
            self.notify_pool(now)
        if message.served:
            self.retries.budget.succeeded()
            for reservation in request.calls:
                if not reservation.over:  # a prefill's answer may trail the decode's
                    reservation.rank.worker.record.answered(now)

    # What workers and time do to requests.

    def missed(self, worker: str, now: float) -> None:
        """What the worker says of prefills may be missed from now on."""
        for request in list(self.requests.values()):
            rank = request.prefill_rank
            if request.step is WaitStep.PREFILLING and rank is not None and rank.key[0] == worker:
                self._choose_decode(request, now, known=False)

    def forget_probes(self, worker: WorkerState) -> None:
        """How they end says nothing of the process that answers there now."""
        for request in self.requests.values():
            for call in request.calls:
                if call.rank.worker is worker:
                    call.probe = False

    def died(self, now: float) -> None:
        """Some worker has: those that wait for a verdict on it need wait no longer."""
        for request in list(self.requests.values()):
            failure = request.failure
            if (
                request.step is WaitStep.VERDICT
                and failure is not None
                and self.retries.died(failure)
            ):
                self._judge(request, now)

    def waited(self, wait: Wait, now: float) -> None:
        """A request has waited for as long as it may."""
        request, failure = wait.request, wait.request.failure
        request.timer = None
        match wait.step:
            case WaitStep.PREFILLING | WaitStep.LAST_WORD:
                self._choose_decode(request, now, known=False)
            case WaitStep.PAUSE:
                assert failure is not None
                told = failure.kind not in ("lost", "early") or failure.proven
                if told or self.retries.died(failure):
                    self._judge(request, now)
                else:
                    self._wait_for(request, WaitStep.VERDICT, now + VERDICT_S)
            case WaitStep.VERDICT:
                self._judge(request, now)
            case WaitStep.RUNNING:
                self._leave_probation(request)
            case _:
                self._advance(request, now)

    def round(self, now: float) -> None:
        """A round of the pool is due."""
        assert self.pool is not None
        made = self.pool.round(now)
        for request, reservation, waited_s in made.bound:
            self.orders.append(m.Waited(waited_s))
            self._decode(request, reservation, now)
        for request in made.given_up:
            if made.failure is None:
                self._unserved(request, Unserved("decode", GONE_RETRY_AFTER_S))
            else:
                self._policy_failed(request, made.failure)

    def _not_across(self, request: RequestState, failure: m.Failed, now: float) -> None:
        """If that is why it failed. A decode worker that has said nothing of it may wait for KV."""
        pair = request.pair
        if pair is None or failure.worker not in pair:
            return
        silent = failure.kind == "silent" and failure.worker == pair[1]
        if not silent and failure.kind != "transfer":
            return
        request.pair = None
        told = self._choosing.pairs.failed(pair, failure.worker, request, now)
        if not silent or not told.unknown:
            request.blamed[failure.worker] = told.blames
        if told.left_out_s:
            self.orders.append(m.PairLeftOut(*pair, told.left_out_s))

    def _judge(self, request: RequestState, now: float) -> None:
        failure = request.failure
        assert failure is not None
        request.still()
        request.step = WaitStep.HOST
        judgement = self.retries.judge(request, failure, now)
        if judgement == "again":
            self.orders.append(m.Again(request.number))
            return
        strikes = request.record.strikes
        if judgement == "poisonous":
            self.orders.append(m.Quarantined(request.number, tuple(strikes), failure.digest))
        self.orders.append(m.Refuse(request.number, judgement, strikes=len(strikes)))

    # How a request gets its workers.

    def _begin(self, request: RequestState, now: float) -> None:
        """An attempt."""
        request.calls.clear()
        match request.shape:
            case "split":
                request.step = WaitStep.DECODE_THERE
            case "one_token":
                request.step = WaitStep.PREFILL
            case _:
                request.step = WaitStep.WHOLE
        self._advance(request, now)

    def _advance(self, request: RequestState, now: float) -> None:
        """Go on as far as it can, then wait."""
        try:
            while self._step(request, now):
                pass
        except Unserved as error:
            self._unserved(request, error)
        except PolicyFailed as failure:
            self._policy_failed(request, failure)

    def _step(self, request: RequestState, now: float) -> bool:
        """One; False: it waits, or has its worker."""
        waiting, prefill = self.waiting, request.prefill_rank
        match request.step:
            case WaitStep.DECODE_THERE:
                if not waiting.there(request, "decode", now):
                    return False
                request.step = WaitStep.PREFILL
                return True
            case WaitStep.PREFILL if prefill is None:
                request.prefill_rank = waiting.seek(request, "prefill", now, credit=self.late)
                request.credit = request.prefill_rank if self.late else None
                return request.prefill_rank is not None
            case WaitStep.PREFILL:
                assert prefill is not None
                one_token = request.shape == "one_token"
                if one_token and prefill.worker.prefill_only:
                    self._prefill(request, prefill, now, whole=True)
                    return False
                if one_token and not waiting.there(request, "decode", now):
                    return False
                if self.late and prefill.worker.tells_prefills:
                    self._prefill(request, prefill, now, whole=False)
                    return False
                request.step = WaitStep.DECODE_EARLY
                return True
            case WaitStep.DECODE_EARLY:
                decode = self._placed(request) or waiting.seek(request, "decode", now)
                if decode is not None:
                    self._both(request, decode, now)
            case WaitStep.DECODE | WaitStep.WHOLE:
                if request.step is WaitStep.WHOLE and self._go_to_place(request, now):
                    return False
                role = "decode" if request.step is WaitStep.DECODE else request.shape
                rank = waiting.seek(request, role, now)
                if rank is not None:
                    self._decode(request, self._reserve(request, rank, now), now)
            case _:
                pass
        return False

    def _choose_decode(self, request: RequestState, now: float, known: bool) -> None:
        """The prefill is done, or (not `known`) nobody will say when it is: SGLang's own flow also
        registers the decode before the prefill has run."""
        rank = request.prefill_rank
        assert rank is not None
        if not known and not rank.worker.healthy and request.step is WaitStep.PREFILLING:
            # It went away with this request, most likely: its connection will tell.
            self._wait_for(request, WaitStep.LAST_WORD, now + LAST_WORD_S)
            return
        request.still()
        request.step = WaitStep.DECODE
        if self._go_to_place(request, now):
            return
        if self.pooling:
            assert self.pool is not None
            self.pool.enter(request, now)
            return
        try:  # its KV is there: it stands in no queue, as long as somebody can take it
            chosen = self._choosing.choose("decode", request, now)
        except PolicyFailed as failure:
            self._policy_failed(request, failure)
            return
        if chosen is None:
            self._advance(request, now)
        else:
            self._decode(request, self._reserve(request, chosen, now), now)

    # Orders.

    def _reserve(self, request: RequestState, rank: RankState, now: float) -> Reservation:
        return self._choosing.reserve(
            rank, request.view, now, generates=rank.worker.spec.role != "prefill",
            streams=request.streams, generated=request.generated,
        )  # fmt: skip

    def _prefill(self, request: RequestState, rank: RankState, now: float, whole: bool) -> None:
        reservation = self._choosing.reserve(rank, request.view, now, generates=False)
        request.calls.append(reservation)
        self.orders.append(m.PrefillOrder(request.number, rank, reservation, whole=whole))
        if whole:
            self._run(request, now)
            return
        self.parked += 1
        self._wait_for(request, WaitStep.PREFILLING, now + self._bounds.prefill_wait_s)

    def _both(self, request: RequestState, decode: RankState, now: float) -> None:
        """The prefill, and a decode rank that was chosen before."""
        prefill = request.prefill_rank
        assert prefill is not None
        reservation = self._choosing.reserve(prefill, request.view, now, generates=False)
        request.calls.append(reservation)
        self.orders.append(m.PrefillOrder(request.number, prefill, reservation, late=False))
        if not self._go_to_place(request, now):
            self._decode(request, self._reserve(request, decode, now), now)

    def _decode(self, request: RequestState, reservation: Reservation, now: float) -> None:
        self._choosing.pair(request, reservation.rank, now)
        request.calls.append(reservation)
        self.orders.append(m.DecodeOrder(request.number, reservation.rank, reservation))
        if request.step is WaitStep.DECODE:
            self.parked -= 1
        self._run(request, now)
        self._return_credit(request)

    def _run(self, request: RequestState, now: float) -> None:
        request.still()
        request.step = WaitStep.RUNNING
        if request.record.suspect and not request.streams:
            # Nothing is heard of it before its end; another suspect must not wait for that.
            wait = Wait(request, WaitStep.RUNNING)
            request.timer = self._timers.set(now + PROBATION_S, wait)

    def _placed(self, request: RequestState) -> RankState | None:
        """The rank on which a place is kept for it, if that takes requests."""
        place = request.place
        return place.rank if place is not None and place.rank.open else None

    def _go_to_place(self, request: RequestState, now: float) -> bool:
        """Whether it goes to the place that is kept for it; one that is of no use is given back."""
        place, request.place = request.place, None
        if place is None:
            return False
        if not place.rank.open:
            place.cancel()
            self.notify_pool(now)
            return False
        self._decode(request, place, now)
        return True

    def _unserved(self, request: RequestState, error: Unserved) -> None:
        self.unserved[error.role] += 1
        number, after = request.number, error.retry_after
        self._refuse(request, m.Refuse(number, "nobody", role=error.role, retry_after=after))

    def _policy_failed(self, request: RequestState, error: PolicyFailed) -> None:
        order = m.Refuse(request.number, "policy", text=str(error), cause=error.cause)
        self._refuse(request, order)

    def _refuse(self, request: RequestState, order: m.Refuse) -> None:
        """What it holds goes back when the host answers."""
        request.still()
        self.waiting.leave(request)
        if request.step is WaitStep.DECODE:
            self.parked -= 1
        request.step = WaitStep.HOST
        self.orders.append(order)

    # What goes back.

    def _over(self, request: RequestState) -> None:
        """The attempt is: what it waits for, and what it holds beside its calls, goes back."""
        request.still()
        if request.step in (WaitStep.PREFILLING, WaitStep.LAST_WORD, WaitStep.DECODE):
            self.parked -= 1
        request.step = WaitStep.HOST
        self.waiting.leave(request)
        if self.pool is not None:
            self.pool.leave(request)
        self._return_credit(request)
        self._leave_probation(request)
        request.prefill_rank = None
        pair, request.pair = request.pair, None
        if pair is not None:
            self._choosing.pairs.ended(pair, request)

    def _return_credit(self, request: RequestState) -> None:
        """Another request may be prefilled there."""
        rank, request.credit = request.credit, None
        if rank is not None:
            rank.credit += 1
            self.waiting.credit_returned(rank.worker.spec.role)

    def _leave_probation(self, request: RequestState) -> None:
        """The suspect has proven itself, or is gone: another one may have its worker."""
        if self._choosing.probation.leave(request):
            self.waiting.suspects_look()

    def _wait_for(self, request: RequestState, step: WaitStep, until: float) -> None:
        request.still()
        request.step = step
        request.timer = self._timers.set(until, Wait(request, step))
