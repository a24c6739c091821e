"""What the router's parts and the decider say to each other, in one process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from toolkit.decide import messages as m
from toolkit.decide.decider import Decider
from toolkit.decide.reservation import Reservation
from toolkit.router.decider_channel import Suspicion, TakesOrders

if TYPE_CHECKING:
    from toolkit.router.errors import ApiError


class TakesVerdicts(Protocol):
    """A worker of the router."""

    def judged(self, order: m.WorkerStuck | m.HealthChanged) -> None: ...


class HearsDecisions(Protocol):
    """Who hears what the decider has decided, beside those whom it orders something."""

    def health_changed(self, worker: str) -> None: ...
    def note(self, order: m.Noted) -> None: ...


class Channel:
    """Tells the decider messages, with the time, and carries its orders out at once: whoever sends
    a message finds its orders carried out. Keeps the decider's clock."""

    refusal: ApiError | None = None
    """Whoever asks has the decider."""

    def __init__(self) -> None:
        self._decider: Decider | None = None
        self._numbers = 0
        self._requests: dict[int, TakesOrders] = {}
        self._workers: Mapping[str, TakesVerdicts] = {}
        self._listeners: Sequence[HearsDecisions] = ()
        self._orders: deque[m.Order] = deque()
        self._came: dict[Reservation, int] = {}
        """Tokens that have come, and that the decider has not been told of."""
        self._delivering = False
        self._due: float | None = None
        self._timer: asyncio.Handle | None = None
        self._took_s = 0.0

    @property
    def decider(self) -> Decider:
        assert self._decider is not None
        return self._decider

    def begin(
        self,
        decider: Decider,
        workers: Mapping[str, TakesVerdicts],
        listeners: Sequence[HearsDecisions],
    ) -> None:
        """The decider to talk to, the workers that it judges, and who hears of that, in this
        order."""
        self._decider, self._workers, self._listeners = decider, workers, listeners

    def join(self, request: TakesOrders) -> int:
        """A number for a request, under which it gets orders until `leave`."""
        self._numbers += 1
        self._requests[self._numbers] = request
        return self._numbers

    def leave(self, number: int) -> None:
        """The request takes no orders any more."""
        del self._requests[number]

    @property
    def quarantines(self) -> bool:
        """Whether requests must come with a digest."""
        return self.decider.attempts.retries.quarantines

    def beside(self, number: int, rid: str, worker: str) -> None:
        """Nobody has to know: what ends this process ends its connections too."""

    def suspicion(self, number: int) -> Suspicion:
        """Of a request; none before it runs and when it is over."""
        known = self.decider.attempts.requests.get(number)
        if known is None:
            return Suspicion()
        return Suspicion(known.record.suspect, known.record.lingering)

    def send(self, message: m.Message, now: float | None = None) -> None:
        """Tell it, and carry out what follows. `now`: when it happened, if not just now."""
        decider, now = self.decider, monotonic() if now is None else now
        if self._came:  # before all that is decided by it
            came, self._came = self._came, {}
            decider.on(m.TokensCame(tuple(came.items())), now)
        orders = decider.on(message, now)
        if orders:
            self._orders += orders
            self._deliver()
        if decider.due != self._due and not self._delivering:
            self._arm()

    def counter(self, reservation: Reservation) -> Callable[[int], None] | None:
        """What is to be called with the number of tokens that came; None where nobody wants to
        know."""
        return partial(self._count, reservation) if reservation.counts else None

    def _count(self, reservation: Reservation, tokens: int) -> None:
        self._came[reservation] = self._came.get(reservation, 0) + tokens

    def give_back(self, reservation: Reservation) -> None:
        """It was not used."""
        self.send(m.CallReleased(reservation, "unsent", False))

    def _deliver(self) -> None:
        if self._delivering:  # of a message that was sent while orders are carried out
            return
        self._delivering = True
        try:
            while self._orders:
                self._carry_out(self._orders.popleft())
        finally:
            self._delivering = False

    def _carry_out(self, order: m.Order) -> None:
        match order:
            case m.PrefillOrder() | m.DecodeOrder() | m.Again() | m.Refuse() | m.Restored():
                request = self._requests.get(order.request)
                if request is not None:
                    request.take(order)
            case m.WorkerStuck() | m.HealthChanged():
                self._workers[order.worker].judged(order)
                for listener in self._listeners:
                    listener.health_changed(order.worker)
            case _:
                for listener in self._listeners:
                    listener.note(order)

    def _arm(self) -> None:
        """Be called when the decider wants to hear the time."""
        due = self.decider.due
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = due
        if due is None:
            return
        loop = asyncio.get_running_loop()
        if due <= loop.time():
            self._timer = loop.call_soon(self._tick)
        else:
            self._timer = loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = self._due = None
        begun = monotonic()
        self.send(m.TimePassed(self._took_s), begun)
        self._took_s = monotonic() - begun
