"""The decider process's end of the links: what relays say is told to the decider, and its orders go
to the relay that has the request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from toolkit.decide import messages as m
from toolkit.decide.watchdog import Health
from toolkit.router.asks import Ask, AskFigures, FindMovable, MovableRequests, RequestFigures
from toolkit.router.processes import wire
from toolkit.router.processes.remote_request import RemoteRequest
from toolkit.router.processes.shared import ACCEPTS, RETIRES
from toolkit.router.quiet import where
from toolkit.router.worker_listener import WorkerListener

if TYPE_CHECKING:
    from toolkit.contract.events import Moving
    from toolkit.decide.messages import FailureKind
    from toolkit.decide.ranks import RankState
    from toolkit.decide.reservation import Reservation
    from toolkit.router.control_plane import ControlPlane
    from toolkit.router.processes.link import ProcessLink
    from toolkit.router.processes.shared import SharedRows
    from toolkit.router.processes.switched_file import SwitchedFile
    from toolkit.router.recording import Recording, RecordingEntry
    from toolkit.router.worker import Rank, Worker

log = logging.getLogger("toolkit.router")

BEAT_S = 0.25
SETTLE_S = 0.5
"""A new decider process waits so long for all relays."""
LOOK_S = 0.05
"""So long the relays have to say what runs; one that stands still is left out."""


_ANSWERS: dict[type, type] = {AskFigures: RequestFigures, FindMovable: MovableRequests}
"""What is more than values of JSON."""


class RelayLink:
    """One relay: its requests and their calls, by its numbers."""

    def __init__(self, hub: Hub, link: ProcessLink[wire.FromRelay]) -> None:
        self._hub = hub
        self._link = link
        self.relay = -1
        """Its place; negative until it has said it."""
        self.requests: dict[int, RemoteRequest] = {}
        self.calls: dict[int, Reservation] = {}
        self._asks: dict[int, asyncio.Future[wire.WireAnswer]] = {}
        self._asked = 0
        self.entries: dict[int, RecordingEntry] = {}
        """Of the recording."""

    def send(self, message: wire.FromDecider) -> None:
        """With the next frame."""
        self._link.send(message)

    def call_of(self, reservation: Reservation) -> int:
        """A number for a reservation, until it is released."""
        number = self._hub.next_call()
        self.calls[number] = reservation
        return number

    def asks(self, ask: int) -> int:
        """A number for who asks for a move there; 0 for nobody."""
        return self._hub.asks_of(self, ask)

    async def answer(self, ask: Ask) -> Any:
        """See `toolkit.router.asks`."""
        self._hub.tell_switches()
        self._asked = number = self._asked + 1
        waits = self._asks[number] = asyncio.get_running_loop().create_future()
        self.send(wire.WireAsk(number, ask))
        try:
            told = await waits
        finally:
            del self._asks[number]
        if told.failed:
            raise RuntimeError(told.failed)
        kind = _ANSWERS.get(type(ask))
        return told.answer if kind is None else msgspec.convert(told.answer, kind)

    def answered(self, told: wire.WireAnswer) -> None:
        waits = self._asks.get(told.ask)
        if waits is not None and not waits.done():
            waits.set_result(told)

    def lost(self) -> None:
        """It is gone, and its clients with it."""
        for waits in self._asks.values():
            if not waits.done():
                waits.set_exception(ConnectionResetError("a relay has ended"))
        for request in list(self.requests.values()):
            request.abandon()
        self.requests.clear()
        # Places that moves kept, say.
        for reservation in list(self.calls.values()):
            if not reservation.over:
                self._hub.control.known_workers.channel.send(
                    m.CallReleased(reservation, "unknown", False)
                )
        self.calls.clear()


class Hub(WorkerListener):
    """All relays. Iterates over who serves requests."""

    def __init__(self, serial: int, rows: SharedRows, handover: SwitchedFile) -> None:
        """`serial`: of all processes of this router."""
        self._handover = handover
        self._rows = rows
        self._left = False
        """Another decider process takes over."""
        self._early: list[RemoteRequest] | None = []
        """That are to begin when all relays have told of theirs that run: these hold places that
        nobody else may get. None: they have."""
        self._links: dict[ProcessLink[Any], RelayLink] = {}
        self._calls = serial << 40
        self._control: ControlPlane | None = None
        self._recording: Recording | None = None
        self._places: dict[str, int] = {}
        self._asks: dict[int, tuple[RelayLink, int]] = {}
        self._asked = 0
        self._look = 0
        self._looking: set[RelayLink] = set()
        self._seen: list[m.SeenRequest] = []
        self._look_ends: asyncio.TimerHandle | None = None
        self._said: dict[Rank, list[bool | None]] = {}
        """Of ranks since the last beat: whether they are empty, and whether they made a step."""
        self._switches: wire.WireSwitches | None = None
        self._by_number: dict[int, RemoteRequest] = {}

    def begin(self, control: ControlPlane, recording: Recording | None) -> None:
        """Have the decider's orders, and what workers say."""
        self._control, self._recording = control, recording
        workers = control.known_workers.workers
        self._places = {worker.name: place for place, worker in enumerate(workers)}
        control.known_workers.listen(self)

    @property
    def control(self) -> ControlPlane:
        assert self._control is not None
        return self._control

    def __iter__(self) -> Iterator[RelayLink]:
        return iter([each for each in self._links.values() if each.relay >= 0])

    def next_call(self) -> int:
        self._calls += 1
        return self._calls

    def place(self, rank: RankState) -> wire.Place:
        """A rank as the wire has it."""
        return self._places[rank.worker.name], rank.dp_rank

    # Links.

    def linked(self, link: ProcessLink[Any]) -> None:
        """A relay may be there."""
        self._links[link] = RelayLink(self, link)

    def lost(self, link: ProcessLink[Any]) -> None:
        """It is gone."""
        relay = self._links.pop(link)
        if self._left:
            return
        relay.lost()
        self._looking.discard(relay)
        self._asks = {ask: each for ask, each in self._asks.items() if each[0] is not relay}
        for entry in relay.entries.values():
            if self._recording is not None:
                self._recording.end(entry, 0)

    def leave(self) -> None:
        """Let the relays go to the decider process that follows, with all that they have."""
        self._handover.save(self.control)
        self._left = True
        for link in list(self._links):
            link.close()

    def take(self, link: ProcessLink[Any], message: wire.FromRelay) -> None:
        """What a relay says."""
        if self._left:
            return
        relay, channel = self._links[link], self.control.known_workers.channel
        match message:
            case wire.WireJoined():
                self._joined(relay, message)
            case wire.WireArrive():
                request = self._request(relay, message)
                request.arrives(message)
                self._begin_or_wait(request)
            case wire.WireRejoin():
                request = self._request(relay, message.arrive)
                request.rejoins(message)
                if message.begins:
                    self._begin_or_wait(request)
                else:
                    request.begin()
            case wire.WireReleased():
                reservation = relay.calls.pop(message.call, None)
                if reservation is not None and not reservation.over:
                    channel.send(
                        m.CallReleased(
                            reservation, message.outcome, message.answered, message.generated,
                            message.finished,
                        )
                    )  # fmt: skip
            case wire.WireTokens():
                known = [(relay.calls.get(call), tokens) for call, tokens in message.tokens]
                came = tuple((each, tokens) for each, tokens in known if each is not None)
                channel.send(m.TokensCame(came))
            case wire.WireRunning():
                self._ran(relay, message)
            case wire.WireMoveAsked():
                self._move_asked(relay, message)
            case wire.WireWorkerLost():
                name = self.control.known_workers.workers[message.worker].name
                channel.send(m.WorkerDown(name))
            case wire.WireAnswer():
                relay.answered(message)
            case wire.WireRecord():
                self._record(relay, message)
            case wire.WireRecorded():
                entry = relay.entries.pop(message.entry, None)
                if entry is not None and self._recording is not None:
                    self._recording.end(entry, message.output_tokens, message.prompt_tokens)
            case wire.WireEnded():
                ended = relay.requests.pop(message.request, None)
                if ended is not None:
                    ended.end(message.served)
            case _:
                known_request = relay.requests.get(message.request)
                if known_request is not None:
                    known_request.hear(message)

    def _joined(self, relay: RelayLink, joined: wire.WireJoined) -> None:
        relay.relay = joined.relay
        log.info("relay %d is there (process %d)", joined.relay, joined.pid)
        self._switches = None
        self.tell_switches()
        for place, worker in enumerate(self.control.known_workers.workers):
            relay.send(wire.WireHello(place, worker.hello))
            relay.send(self._health(place, worker))
        relay.send(wire.WireBeat([]))

    def _request(self, relay: RelayLink, arrive: wire.WireArrive) -> RemoteRequest:
        request = RemoteRequest(self, relay, arrive.request)
        relay.requests[arrive.request] = self._by_number[request.number] = request
        return request

    def _begin_or_wait(self, request: RemoteRequest) -> None:
        if self._early is None:
            request.begin()
        else:
            self._early.append(request)

    async def settle(self) -> None:
        """Begin what has come, once all relays are there or it has taken too long."""
        deadline = monotonic() + SETTLE_S
        relays = len(self._rows.serving(ACCEPTS, RETIRES))
        while len(list(self)) < relays and monotonic() < deadline:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0)
        early, self._early = self._early or [], None
        for request in early:
            try:
                request.begin()
            except Exception as error:  # of this one: the others begin
                log.error("a request did not begin: %s", where(error))

    def forget(self, number: int) -> None:
        """A request is over."""
        self._by_number.pop(number, None)

    # What workers say.

    def greeted(self, worker: Worker) -> None:
        self._tell(wire.WireHello(self._places[worker.name], worker.hello))

    def load_read(self, rank: Rank) -> None:
        said = self._said.setdefault(rank, [None, False])
        said[0] = rank.is_empty and said[0] is not False

    def prefill_over(self, request: int, at: float) -> None:
        known = self._by_number.get(request)
        if known is not None:
            known.prefill_over(at)

    def stepped(self, rank: Rank) -> None:
        self._said.setdefault(rank, [None, False])[1] = True

    def given_up(self, worker: Worker, why: str, kind: FailureKind) -> None:
        self._tell(wire.WireGivenUp(self._places[worker.name], why, kind))

    def moving(self, worker: Worker, event: Moving) -> None:
        self._tell(wire.WireMoving(self._places[worker.name], event))

    def health_changed(self, worker: str) -> None:
        known = self.control.known_workers.named(worker)
        self._tell(self._health(self._places[worker], known))
        self._handover.save(self.control)

    @staticmethod
    def _health(place: int, worker: Worker) -> wire.WireHealth:
        return wire.WireHealth(place, worker.healthy, [
            not rank.held and rank.health is Health.HEALTHY for rank in worker.ranks
        ])  # fmt: skip

    def _tell(self, message: wire.FromDecider) -> None:
        for relay in self:
            relay.send(message)

    async def beat(self) -> None:
        """Say again and again that this process goes on, until cancelled."""
        while True:
            said, self._said = self._said, {}
            ranks = [(*self.place(rank), empty, bool(step)) for rank, (empty, step) in said.items()]
            self._tell(wire.WireBeat(ranks))
            try:
                self.tell_switches()
            except Exception as error:  # without the next beat relays would refuse all
                log.error("switches were not told: %s", where(error))
            await asyncio.sleep(BEAT_S)

    def tell_switches(self) -> None:
        """Where they have changed."""
        switches = self.control.switches
        wanted = switches.wanted
        now = wire.WireSwitches(
            switches.first_token, switches.moves, switches.early_choice,
            (wanted.blocks, wanted.users, wanted.hashes),
            self.control.draining.on, self.control.known_workers.channel.quarantines,
        )  # fmt: skip
        if now != self._switches:
            self._switches = now
            self._tell(now)
        self._handover.save(self.control)

    # Moves.

    def note(self, order: m.Noted) -> None:
        """What the decider wants to see, or to have moved."""
        match order:
            case m.Look():
                self._look_at_all()
            case m.MoveOrder():
                self._order_move(order)
            case m.MoveKept():
                self._move_kept(order)
            case m.Quarantined():
                self.tell_switches()
            case _:
                pass

    def _look_at_all(self) -> None:
        if self._looking:
            return  # the answers are on their way
        self._look += 1
        self._seen, self._looking = [], set(self)
        if not self._looking:
            asyncio.get_running_loop().call_soon(self._looked)
            return
        for relay in self._looking:
            relay.send(wire.WireLook(self._look))
        self._look_ends = asyncio.get_running_loop().call_later(LOOK_S, self._looked)

    def _ran(self, relay: RelayLink, told: wire.WireRunning) -> None:
        if told.look != self._look or relay not in self._looking:
            return
        for seen in told.requests:
            request = relay.requests.get(seen.request)
            if request is not None:
                self._seen.append(seen._replace(request=request.number))
        self._looking.discard(relay)
        if not self._looking:
            self._looked()

    def _looked(self) -> None:
        if self._look_ends is not None:
            self._look_ends.cancel()
            self._look_ends = None
        self._looking, seen, self._seen = set(), self._seen, []
        self.control.known_workers.channel.send(m.RunningSeen(tuple(seen)))

    def _move_asked(self, relay: RelayLink, told: wire.WireMoveAsked) -> None:
        request = relay.requests.get(told.request.request)
        if request is None:
            text = "it came to its end first"
            relay.send(wire.WireMoveKept(told.request.request, told.ask, "asked", text, True))
            return
        ask = relay.asks(told.ask)
        seen = told.request._replace(request=request.number)
        self.control.known_workers.channel.send(m.MoveAsked(ask, seen, told.targets))

    def asks_of(self, relay: RelayLink, ask: int) -> int:
        """A number for who asks for a move at a relay; 0 for nobody."""
        if not ask:
            return 0
        self._asked += 1
        self._asks[self._asked] = (relay, ask)
        return self._asked

    def _order_move(self, order: m.MoveOrder) -> None:
        request = self._by_number.get(order.request)
        if request is None:
            channel = self.control.known_workers.channel
            channel.send(m.CallReleased(order.reservation, "unsent", False))
            channel.send(m.MoveEnded(order.request, "ended"))
            return
        _, ask = self._asks.get(order.ask, (None, 0))
        request.move(order, ask)

    def _move_kept(self, kept: m.MoveKept) -> None:
        relay, ask = self._asks.pop(kept.ask, (None, 0))
        request = self._by_number.get(kept.request)
        if request is not None:
            request.kept(kept, ask)
        elif relay is not None:
            relay.send(wire.WireMoveKept(0, ask, kept.why, kept.reason, kept.ended))

    def moved(self, ask: int) -> None:
        """A move that was asked for is over."""
        self._asks.pop(ask, None)

    # Recording.

    def _record(self, relay: RelayLink, told: wire.WireRecord) -> None:
        if self._recording is not None:
            relay.entries[told.entry] = self._recording.enter(
                told.arrived, told.tokens, told.blocks, told.prompt_bytes, told.request_class,
                told.request_id,
            )  # fmt: skip
