"""A request that a relay has, as the decider process knows it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol, cast

from toolkit.decide import messages as m
from toolkit.policies.base import RequestView
from toolkit.router.prefill_facts import PrefillFacts
from toolkit.router.processes import wire
from toolkit.router.quiet import where

if TYPE_CHECKING:
    from toolkit.decide.ranks import RankState
    from toolkit.decide.reservation import Reservation
    from toolkit.policies.stages.running import Why
    from toolkit.router.control_plane import ControlPlane
    from toolkit.router.prefills import PrefillWait
    from toolkit.router.worker import Rank


log = logging.getLogger("toolkit.router")


class KnowsRequests(Protocol):
    """Who has all requests of all relays."""

    @property
    def control(self) -> ControlPlane: ...
    def place(self, rank: RankState) -> wire.Place:
        """A rank as the wire has it."""
        ...

    def moved(self, ask: int) -> None:
        """A move that was asked for is over."""
        ...

    def forget(self, number: int) -> None:
        """A request is over."""
        ...


class HasRequests(Protocol):
    """A relay. `calls`: reservations by their numbers on the wire."""

    calls: dict[int, Reservation]

    def send(self, message: wire.FromDecider) -> None: ...
    def call_of(self, reservation: Reservation) -> int:
        """A number for a reservation, until it is released."""
        ...

    def asks(self, ask: int) -> int:
        """A number for who asks for a move there; 0 for nobody."""
        ...


class RemoteRequest:
    """Takes the decider's orders for its relay. `theirs`: its number there."""

    def __init__(self, hub: KnowsRequests, relay: HasRequests, theirs: int) -> None:
        self._hub = hub
        self._relay = relay
        self._theirs = theirs
        self._known_workers = hub.control.known_workers
        self._channel = self._known_workers.channel
        self.number = self._channel.join(self)
        self._rid = ""
        self._sampled = False
        self._attempt = 0
        self._facts = PrefillFacts(RequestView())
        self._wait: PrefillWait | None = None
        self._mine: list[Reservation] = []
        """Of the present attempt."""
        self._beside: list[tuple[str, int]] = []
        """What workers call it that it moves to, or moved to."""
        self._asked = 0
        """Who asked for its move, by the hub's number."""
        self._rejoining: list[int] = []
        self._begins: m.Arrive | m.Rejoined | None = None
        """What the decider has not been told yet."""

    # What its relay says.

    def arrives(self, told: wire.WireArrive) -> None:
        """It has come."""
        view = self._attempts(told.rid, told.view, told.sampled)
        self._begins = m.Arrive(
            self.number, view, told.shape, told.streams, told.arrived, told.deadline, told.digest
        )

    def begin(self) -> None:
        """Tell the decider that it is there, unless it has ended."""
        begins, self._begins = self._begins, None
        if begins is not None:
            self._channel.send(begins)

    def _attempts(self, rid: str, view: wire.WireView, sampled: bool) -> RequestView:
        self._rid, self._sampled = rid, sampled
        self._facts = PrefillFacts(view.view())
        self._mine.clear()
        self._beside.clear()
        return self._facts.view

    def rejoins(self, told: wire.WireRejoin) -> None:
        """It was there before this process."""
        arrive = told.arrive
        self._attempt = told.attempts
        view = self._attempts(arrive.rid, arrive.view, arrive.sampled)
        self._beside += told.beside
        calls = tuple(
            m.RejoinedCall(self._rank(call.rank).key, call.answers, call.proven)
            for call in told.calls
        )
        self._rejoining = [call.call for call in told.calls]
        move = None
        if told.move is not None:
            call, why, ask = told.move
            self._asked = self._relay.asks(ask)
            move = m.RejoinedMove(call, cast("Why", why), self._asked)
        self._begins = m.Rejoined(
            self.number, view, arrive.shape, arrive.streams, arrive.arrived, arrive.deadline,
            told.generated, told.attempts, told.begins, calls, move,
        )  # fmt: skip

    def hear(self, told: wire.FromRelay) -> None:
        """What has happened to it."""
        channel, number = self._channel, self.number
        match told:
            case wire.WireNextAttempt():
                self._over()
                self._attempt += 1
                view = self._attempts(told.rid, told.view, sampled=False)
                place = self._relay.calls.get(told.place)
                channel.send(m.NextAttempt(number, view, told.generated, told.moved, place))
            case wire.WirePrefilled():
                channel.send(m.Prefilled(number, self._facts.view))
            case wire.WireProven():
                reservation = self._relay.calls.get(told.call)
                if reservation is not None:
                    channel.send(m.Proven(number, reservation, told.decode))
            case wire.WireFailed():
                proven = told.proven or any(
                    each.proven and each.rank.worker.name == told.worker for each in self._mine
                )
                suspects = frozenset(told.suspects)
                channel.send(
                    m.Failed(
                        number, told.worker, told.kind, told.begun, proven, suspects, told.digest
                    )
                )
            case wire.WireMoveEnded():
                if not told.again:
                    self._hub.moved(self._asked)
                channel.send(
                    m.MoveEnded(
                        number, told.how, told.rank, told.stall_s, told.tokens, told.generated,
                        told.again, told.reason,
                    )
                )  # fmt: skip
            case wire.WireBeside():
                self._beside.append((told.rid, told.worker))
            case _:
                raise AssertionError(type(told).__name__)

    def end(self, served: bool) -> None:
        """It is over."""
        self._over()
        self._begins = None
        self._channel.send(m.RequestEnded(self.number, served))
        self._channel.leave(self.number)
        self._hub.forget(self.number)

    def _over(self) -> None:
        if self._wait is not None:
            self._wait.over()
            self._wait = None

    def abandon(self) -> None:
        """Its relay has ended, and its client's connection with it."""
        workers = self._known_workers.workers
        drops = list(self._beside)
        for reservation in self._mine:
            if not reservation.over:
                drops.append((self._rid, self._hub.place(reservation.rank)[0]))
                self._channel.send(m.CallReleased(reservation, "unknown", False))
        self.end(served=False)
        for rid, place in drops:
            try:
                workers[place].abort(rid)
            except Exception as error:  # best effort, as it is; the counts have gone back
                name = workers[place].name
                log.error("%s could not be told to drop a request: %s", name, where(error))

    # The decider's orders.

    def take(self, order: m.RequestOrder) -> None:
        """For its relay."""
        relay, theirs = self._relay, self._theirs
        match order:
            case m.PrefillOrder():
                self._prefill(order)
            case m.DecodeOrder():
                self._decode(order)
            case m.Again():
                relay.send(wire.WireAgain(theirs))
            case m.Refuse():
                relay.send(
                    wire.WireRefuse(
                        theirs, order.why, order.role, order.retry_after, order.strikes, order.text
                    )
                )
            case m.Restored():
                self._restored(order)

    def _prefill(self, order: m.PrefillOrder) -> None:
        if order.late and not order.whole:
            self._wait_for(order.rank, order.reservation)
        self._mine.append(order.reservation)
        self._relay.send(
            wire.WirePrefill(
                self._theirs, self._attempt, self._hub.place(order.rank),
                self._relay.call_of(order.reservation), order.whole, order.late,
                self._channel.suspicion(self.number),
            )
        )  # fmt: skip

    def _wait_for(self, rank: RankState, reservation: Reservation) -> None:
        worker = self._known_workers.named(rank.key[0])
        self._wait = self._hub.control.prefills.wait(
            worker, self._rid, self.number, reservation, self._facts, self._sampled
        )

    def _decode(self, order: m.DecodeOrder) -> None:
        reservation, facts = order.reservation, self._facts
        self._mine.append(reservation)
        self._relay.send(
            wire.WireDecode(
                self._theirs, self._attempt, self._hub.place(order.rank),
                self._relay.call_of(reservation), reservation.counts, reservation.followed,
                self._channel.suspicion(self.number), facts.counted, facts.view.prompt_tokens,
                facts.view.cached_tokens, facts.told_at, facts.done_at,
            )
        )  # fmt: skip
        if self._wait is not None:
            self._wait.decoding()

    def prefill_over(self, at: float) -> None:
        """Its prefill is done; its decode worker was chosen before."""
        self._relay.send(wire.WirePrefillOver(self._theirs, self._attempt, at))

    def move(self, order: m.MoveOrder, ask: int) -> None:
        """Have it go on on another rank. `ask`: of its relay."""
        self._mine.append(order.reservation)
        self._asked = order.ask
        self._relay.send(
            wire.WireMove(
                self._theirs, self._hub.place(order.rank),
                self._relay.call_of(order.reservation), order.reservation.counts, order.why, ask,
                order.way, order.room,
            )
        )  # fmt: skip

    def kept(self, order: m.MoveKept, ask: int) -> None:
        """It is not moved."""
        self._relay.send(wire.WireMoveKept(self._theirs, ask, order.why, order.reason, order.ended))

    def _restored(self, order: m.Restored) -> None:
        for number, reservation in zip(self._rejoining, order.reservations, strict=True):
            self._relay.calls[number] = reservation
            self._mine.append(reservation)
        if order.waits is not None:
            self._wait_for(order.waits.rank, order.waits)

    def _rank(self, place: wire.Place) -> Rank:
        worker, dp_rank = place
        return self._known_workers.workers[worker].ranks[dp_rank]
