"""The decider: what has happened in, what is to be done out. Which worker runs a request, and what
happens when one of them fails.

It has no clock, socket or event loop. Its host tells it messages in the order in which things
happen, and carries out the orders that it gets for each. `due` says when the host is to tell it the
time (`Tick`), if nothing else happens. The same messages at the same times give the same orders.

A request of two workers goes through these steps, each of which it may have to wait in:

    Arrive -> a decode worker is there -> Prefill -> Prefilled -> Decode -> Ended
                                             |                      |
                                             +------- Failed -------+-> Again -> GoOn -> ...
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.decide import messages as m
from toolkit.decide.choosing import Choosing, PolicyFailed
from toolkit.decide.pool import Pool
from toolkit.decide.requests import Due, Probe, RequestState, Step, Wait
from toolkit.decide.retries import Retries
from toolkit.decide.timers import Timers
from toolkit.decide.wait_queue import WaitQueue
from toolkit.decide.watchdog import Health

if TYPE_CHECKING:
    from toolkit.decide.ranks import Ranks, RankState
    from toolkit.decide.reservation import Reservation
    from toolkit.policies.base import Policy
    from toolkit.policies.stages.narrowing import StageFilter

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


@dataclass(frozen=True, slots=True)
class DeciderBounds:
    """What the deployment's file says. Times in seconds."""

    late: bool
    """Whether decode workers are chosen when the prefill has run."""
    park_timeout_s: float
    prefill_wait_s: float
    no_worker_wait_s: float
    rerun_wait_s: float
    max_retries: int
    max_inflight: int
    eject_share: float
    kept_back: int


