"""The router: the decider of the real one, told of simulated workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

from toolkit.contract.request_class import RequestClass
from toolkit.decide import messages as m
from toolkit.decide.bounds import DeciderBounds, MoveBounds, kept_back
from toolkit.decide.decider import Decider
from toolkit.decide.ranks import KnownRanks
from toolkit.policies.base import RequestView
from toolkit.policies.stages.narrowing import StageFilter
from toolkit.simulate.lengths import SteppedFollowing
from toolkit.simulate.refits import SimulatedRefits
from toolkit.simulate.worker_states import (
    PrefillRankState,
    PrefillServer,
    SimulatedRankState,
    SimulatedServer,
)

if TYPE_CHECKING:
    from toolkit.decide.reservation import Reservation
    from toolkit.policies import Policy
    from toolkit.policies.stages.layout import Layout
    from toolkit.simulate.events import Event, Events
    from toolkit.simulate.experts import SimulatedExperts
    from toolkit.simulate.movable import Movable
    from toolkit.simulate.moves import SimulatedMove, SimulatedMoves
    from toolkit.simulate.prefill import PrefillWorker
    from toolkit.simulate.request import Request


@dataclass(frozen=True)
class RouterTimes:
    """Seconds. `hop`: between router and worker, each way; `report`: how often a worker's load is
    read, 0 after every step (SGLang's own router: seconds); `park`: that a finished prompt waits in
    the pool at most."""

    hop: float = 0.001
    report: float = 0.0
    park: float = inf


@dataclass(slots=True)
class _Running:
    """A request that the decider knows, where it is prefilled, and its calls: `decode` is that to
    the rank that answers it."""

    request: Request
    prefill: PrefillWorker | None = None
    prefilling: Reservation | None = None
    decode: Reservation | None = None
    said: int = 0
    """Tokens of its answer that it had when it came to that rank."""


class SimulatedRouter:
    """Arrival -> prefill worker -> (late) decode rank; or both at arrival (early); or, where there
    are no prefill workers, arrival -> a rank that does both, which the decode policy chooses.

    All that is decided the decider decides (`toolkit.decide.decider`). This host tells it of
    arrivals, finished prefills and ends, and of the simulated time, and sends requests where its
    orders say. `classes`: best-effort requests wait behind all others; `stops`: whether workers
    that prefill and decode both stop their prompts.
    """

    def __init__(
        self,
        events: Events,
        prefills: Sequence[PrefillWorker],
        groups: Sequence[Movable],
        prefill_policy: Policy,
        decode_policy: Policy,
        times: RouterTimes,
        parked: int,
        dispatch: Literal["late", "concurrent"] = "late",
        experts: SimulatedExperts | None = None,
        classes: bool = False,
        stops: bool = False,
        layout: Layout | None = None,
        rebalance: MoveBounds | None = None,
    ) -> None:
        """`parked`: prefills that one worker may hold whose decode rank is not chosen. `layout`:
        the stages of the groups' ranks, in their order; None: every one takes all. `rebalance`:
        how requests move (`moves`) by themselves, if they do."""
        self.events = events
        self.times = times
        self.late = bool(prefills) and dispatch == "late"
        self.decode_policy = decode_policy
        self.classes = classes
        self.stages = None if layout is None else StageFilter(layout)
        role = "decode" if prefills else "plain"
        servers: dict[str, list[Movable]] = {}
        for group in groups:
            servers.setdefault(group.ranks[0].name, []).append(group)
        decoding = [SimulatedServer(name, each, role, stops) for name, each in servers.items()]
        self.decider = Decider(
            KnownRanks([*(PrefillServer(each, parked) for each in prefills), *decoding]),
            _bounds(self.late, times.park, kept_back(parked, classes), rebalance),
            self.stages,
        )
        self.rank_states = [rank for server in decoding for rank in server.ranks]
        self._state = {state.key: state for state in self.rank_states}
        self.followed = None
        if decode_policy.needs.following:
            self.followed = SteppedFollowing(decode_policy, self._state)
        self.refits = SimulatedRefits.of(decode_policy)
        self._signatures = None if experts is None else experts.signatures
        self.moves: SimulatedMoves | None = None
        """Who moves requests, where some may move."""
        self._running: dict[int, _Running] = {}
        self._due: float | None = None
        self._timer: Event | None = None
        for side, policy in (("prefill", prefill_policy), ("decode", decode_policy)):
            self._tell(m.UsePolicy(side, policy, self.followed))
        first = groups[0].ranks[0]
        for name in self.decider.ranks.workers:
            slots, reserve = first.slots, first.reserve
            self._tell(m.WorkerGreeted(name, slots, reserve))
            self._tell(m.WorkerUp(name))
        if times.report:
            events.at(0.0, self._read_all)

    # ---- what the clients and the workers say ----

    def arrive(self, request: Request) -> None:
        """A client's request is here."""
        split = "prefill" in self.decider.ranks.roles
        signature = None
        if split and self._signatures is not None and request.row >= 0:
            signature = self._signatures[request.row]
        request.view = view = RequestView(
            prompt_tokens=request.prompt,
            blocks=request.blocks,
            user=request.user or None,
            signature=signature,
            label=request.label or None,
            prompt_hash=request.prompt_id,
            max_new_tokens=request.output if request.told else 0,
            now=self.events.now,
            request_class=request.request_class if self.classes else RequestClass.STANDARD,
        )
        self._running[request.number] = _Running(request)
        shape: m.Shape = "split" if split else "plain"
        if not self.late:
            self._catch_up()
        now = self.events.now
        self._tell(m.Arrive(request.number, view, shape, True, now, deadline=inf))

    def prefilled(self, request: Request) -> None:
        """A prefill worker is done; the router hears of it a hop later."""
        if self.late:
            self.events.after(self.times.hop, self._prefilled, request)

    def began(self, request: Request) -> None:
        """Its first token was made."""
        decode = self._decode_of(request)
        self._state[decode.rank.key].began(request)
        if self.followed is not None:
            self.followed.has_said(decode.key, 1)

    def prefill_of(self, request: Request) -> PrefillWorker:
        """Where its prompt is computed."""
        prefill = self._running[request.number].prefill
        assert prefill is not None
        return prefill

    def ended(self, request: Request) -> None:
        """The router has relayed its last token."""
        running = self._running.pop(request.number)
        if running.prefilling is not None:
            self._tell(m.CallReleased(running.prefilling, "served", True))
        decode = running.decode
        assert decode is not None
        said = request.output - running.said
        if self.followed is not None:
            self.followed.has_said(decode.key, said)
        self._tell(m.CallReleased(decode, "served", True, generated=said, finished=True))
        self._tell(m.RequestEnded(request.number, served=True))

    # ---- requests that move ----

    def moved(self, moving: SimulatedMove, said: int, stall_s: float) -> None:
        """It goes on there, with so many tokens said."""
        request, place = moving.request, moving.place
        running = self._running[request.number]
        before = place.tokens - request.prompt
        if self.followed is not None:
            self.followed.has_said(place.key, said - before)
        self._state[place.rank.key].ledger.began(place.tokens)
        old = self._decode_of(request)
        running.decode, running.said = place, before
        self._tell(m.CallReleased(old, "moved", answered=True))
        tokens = request.prompt + said - 1
        self._tell(m.MoveEnded(request.number, "moved", place.rank.key, stall_s, tokens))

    def given_up(self, moving: SimulatedMove) -> None:
        """It stays where it is, or has ended."""
        self._tell(m.CallReleased(moving.place, "unsent", answered=False))
        self._tell(m.MoveEnded(moving.request.number, "ended"))

    def _move(self, order: m.MoveOrder) -> None:
        running, target = self._running[order.request], order.rank
        assert self.moves is not None and isinstance(target, SimulatedRankState)
        source = self._state[self._decode_of(running.request).rank.key]
        place = order.reservation
        self.moves.begin(running.request, source.rank, target.rank, place, order.why)

    def _seen(self) -> m.RunningSeen:
        """All that decodes, or waits to."""
        seen: list[m.SeenRequest] = []
        for number, running in self._running.items():
            if running.decode is None:
                continue
            state, request = self._state[running.decode.rank.key], running.request
            runs = request in state.rank.running
            said = state.loop.said(request) if runs else request.generated
            stays = "" if runs and request.first_token == request.first_token else "it waits"
            seen.append(m.SeenRequest(number, said, stays))
        return m.RunningSeen(tuple(seen))

    # ---- the decider ----

    def _prefilled(self, request: Request) -> None:
        self._catch_up()
        self._tell(m.Prefilled(request.number, request.view))

    def _time_passed(self) -> None:
        self._timer = self._due = None
        self._catch_up()
        self._tell(m.TimePassed())

    def _catch_up(self) -> None:
        """A decode rank may be chosen now."""
        if self.followed is not None:
            self.followed.catch_up()

    def _tell(self, message: m.Message) -> None:
        """Carry out what follows from it, and have it told the time when it wants to hear it."""
        decider = self.decider
        for order in decider.on(message, self.events.now):
            match order:
                case m.PrefillOrder():
                    self._prefill(order)
                case m.DecodeOrder():
                    self._decode(order)
                case m.Look():
                    self._tell(self._seen())
                case m.MoveOrder():
                    self._move(order)
                case m.PlanStages():
                    planned = order.planner.plan(order.live, order.layout, order.move_s)
                    if planned is not None:
                        self._tell(m.StagesPlanned(planned))
                case m.Refuse():
                    raise order.cause or RuntimeError(f"{order.why}: {order.text}")
                case _:
                    pass
        due = decider.due
        if due == self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due, self._timer = due, None
        if due is not None and due < inf:
            self._timer = self.events.at(max(due, self.events.now), self._time_passed)

    def _prefill(self, order: m.PrefillOrder) -> None:
        running = self._running[order.request]
        assert isinstance(order.rank, PrefillRankState)
        running.prefill, running.prefilling = order.rank.prefill, order.reservation
        self.events.after(self.times.hop, order.rank.prefill.take, running.request)

    def _decode(self, order: m.DecodeOrder) -> None:
        running, state = self._running[order.request], order.rank
        request = running.request
        assert isinstance(state, SimulatedRankState)
        running.decode, request.bound = order.reservation, self.events.now
        state.unbegun[request] = None
        if self.refits is not None:
            self.refits.observe(request.view.signature, self.events.now)
        self.events.after(self.times.hop, state.loop.arrive, state.rank, request)

    def _decode_of(self, request: Request) -> Reservation:
        decode = self._running[request.number].decode
        assert decode is not None
        return decode

    def _read_all(self) -> None:
        for state in self.rank_states:
            state.publish()
        self.events.after(self.times.report, self._read_all)


def _bounds(late: bool, park: float, left: int, moves: MoveBounds | None) -> DeciderBounds:
    """Workers neither fail nor go away here, and no word of them is lost."""
    return DeciderBounds(
        late=late,
        park_timeout_s=park,
        prefill_wait_s=inf,
        no_worker_wait_s=inf,
        rerun_wait_s=inf,
        max_retries=0,
        max_inflight=1,
        eject_share=0.0,
        kept_back=left,
        moves=moves,
    )
