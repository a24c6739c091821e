"""The decider: what has happened in, what is to be done out. Which worker runs a request, and what
happens when one of them fails.

It has no clock, socket or event loop. Its host tells it messages in the order in which things
happen, and carries out the orders that it gets for each. `due` says when the host is to tell it the
time (`Tick`), if nothing else happens. The same messages at the same times give the same orders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from toolkit.decide import messages as m
from toolkit.decide.attempts import Attempts
from toolkit.decide.choosing import Chooser
from toolkit.decide.moves import MoveDecider
from toolkit.decide.requests import Due, Wait
from toolkit.decide.timers import Timers
from toolkit.decide.watchdog import Health

if TYPE_CHECKING:
    from toolkit.decide.bounds import DeciderBounds
    from toolkit.decide.pool import Pool
    from toolkit.decide.ranks import KnownRanks, RankState, WorkerState
    from toolkit.policies.stages.narrowing import StageFilter


class Decider:
    """See the module."""

    def __init__(
        self, ranks: KnownRanks, bounds: DeciderBounds, stages: StageFilter | None
    ) -> None:
        self.ranks = ranks
        self.bounds = bounds
        self._timers: Timers[Due] = Timers()
        self.choosing = Chooser(ranks, bounds.eject_share, bounds.kept_back, stages)
        self.attempts = attempts = Attempts(self.choosing, bounds, self._timers)
        self.moves = moves = MoveDecider(self.choosing, attempts.requests, bounds)
        self._takes: dict[type[m.Message], Callable[[Any, float], None]] = {
            m.Arrive: attempts.arrive,
            m.NextAttempt: attempts.go_on,
            m.Prefilled: attempts.prefilled,
            m.Proven: attempts.proven,
            m.TokensCame: attempts.tokens_came,
            m.CallReleased: attempts.released,
            m.Failed: attempts.failed,
            m.RequestEnded: self._request_ended,
            m.Rejoined: self._rejoined,
            m.MoveAsked: moves.asked,
            m.MoveEnded: moves.ended,
            m.RunningSeen: moves.seen,
            m.StagesPlanned: moves.planned,
            m.Empty: moves.empty,
            m.WorkerGreeted: self._greeted,
            m.WorkerShared: self._shared,
            m.WorkerWarned: self._warned,
            m.QuarantineTold: self._quarantine_told,
            m.WorkerHeard: self._heard,
            m.WorkerUp: self._up,
            m.WorkerHeldUp: self._held_up,
            m.WorkerDown: self._down,
            m.WorkerDied: self._died,
            m.LoadRead: self._load_read,
            m.Stepped: self._stepped,
            m.Beaten: self._beaten,
            m.Hold: self._hold,
            m.UsePolicy: self._use_policy,
            m.UseDispatch: self._use_dispatch,
            m.UseCentroids: self._use_centroids,
            m.UseMaps: self._use_maps,
            m.Expected: self._expected,
            m.TimePassed: self._tick,
        }

    def on(self, message: m.Message, now: float) -> list[m.Order]:
        """Take a message; the orders that follow from it, in their order."""
        attempts, moves = self.attempts, self.moves
        self._takes[type(message)](message, now)
        if attempts.waiting.woken:
            attempts.wake(now)
        if not attempts.orders and not moves.orders:
            return []
        orders, attempts.orders = attempts.orders, []
        if moves.orders:
            orders += moves.orders
            moves.orders = []
        return orders

    @property
    def due(self) -> float | None:
        """When the host is to tell the time; None: nothing waits for it. In the past: as soon as
        all that has happened so far is told."""
        pool, due = self.attempts.pool, self._timers.due
        # Asked after every message: no list is made.
        for at in (None if pool is None else pool.due, self.moves.due):
            if at is not None and (due is None or at < due):
                due = at
        return due

    @property
    def pool(self) -> Pool | None:
        """Of finished prefills; None where no worker only decodes."""
        return self.attempts.pool

    def _request_ended(self, message: m.RequestEnded, now: float) -> None:
        self.attempts.ended(message, now)
        self.moves.over(message.request, now)

    def _rejoined(self, message: m.Rejoined, now: float) -> None:
        self.attempts.rejoined(message, now)
        if message.move is not None:
            self.moves.rejoined(message.request, message.move, now)

    def _greeted(self, message: m.WorkerGreeted, now: float) -> None:
        self.moves.begin(now)
        worker = self.ranks.workers[message.worker]
        if message.anew:
            self._replaced(worker)
        worker.greeted(message.slots, message.reserve, message.dp_attention, message.prefill_only)
        self.attempts.notify_pool(now)

    def _replaced(self, worker: WorkerState) -> None:
        """Another process answers where the worker did: nothing of the former one counts."""
        self.attempts.forget_probes(worker)
        worker.replaced()
        self.choosing.pairs.forget(worker.name)
        for policy in self.choosing.policies.values():
            policy.replaced(worker.name)

    def _shared(self, message: m.WorkerShared, now: float) -> None:
        worker = self.ranks.workers[message.worker]
        for _ in range(worker.shared(message.routers)):
            self.attempts.waiting.credit_returned(worker.spec.role)

    def _warned(self, message: m.WorkerWarned, now: float) -> None:
        self.ranks.workers[message.worker].record.warned(now)

    def _quarantine_told(self, message: m.QuarantineTold, now: float) -> None:
        self.attempts.retries.take_told(message.digest, message.strikes, message.left_s, now)

    def _heard(self, message: m.WorkerHeard, now: float) -> None:
        self.ranks.workers[message.worker].last_event = now

    def _up(self, message: m.WorkerUp, now: float) -> None:
        worker = self.ranks.workers[message.worker]
        worker.tells_prefills = message.tells_prefills
        if worker.up():
            self._health_changed(message.worker, now)

    def _held_up(self, message: m.WorkerHeldUp, now: float) -> None:
        if self.ranks.workers[message.worker].held_up(now):
            self._health_changed(message.worker, now)

    def _down(self, message: m.WorkerDown, now: float) -> None:
        if self.ranks.workers[message.worker].down(now):
            self._health_changed(message.worker, now)
        self.attempts.missed(message.worker, now)

    def _died(self, message: m.WorkerDied, now: float) -> None:
        if self.ranks.workers[message.worker].died(message.crashed, now):
            self.ranks.deaths.note(now)
        self.attempts.died(now)

    def _load_read(self, message: m.LoadRead, now: float) -> None:
        rank = self.ranks.rank(message.rank)
        if message.reading is None:
            rank.ledger.unreadable()
            return
        rank.worker.last_event = now
        rank.ledger.read(message.reading, now)
        pool = self.attempts.pool
        if pool and rank.worker.spec.role == "decode":  # somebody waits there
            pool.reading(now)

    def _stepped(self, message: m.Stepped, now: float) -> None:
        self.ranks.rank(message.rank).stepped(message.steps, message.step_tokens)

    def _beaten(self, message: m.Beaten, now: float) -> None:
        """One rank that is stuck takes all of its worker with it: what ends it ends the worker."""
        rank = self.ranks.rank(message.rank)
        if not rank.beat(message.beat, now):
            return
        worker = rank.worker
        if rank.health is Health.STUCK and worker.stuck_since is None:
            self._died(
                m.WorkerDied(worker.name, crashed=False), now
            )  # suspects are as after a death
            worker.stuck_since, worker.stood_from = now, rank.watchdog.moved_at
            worker.times_stuck += 1
            self._down(m.WorkerDown(worker.name), now)
            self.attempts.orders.append(m.WorkerStuck(worker.name, rank))
            return
        stuck = any(each.health is Health.STUCK for each in worker.ranks)
        goes_on = worker.stuck_since is not None and not stuck
        if goes_on:
            worker.stuck_since = None
            worker.up()
        self._health_changed(worker.name, now, rank, goes_on)

    def _hold(self, message: m.Hold, now: float) -> None:
        for key in message.ranks:
            self.ranks.rank(key).held = message.on
        self._health_changed(message.ranks[0][0], now)

    def _use_policy(self, message: m.UsePolicy, now: float) -> None:
        self.choosing.use(message.side, message.policy, message.following)
        if message.side == "decode":
            self.attempts.notify_pool(now)

    def _use_dispatch(self, message: m.UseDispatch, now: float) -> None:
        self.attempts.late = message.late

    def _use_centroids(self, message: m.UseCentroids, now: float) -> None:
        locality = self.choosing.policies["decode"].locality
        if locality is not None:
            locality.centroids = message.centroids

    def _use_maps(self, message: m.UseMaps, now: float) -> None:
        locality = self.choosing.policies["decode"].locality
        if locality is not None:
            locality.maps = message.maps

    def _expected(self, message: m.Expected, now: float) -> None:
        self.ranks.returns.told(message.worker, message.usual_s, message.back_in_s, now)
        self.attempts.waiting.all_look()

    def _tick(self, message: m.TimePassed, now: float) -> None:
        for due in self._timers.take(now):
            if isinstance(due, Wait):
                self.attempts.waited(due, now)
            elif not due.reservation.over:
                due.reservation.rank.worker.record.answered(now)
        if self.pool is not None and self.pool.due is not None and self.pool.due <= now:
            self.attempts.round(now)
        self.moves.tick(message.took_s, now)

    def _health_changed(
        self, worker: str, now: float, rank: RankState | None = None, goes_on: bool = False
    ) -> None:
        self.ranks.changed(now)
        self.attempts.orders.append(m.HealthChanged(worker, rank, goes_on))
        self.attempts.waiting.all_look()
        self.attempts.notify_pool(now)