class Decider:
    """See the module."""

    def __init__(self, ranks: Ranks, bounds: DeciderBounds, stages: StageFilter | None) -> None:
        self.ranks = ranks
        self.bounds = bounds
        self.late = bounds.late
        self.choosing = Choosing(ranks, bounds.eject_share, bounds.kept_back, stages)
        self.retries = Retries(ranks, bounds.max_retries, bounds.max_inflight)
        split = "decode" in ranks.roles
        self.pool = Pool(self.choosing, bounds.park_timeout_s) if split else None
        self.requests: dict[int, RequestState] = {}
        self.parked = 0
        """Prefills that have been sent, and whose decode rank is not chosen."""
        self._queues = {role: WaitQueue() for role in ranks.roles}
        self._on_probation = WaitQueue()
        """Suspects of all roles (`toolkit.decide.poison`): a worker takes one of them at a time,
        and they must hold up nobody else."""
        self._woken: deque[RequestState] = deque()
        self._timers: Timers[Due] = Timers()
        self._orders: list[m.Order] = []
        self._takes: dict[type[m.Message], Callable[[Any, float], None]] = {
            m.Arrive: self._arrive, m.GoOn: self._go_on, m.Prefilled: self._prefilled,
            m.Proven: self._proven, m.Released: self._released, m.Failed: self._failed,
            m.Ended: self._ended, m.Greeted: self._greeted, m.Up: self._up,
            m.HeldUp: self._held_up, m.Down: self._down, m.Died: self._died,
            m.LoadRead: self._load_read, m.Stepped: self._stepped, m.Beaten: self._beaten,
            m.Hold: self._hold, m.Expected: self._expected, m.Tick: self._tick,
        }  # fmt: skip

    def on(self, message: m.Message, now: float) -> list[m.Order]:
        """Take a message; the orders that follow from it, in their order."""
        self._takes[type(message)](message, now)
        while self._woken:
            request = self._woken.popleft()
            if request.queue_role:
                self._advance(request, now)
        orders, self._orders = self._orders, []
        return orders

    @property
    def due(self) -> float | None:
        """When the host is to tell the time; None: nothing waits for it. In the past: as soon as
        all that has happened so far is told."""
        rounds = None if self.pool is None else self.pool.due
        timers = self._timers.due
        if rounds is None or timers is None:
            return timers if rounds is None else rounds
        return min(rounds, timers)

    @property
    def quarantines(self) -> bool:
        """Whether requests must come with a digest."""
        return bool(self.retries.quarantine)

    @property
    def pooling(self) -> bool:
        """Whether finished prefills wait in the pool: the decode policy assigns in rounds."""
        return self.pool is not None and self.choosing.policies["decode"].needs.pool

    def use(self, side: str, policy: Policy, now: float) -> None:
        """A policy for a side, from now on."""
        self.choosing.use(side, policy)
        if side == "decode" and self.pool is not None:
            self.pool.notified(now)

    # What requests say.

    def _arrive(self, message: m.Arrive, now: float) -> None:
        if message.digest and self.retries.quarantine.holds(message.digest, now):
            self._orders.append(m.Refuse(message.request, "quarantined"))
            return
        request = self.requests[message.request] = RequestState(
            message.request, message.view, message.shape, message.streams, message.arrived,
            message.deadline,
        )  # fmt: skip
        self._begin(request, now)

    def _go_on(self, message: m.GoOn, now: float) -> None:
        request = self.requests[message.request]
        self._over(request, now)
        request.view, request.generated = message.view, message.generated
        request.attempt += 1
        if message.place is not None:
            request.place = message.place
        self._begin(request, now)

    def _begin(self, request: RequestState, now: float) -> None:
        """An attempt."""
        request.calls.clear()
        match request.shape:
            case "split":
                request.step = Step.DECODE_THERE
            case "one_token":
                request.step = Step.PREFILL
            case _:
                request.step = Step.WHOLE
        self._advance(request, now)

    def _prefilled(self, message: m.Prefilled, now: float) -> None:
        request = self.requests.get(message.request)
        if request is None or request.step not in (Step.PREFILLING, Step.LAST_WORD):
            return
        if message.view is not None:
            request.view = message.view
        self._choose_decode(request, now, known=message.view is not None)

    def _choose_decode(self, request: RequestState, now: float, known: bool) -> None:
        """The prefill is done, or (not `known`) nobody will say when it is: SGLang's own flow also
        registers the decode before the prefill has run."""
        rank = request.prefill_rank
        assert rank is not None
        if not known and not rank.worker.healthy and request.step is Step.PREFILLING:
            # It went away with this request, most likely: its connection will tell.
            self._wait_for(request, Step.LAST_WORD, now + LAST_WORD_S)
            return
        self._still(request)
        request.step = Step.DECODE
        if self._go_to_place(request, now):
            return
        if self.pooling:
            assert self.pool is not None
            self.pool.enter(request, now)
            return
        try:
            chosen = self.choosing.choose("decode", request, now)
        except PolicyFailed as failure:
            self._policy_failed(request, "decode", failure)
            return
        if chosen is None:
            self._advance(request, now)
        else:
            self._decode(request, self._reserve(request, chosen, now), now)

    def _proven(self, message: m.Proven, now: float) -> None:
        reservation = message.reservation
        reservation.proven = True
        if reservation.probe:
            self._timers.set(now + PROBE_S, Probe(reservation))
        request = self.requests.get(message.request)
        if request is None:
            return
        self._leave_probation(request)
        if message.decode:
            for name in self.retries.blame(request, now):
                self._orders.append(m.Ejected(name))

    def _released(self, message: m.Released, now: float) -> None:
        reservation = message.reservation
        if message.outcome == "unsent":
            reservation.cancel()
            self._notify_pool(now)
            return
        record = reservation.rank.worker.record
        if message.outcome == "served":
            record.answered(now)
        elif reservation.probe and message.outcome == "failed":
            record.failed(now)
        elif reservation.probe:
            record.unknown()
        answered = None if message.outcome == "moved" else message.answered
        reservation.end(answered, now, message.generated, message.finished)
        self._notify_pool(now)

    def _failed(self, message: m.Failed, now: float) -> None:
        request = self.requests[message.request]
        self._over(request, now)
        if message.kind == "busy":
            self.ranks.workers[message.worker].record.full(now)
            request.busy += 1
        request.attempts += 1
        request.avoid |= message.suspects
        request.failure = message
        place = request.place
        if place is not None and place.rank.worker.name == message.worker:
            request.place = None
            place.cancel()
        self._wait_for(request, Step.PAUSE, now + RETRY_PAUSE_S * request.attempts)

    def _ended(self, message: m.Ended, now: float) -> None:
        request = self.requests.pop(message.request, None)
        if request is None:
            return
        self._over(request, now)
        place, request.place = request.place, None
        if place is not None:
            place.cancel()
            self._notify_pool(now)
        if message.served:
            self.retries.budget.succeeded()
            for reservation in request.calls:
                if not reservation.over:  # a prefill's answer may trail the decode's
                    reservation.rank.worker.record.answered(now)

    def _over(self, request: RequestState, now: float) -> None:
        """The attempt is: what it waits for, and what it holds beside its calls, goes back."""
        self._still(request)
        if request.step in (Step.PREFILLING, Step.LAST_WORD, Step.DECODE):
            self.parked -= 1
        request.step = Step.HOST
        if request.queue_role:
            self._leave_queue(request)
        if self.pool is not None:
            self.pool.leave(request)
        self._return_credit(request)
        self._leave_probation(request)
        request.prefill_rank = None

    # What workers say.

    def _greeted(self, message: m.Greeted, now: float) -> None:
        worker = self.ranks.workers[message.worker]
        worker.greeted(message.slots, message.reserve, message.dp_attention, message.prefill_only)
        self._notify_pool(now)

    def _up(self, message: m.Up, now: float) -> None:
        worker = self.ranks.workers[message.worker]
        worker.tells_prefills = message.tells_prefills
        if worker.up():
            self._health_changed(message.worker, now)

    def _held_up(self, message: m.HeldUp, now: float) -> None:
        if self.ranks.workers[message.worker].held_up(now):
            self._health_changed(message.worker, now)

    def _down(self, message: m.Down, now: float) -> None:
        worker = self.ranks.workers[message.worker]
        if worker.down(now):
            self._health_changed(message.worker, now)
        for request in list(self.requests.values()):
            rank = request.prefill_rank
            if request.step is Step.PREFILLING and rank is not None and rank.worker is worker:
                self._choose_decode(request, now, known=False)

    def _died(self, message: m.Died, now: float) -> None:
        if self.ranks.workers[message.worker].died(message.crashed, now):
            self.ranks.deaths.note(now)
        for request in list(self.requests.values()):
            failure = request.failure
            if request.step is Step.VERDICT and failure is not None and self.retries.died(failure):
                self._judge(request, now)

    def _load_read(self, message: m.LoadRead, now: float) -> None:
        rank = self._rank(message.rank)
        if message.reading is None:
            rank.ledger.reading = None
            return
        rank.worker.last_event = now
        rank.ledger.read(message.reading, now)
        if self.pool is not None and rank.worker.spec.role == "decode":
            self.pool.reading(now)

    def _stepped(self, message: m.Stepped, now: float) -> None:
        self._rank(message.rank).stepped(message.steps)

    def _beaten(self, message: m.Beaten, now: float) -> None:
        """One rank that is stuck takes all of its worker with it: what ends it ends the worker."""
        rank = self._rank(message.rank)
        if not rank.beat(message.beat, now):
            return
        worker = rank.worker
        if rank.health is Health.STUCK and worker.stuck_since is None:
            self._died(m.Died(worker.name, crashed=False), now)  # suspects are as after a death
            worker.stuck_since, worker.stood_from = now, rank.watchdog.moved_at
            worker.times_stuck += 1
            self._down(m.Down(worker.name), now)
            self._orders.append(m.Stuck(worker.name, rank))
            return
        stuck = any(each.health is Health.STUCK for each in worker.ranks)
        goes_on = worker.stuck_since is not None and not stuck
        if goes_on:
            worker.stuck_since = None
            worker.up()
        self._health_changed(worker.name, now, rank, goes_on)

    def _hold(self, message: m.Hold, now: float) -> None:
        for key in message.ranks:
            self._rank(key).held = message.on
        self._health_changed(message.ranks[0][0], now)

    def _expected(self, message: m.Expected, now: float) -> None:
        self.ranks.returns.told(message.worker, message.usual_s, message.back_in_s, now)
        self._wake_all()

    def _health_changed(
        self, worker: str, now: float, rank: RankState | None = None, goes_on: bool = False
    ) -> None:
        self.ranks.changed(now)
        self._orders.append(m.HealthChanged(worker, rank, goes_on))
        self._wake_all()
        self._notify_pool(now)

    def _rank(self, key: m.Key) -> RankState:
        return self.ranks.workers[key[0]].ranks[key[1]]

    # What time brings.

    def _tick(self, _: m.Tick, now: float) -> None:
        for due in self._timers.take(now):
            if isinstance(due, Wait):
                self._waited(due.request, due.step, now)
            elif not due.reservation.over:
                due.reservation.rank.worker.record.answered(now)
        if self.pool is not None and self.pool.due is not None and self.pool.due <= now:
            self._round(now)

    def _waited(self, request: RequestState, step: Step, now: float) -> None:
        request.timer = None
        match step:
            case Step.PREFILLING | Step.LAST_WORD:
                self._choose_decode(request, now, known=False)
            case Step.PAUSE:
                failure = request.failure
                assert failure is not None
                told = failure.kind not in ("lost", "early") or failure.proven
                if told or self.retries.died(failure):
                    self._judge(request, now)
                else:
                    self._wait_for(request, Step.VERDICT, now + VERDICT_S)
            case Step.VERDICT:
                self._judge(request, now)
            case Step.RUNNING:
                self._leave_probation(request)
            case _:
                self._advance(request, now)

    def _round(self, now: float) -> None:
        assert self.pool is not None
        made = self.pool.round(now)
        for request, reservation, waited_s in made.bound:
            self._orders.append(m.Waited(waited_s))
            self._decode(request, reservation, now)
        for request in made.given_up:
            if made.failure is None:
                order = m.Refuse(
                    request.number, "nobody", role="decode", retry_after=GONE_RETRY_AFTER_S
                )
                self._refuse(request, order)
            else:
                self._policy_failed(request, "decode", made.failure)

    def _judge(self, request: RequestState, now: float) -> None:
        failure = request.failure
        assert failure is not None
        self._still(request)
        request.step = Step.HOST
        judgement = self.retries.judge(request, failure, now)
        if judgement == "again":
            self._orders.append(m.Again(request.number))
            return
        strikes = request.record.strikes
        if judgement == "poisonous":
            seen = tuple((worker, str(what)) for what, worker in strikes)
            self._orders.append(m.Quarantined(request.number, seen))
        self._orders.append(m.Refuse(request.number, judgement, strikes=len(strikes)))

    # How a request gets its workers.

    def _advance(self, request: RequestState, now: float) -> None:
        """Go on as far as it can, then wait."""
        while True:
            match request.step:
                case Step.DECODE_THERE:
                    if not self._there(request, now):
                        return
                    request.step = Step.PREFILL
                case Step.PREFILL if request.prefill_rank is None:
                    rank = self._seek(request, "prefill", now, credit=self.late)
                    if rank is None:
                        return
                    request.prefill_rank = rank
                    request.credit = rank if self.late else None
                case Step.PREFILL:
                    rank = request.prefill_rank
                    assert rank is not None
                    if request.shape == "one_token" and rank.worker.prefill_only:
                        self._prefill(request, rank, now, whole=True)
                        return
                    if request.shape == "one_token" and not self._there(request, now):
                        return
                    if self.late and rank.worker.tells_prefills:
                        self._prefill(request, rank, now, whole=False)
                        return
                    request.step = Step.DECODE_EARLY
                case Step.DECODE_EARLY:
                    decode = self._placed(request) or self._seek(request, "decode", now)
                    if decode is None:
                        return
                    self._both(request, decode, now)
                    return
                case Step.DECODE:
                    decode = self._seek(request, "decode", now)
                    if decode is not None:
                        self._decode(request, self._reserve(request, decode, now), now)
                    return
                case Step.WHOLE:
                    if self._go_to_place(request, now):
                        return
                    role = request.shape
                    rank = self._seek(request, role, now)
                    if rank is not None:
                        self._decode(request, self._reserve(request, rank, now), now)
                    return
                case _:
                    return

    def _there(self, request: RequestState, now: float) -> bool:
        """Whether some decode worker is; the request waits for one if not."""
        if self.ranks.any_open("decode"):
            if request.queue_role:
                self._leave_queue(request)
            return True
        if not request.queue_role:
            self._enter_queue(request, "decode", now, suspect=False, best_effort=False)
        self._stay(request, "decode", now)
        return False

    def _seek(
        self, request: RequestState, role: str, now: float, credit: bool = False
    ) -> RankState | None:
        """The policy's choice among healthy ranks (with `credit`: those that have one left); None:
        the request waits for one, or is refused.

        It waits for a credit as long as it lives, and for a worker to come back as long as its
        bounds say, or as a start takes (`toolkit.decide.returns`), until its own deadline. Nobody
        overtakes those who wait, however often the health of workers changes meanwhile.
        """
        suspect = request.record.suspect
        queue = self._queue(role, suspect)
        if request.queue_role:
            may = suspect or queue.head is request
        else:
            may = not (queue and (credit or suspect))
        try:
            rank = self.choosing.choose(role, request, now, credit) if may else None
        except PolicyFailed as failure:
            self._policy_failed(request, role, failure)
            return None
        if rank is not None:
            if request.queue_role:
                self._leave_queue(request)
            return rank
        if not request.queue_role:
            self._enter_queue(request, role, now, suspect, request.view.best_effort)
        self._stay(request, role, now)
        return None

    def _queue(self, role: str, suspect: bool) -> WaitQueue:
        return self._on_probation if suspect else self._queues[role]

    def _queue_of(self, request: RequestState) -> WaitQueue:
        """The one that it waits in."""
        if request in self._on_probation:
            return self._on_probation
        return self._queues[request.queue_role]

    def _enter_queue(
        self, request: RequestState, role: str, now: float, suspect: bool, best_effort: bool
    ) -> None:
        request.queue_role, request.entered = role, now
        self._queue(role, suspect).enter(request, best_effort)

    def _leave_queue(self, request: RequestState) -> None:
        """Its place is the next one's, who looks."""
        self._still(request)
        queue = self._queue_of(request)
        queue.leave(request)
        request.queue_role = ""
        self._wake_one(queue)

    def _stay(self, request: RequestState, role: str, now: float) -> None:
        """Wait until something may have changed; refused when the wait is over."""
        self._still(request)
        if self.ranks.gone_at(role) is None:
            return
        bounds = self.bounds
        if request.step is Step.DECODE:
            least_s = bounds.park_timeout_s
        else:
            least_s = bounds.rerun_wait_s if request.attempt else bounds.no_worker_wait_s
        stay = self.ranks.stay(role, request.entered, least_s, request.deadline, now)
        if stay.seconds > 0:
            request.timer = self._timers.set(now + stay.seconds, Wait(request, request.step))
            return
        order = m.Refuse(request.number, "nobody", role=role, retry_after=stay.retry_after)
        self._refuse(request, order)

    def _wake_one(self, queue: WaitQueue) -> None:
        head = queue.head
        if head is not None:
            self._woken.append(head)

    def _wake_all(self) -> None:
        """Let everybody who waits for a worker look again."""
        for queue in (*self._queues.values(), self._on_probation):
            self._woken.extend(queue)

    # Orders.

    def _reserve(self, request: RequestState, rank: RankState, now: float) -> Reservation:
        return self.choosing.reserve(
            rank, request.view, now, generates=rank.worker.spec.role != "prefill",
            streams=request.streams, generated=request.generated,
        )  # fmt: skip

    def _prefill(self, request: RequestState, rank: RankState, now: float, whole: bool) -> None:
        reservation = self.choosing.reserve(rank, request.view, now, generates=False)
        request.calls.append(reservation)
        self._orders.append(m.Prefill(request.number, rank, reservation, whole=whole))
        if whole:
            self._run(request, now)
            return
        self.parked += 1
        self._wait_for(request, Step.PREFILLING, now + self.bounds.prefill_wait_s)

    def _both(self, request: RequestState, decode: RankState, now: float) -> None:
        """The prefill, and a decode rank that was chosen before."""
        prefill = request.prefill_rank
        assert prefill is not None
        reservation = self.choosing.reserve(prefill, request.view, now, generates=False)
        request.calls.append(reservation)
        self._orders.append(m.Prefill(request.number, prefill, reservation, late=False))
        if not self._go_to_place(request, now):
            self._decode(request, self._reserve(request, decode, now), now)

    def _decode(self, request: RequestState, reservation: Reservation, now: float) -> None:
        request.calls.append(reservation)
        self._orders.append(m.Decode(request.number, reservation.rank, reservation))
        if request.step is Step.DECODE:
            self.parked -= 1
        self._run(request, now)
        self._return_credit(request)

    def _run(self, request: RequestState, now: float) -> None:
        self._still(request)
        request.step = Step.RUNNING
        if request.record.suspect and not request.streams:
            # Nothing is heard of it before its end; another suspect must not wait for that.
            request.timer = self._timers.set(now + PROBATION_S, Wait(request, Step.RUNNING))

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
            self._notify_pool(now)
            return False
        self._decode(request, place, now)
        return True

    def _refuse(self, request: RequestState, order: m.Refuse) -> None:
        """Whatever it waits in is left when the host answers."""
        self._still(request)
        if request.queue_role:
            self._leave_queue(request)
        if request.step is Step.DECODE:
            self.parked -= 1
        request.step = Step.HOST
        self._orders.append(order)

    def _policy_failed(self, request: RequestState, role: str, failure: PolicyFailed) -> None:
        order = m.Refuse(
            request.number, "policy", role=role, text=str(failure), cause=failure.cause
        )
        self._refuse(request, order)

    def _return_credit(self, request: RequestState) -> None:
        """Another request may be prefilled there. Suspects look first: they are as few as the
        workers."""
        rank, request.credit = request.credit, None
        if rank is None:
            return
        rank.credit += 1
        self._woken.extend(self._on_probation)
        self._wake_one(self._queues[rank.worker.spec.role])

    def _leave_probation(self, request: RequestState) -> None:
        """The suspect has proven itself, or is gone: another one may have its worker."""
        if self.choosing.probation.leave(request):
            self._woken.extend(self._on_probation)

    def _notify_pool(self, now: float) -> None:
        if self.pool is not None:
            self.pool.notified(now)

    def _wait_for(self, request: RequestState, step: Step, until: float) -> None:
        self._still(request)
        request.step = step
        request.timer = self._timers.set(until, Wait(request, step))

    def _still(self, request: RequestState) -> None:
        """Nothing is due for it."""
        timer, request.timer = request.timer, None
        if timer is not None:
            timer.cancel()
