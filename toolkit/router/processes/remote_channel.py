"""A relay's way to the decider, which is in another process.

Messages go out at once and orders come later. The decider process may end and be replaced: then the
new one is told of every request that is there, with the calls that it has, and decides again what
waited for an order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from toolkit.decide import messages as m
from toolkit.router.decider_channel import Attempting, Suspicion
from toolkit.router.errors import ApiError
from toolkit.router.processes import wire
from toolkit.router.processes.remote_reservation import RemoteReservation

if TYPE_CHECKING:
    from toolkit.decide.reservation import Reservation
    from toolkit.policies.base import RequestView
    from toolkit.router.processes.link import ProcessLink
    from toolkit.router.worker import Rank, Worker
    from toolkit.router.worker_listener import WorkerListener

SILENT_S = 2.0
"""New requests are refused when nothing has come of the decider process for so long."""
REPLACED_S = 10.0
"""And when there has been none for so long: another one takes its place."""
UNSENT = 16 * 2**20
"""And when so many bytes wait for it to read them."""
RETRY_AFTER_S = 2


class _Told:
    """A request, and what the decider knows of it. `view`, `generated`: of its present attempt;
    `attempts`: those before."""

    __slots__ = ("arrive", "attempts", "beside", "calls", "failed", "generated", "move", "request",
                 "rid", "sampled", "suspicion", "view", "waits")  # fmt: skip

    def __init__(self, request: Attempting) -> None:
        self.request = request
        self.arrive: m.Arrive | None = None
        self.view: RequestView | None = None
        self.rid = ""
        self.sampled = False
        self.generated = self.attempts = 0
        self.calls: list[RemoteReservation] = []
        self.beside: list[tuple[str, int]] = []
        self.failed: m.Failed | None = None
        """Whether it may run again is not decided."""
        self.waits = False
        """Its first worker is not decided."""
        self.suspicion = Suspicion()
        self.move: tuple[RemoteReservation, str, int] | None = None
        """Its place, why, and who asked for it, while one is under way."""


class RemoteChannel:
    """Tells the decider process messages, and requests its orders."""

    def __init__(self) -> None:
        self._link: ProcessLink[Any] | None = None
        self._numbers = 0
        self._told: dict[int, _Told] = {}
        self._workers: Sequence[Worker] = ()
        self._places: dict[str, int] = {}
        self._listeners: Sequence[WorkerListener] = ()
        self._came: dict[RemoteReservation, int] = {}
        self._asked: dict[int, int] = {}
        """Who asked for a move, and of which request, that is neither begun nor refused."""
        self._look = 0
        """The number of the last one."""
        self.quarantines = False
        self.heard_at = monotonic()
        """When the decider process last said something."""

    def begin(self, workers: Sequence[Worker], listeners: Sequence[WorkerListener]) -> None:
        """The workers of its orders, and who hears of those that are no request's."""
        self._workers, self._listeners = workers, listeners
        self._places = {worker.name: place for place, worker in enumerate(workers)}

    # What requests ask.

    @property
    def refusal(self) -> ApiError | None:
        """Why no new request can be decided now; None: it can."""
        link, silent_s = self._link, monotonic() - self.heard_at
        if link is None:
            return silent() if silent_s > REPLACED_S else None
        return silent() if silent_s > SILENT_S or link.unsent > UNSENT else None

    def join(self, request: Attempting) -> int:
        """A number for a request, under which it gets orders until `leave`."""
        self._numbers += 1
        self._told[self._numbers] = _Told(request)
        return self._numbers

    def leave(self, number: int) -> None:
        """The request takes no orders any more."""
        del self._told[number]

    def suspicion(self, number: int) -> Suspicion:
        """Of a request, as its last order said."""
        told = self._told.get(number)
        return Suspicion() if told is None else told.suspicion

    def counter(self, reservation: Reservation) -> Callable[[int], None] | None:
        """What is to be called with the number of tokens that came; None where nobody wants to
        know."""
        handle = _handle(reservation)
        return partial(self._count, handle) if handle.counts else None

    def _count(self, handle: RemoteReservation, tokens: int) -> None:
        if not self._came:
            asyncio.get_running_loop().call_soon(self._tell_tokens)
        self._came[handle] = self._came.get(handle, 0) + tokens

    def _tell_tokens(self) -> None:
        came, self._came = self._came, {}
        if came:
            self._say(wire.WireTokens([(handle.call, tokens) for handle, tokens in came.items()]))

    def give_back(self, reservation: Reservation) -> None:
        """It was not used."""
        self.send(m.CallReleased(reservation, "unsent", False))

    def beside(self, number: int, rid: str, worker: str) -> None:
        """The request also runs on this worker, which calls it `rid`: it moves there."""
        told, place = self._told.get(number), self._places[worker]
        if told is not None:
            told.beside.append((rid, place))
            self._say(wire.WireBeside(number, rid, place))

    def _say(self, message: wire.FromRelay) -> None:
        """Now; a decider process that is not there is told anew when it is."""
        if self._link is not None:
            self._link.send(message)

    # What requests, and connections to workers, tell.

    def send(self, message: m.Message, now: float | None = None) -> None:
        """Tell the decider."""
        if self._came:  # before all that is decided by it
            self._tell_tokens()
        match message:
            case m.Arrive():
                self._arrives(message)
            case m.NextAttempt():
                self._goes_on(message)
            case m.Prefilled():
                self._say(wire.WirePrefilled(message.request))
            case m.Proven():
                handle = _handle(message.reservation)
                handle.proven = True
                self._say(wire.WireProven(message.request, handle.call, message.decode))
            case m.CallReleased():
                self._released(message)
            case m.Failed():
                self._fails(message)
            case m.RunningSeen():
                self._say(wire.WireRunning(self._look, list(message.requests)))
            case m.MoveAsked():
                self._asked[message.ask] = message.request.request
                self._say(wire.WireMoveAsked(message.ask, message.request, message.targets))
            case m.MoveEnded():
                if (ended := self._told.get(message.request)) is not None:
                    ended.move = None
                self._say(
                    wire.WireMoveEnded(
                        message.request, message.how, message.rank, message.stall_s,
                        message.tokens, message.generated, message.again, message.reason,
                    )
                )  # fmt: skip
            case m.RequestEnded():
                told = self._told[message.request]
                if told.arrive is not None:
                    self._say(wire.WireEnded(message.request, message.served))
            case m.WorkerDown():
                place = self._places[message.worker]
                self._workers[place].down(monotonic())
                self._say(wire.WireWorkerLost(place))
            case _:
                raise AssertionError(type(message).__name__)

    def _arrives(self, message: m.Arrive) -> None:
        told = self._told[message.request]
        told.arrive, told.view, told.waits = message, message.view, True
        self._attempts(told)
        self._say(self._arrive(told, message.request))

    def _attempts(self, told: _Told) -> None:
        attempt = told.request.attempt
        assert attempt is not None
        told.rid, told.sampled = attempt.rid, attempt.sampled
        told.beside.clear()

    def _arrive(self, told: _Told, number: int) -> wire.WireArrive:
        arrive, view = told.arrive, told.view
        assert arrive is not None and view is not None
        return wire.WireArrive(
            number, told.rid, told.sampled, wire.WireView.of(view), arrive.shape, arrive.streams,
            arrive.arrived, arrive.deadline, arrive.digest,
        )  # fmt: skip

    def _goes_on(self, message: m.NextAttempt) -> None:
        told = self._told[message.request]
        told.view, told.generated, told.waits = message.view, message.generated, True
        told.attempts += 1
        told.calls = [handle for handle in told.calls if not handle.over]
        self._attempts(told)
        place = 0 if message.place is None else _handle(message.place).call
        self._say(
            wire.WireNextAttempt(
                message.request, told.rid, wire.WireView.of(message.view), message.generated,
                message.moved, place,
            )
        )  # fmt: skip

    def _released(self, message: m.CallReleased) -> None:
        handle = _handle(message.reservation)
        handle.over = True
        for told in self._told.values() if message.outcome == "unsent" else ():
            if handle in told.calls:
                told.calls.remove(handle)
        self._say(
            wire.WireReleased(
                handle.call, message.outcome, message.answered, message.generated,
                message.finished,
            )
        )  # fmt: skip

    def _fails(self, message: m.Failed) -> None:
        self._told[message.request].failed = message
        self._say(_failed(message))

    # What the decider process says.

    def linked(self, link: ProcessLink[Any], relay: int, pid: int) -> None:
        """A decider process is there: tell it of all that is here."""
        self._link = link
        self.heard_at = monotonic()
        link.send(wire.WireJoined(relay, pid))
        for number, told in self._told.items():
            if told.arrive is not None:
                self._rejoin(link, number, told)
        asked, self._asked = self._asked, {}
        for ask, number in asked.items():
            self._note(m.MoveKept(number, ask, "asked", "the deciding process was replaced"))

    def lost(self) -> None:
        """It is gone; another one comes."""
        self._link = None

    def _rejoin(self, link: ProcessLink[Any], number: int, told: _Told) -> None:
        told.calls = [handle for handle in told.calls if not handle.over]
        calls = [
            wire.WireCall(
                handle.call,
                (self._places[handle.rank.worker.name], handle.rank.dp_rank),
                handle.answers,
                handle.proven,
            )
            for handle in told.calls
        ]
        arrive, move = self._arrive(told, number), None
        if told.move is not None and told.move[0] in told.calls:
            move = (told.calls.index(told.move[0]), *told.move[1:])
        begins = told.waits and not calls
        link.send(
            wire.WireRejoin(
                arrive, told.generated, told.attempts, begins and told.failed is None, calls,
                told.beside, move,
            )
        )  # fmt: skip
        if told.failed is not None:
            link.send(_failed(told.failed))

    def take(self, message: wire.FromDecider) -> None:
        """An order, for a request or for who moves requests."""
        match message:
            case wire.WirePrefill():
                self._prefill(message)
            case wire.WireDecode():
                self._decode(message)
            case wire.WireAgain():
                told = self._told.get(message.request)
                if told is not None:
                    told.failed = None
                    told.request.take(m.Again(message.request))
            case wire.WireRefuse():
                self._refuse(message)
            case wire.WireMove():
                self._move(message)
            case wire.WirePrefillOver():
                told = self._now(message.request, message.attempt)
                if told is not None and told.request.attempt is not None:
                    told.request.attempt.facts.done_at = message.at
            case wire.WireLook():
                self._look = message.look
                self._note(m.Look())
            case wire.WireMoveKept():
                self._asked.pop(message.ask, None)
                kept = m.MoveKept(
                    message.request, message.ask, cast(Any, message.why), message.reason,
                    message.ended,
                )  # fmt: skip
                self._note(kept)
            case _:
                raise AssertionError(type(message).__name__)

    def _rank(self, place: wire.Place) -> Rank:
        worker, dp_rank = place
        return self._workers[worker].ranks[dp_rank]

    def _note(self, order: m.Noted) -> None:
        for listener in self._listeners:
            listener.note(order)

    def _now(self, number: int, attempt: int) -> _Told | None:
        """The request, if it is in this attempt still."""
        told = self._told.get(number)
        return told if told is not None and told.attempts == attempt else None

    def _prefill(self, order: wire.WirePrefill) -> None:
        handle = RemoteReservation(order.call, self._rank(order.rank), order.whole)
        told = self._now(order.request, order.attempt)
        if told is None:
            self.give_back(_reservation(handle))
            return
        told.waits, told.suspicion = False, Suspicion(*order.suspicion)
        told.calls.append(handle)
        told.request.take(
            m.PrefillOrder(
                order.request, handle.rank, _reservation(handle), order.whole, order.late
            )
        )

    def _decode(self, order: wire.WireDecode) -> None:
        rank = self._rank(order.rank)
        handle = RemoteReservation(order.call, rank, True, order.counts, order.followed)
        told = self._now(order.request, order.attempt)
        if told is None:
            self.give_back(_reservation(handle))
            return
        told.waits, told.suspicion = False, Suspicion(*order.suspicion)
        if order.counted:  # the prefill's worker has said so, which the decider knows
            for prefill in told.calls:
                prefill.proven = True
        told.calls.append(handle)
        attempt = told.request.attempt
        if attempt is not None and order.told_at:
            facts = attempt.facts
            facts.counted = order.counted
            facts.told_at, facts.done_at = order.told_at, order.done_at
            if order.counted:
                facts.view = _counted(facts.view, order.prompt_tokens, order.cached_tokens)
        told.request.take(m.DecodeOrder(order.request, handle.rank, _reservation(handle)))

    def _refuse(self, order: wire.WireRefuse) -> None:
        told = self._told.get(order.request)
        if told is None:
            return
        told.failed, told.waits = None, False
        told.request.take(
            m.Refuse(
                order.request, cast(Any, order.why), order.role, order.retry_after, order.strikes,
                order.text,
            )
        )  # fmt: skip

    def _move(self, order: wire.WireMove) -> None:
        self._asked.pop(order.ask, None)
        handle = RemoteReservation(order.call, self._rank(order.rank), True, order.counts)
        told = self._told.get(order.request)
        if told is not None:
            told.calls.append(handle)
            told.move = (handle, order.why, order.ask)
        why = cast(Any, order.why)
        self._note(
            m.MoveOrder(
                order.request, handle.rank, _reservation(handle), why, order.ask, order.way,
                order.room,
            )
        )  # fmt: skip


def silent() -> ApiError:
    """What clients get while the decider process does not answer."""
    text = "The router's deciding process does not answer. Try again."
    return ApiError(503, text, retry_after=RETRY_AFTER_S)


def _counted(view: RequestView, prompt_tokens: int, cached_tokens: int) -> RequestView:
    return replace(view, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)


def _failed(message: m.Failed) -> wire.WireFailed:
    return wire.WireFailed(
        message.request, message.worker, message.kind, message.begun, message.proven,
        tuple(sorted(message.suspects)), message.digest,
    )  # fmt: skip


def _handle(reservation: Reservation) -> RemoteReservation:
    """In a relay all reservations are such."""
    return cast(RemoteReservation, reservation)


def _reservation(handle: RemoteReservation) -> Reservation:
    return cast("Reservation", handle)
