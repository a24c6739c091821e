"""A host of a decider without workers: it carries out orders at once, and says what it is told to.

Time is a number. What workers would do is the test's to say."""

from __future__ import annotations

from dataclasses import dataclass, replace

from msgspec import structs

from toolkit.contract.request_class import RequestClass
from toolkit.decide import messages as m
from toolkit.decide.bounds import DeciderBounds, MoveBounds
from toolkit.decide.decider import Decider
from toolkit.decide.ranks import KnownRanks, WorkerSpec, WorkerState
from toolkit.decide.reservation import Reservation
from toolkit.decide.watchdog import StuckBounds
from toolkit.policies import make_policy
from toolkit.policies.base import RequestView
from toolkit.policies.stages.moving import Knobs

MOVES = MoveBounds(
    knobs=Knobs(reserve=0),
    every_s=0.25,
    soon_s=0.02,
    price_s=0.05,
    qoe=None,
    refine_s=0.0,
    refine_weight=0.3,
    replan_s=0.0,
)
BOUNDS = DeciderBounds(
    late=True,
    park_timeout_s=5.0,
    prefill_wait_s=60.0,
    no_worker_wait_s=3.0,
    rerun_wait_s=5.0,
    max_retries=3,
    max_inflight=64,
    eject_share=0.5,
    kept_back=0,
)
KV_TOKENS = 10_000


@dataclass(eq=False)
class Running:
    """A request as its host knows it."""

    number: int
    view: RequestView
    streams: bool = True
    prefill: Reservation | None = None
    decode: Reservation | None = None
    waits: bool = True
    """For an order."""
    move: m.MoveOrder | None = None
    """Under way."""
    failed: m.Failed | None = None
    """Whether it may run again is not decided."""
    attempts: int = 0
    generated: int = 0

    @property
    def all_tokens(self) -> int:
        return self.view.prompt_tokens + self.generated

    @property
    def calls(self) -> list[Reservation]:
        return [call for call in (self.prefill, self.decode) if call is not None]


def seen(running: Running) -> m.SeenRequest:
    """As the host says it of one that runs."""
    why = "it is being moved" if running.move is not None else ""
    if running.decode is None:
        why = "it has not begun on a decode worker"
    return m.SeenRequest(running.number, running.generated, why)


class DeciderHost:
    """`ended`: how often each request was. `orders`: all, in words that can be compared."""

    def __init__(
        self,
        prefills: int = 1,
        decodes: int = 2,
        slots: int = 4,
        parked: int = 4,
        policy: str = "shortest_queue",
        bounds: DeciderBounds = BOUNDS,
        reserve: int = 0,
        plain: bool = False,
    ) -> None:
        roles = [("plain", decodes)] if plain else [("prefill", prefills), ("decode", decodes)]
        specs = [
            WorkerSpec(f"{role}-{i}", role, parked=parked) for role, n in roles for i in range(n)
        ]
        self.now = 100.0
        self._specs, self._bounds, self._policy = specs, bounds, policy
        self._slots, self._reserve = slots, reserve
        self._make()
        self.plain = plain
        self.running: dict[int, Running] = {}
        self.asked: dict[int, list[str]] = {}
        """What was said of each move that was asked for."""
        self.ended: dict[int, list[str]] = {}
        self.orders: list[str] = []
        self.count = 0
        self.routers: dict[str, int] = {}
        """How many routers each worker has said to have."""
        self._greet()

    def _make(self) -> None:
        """A decider that knows nothing yet."""
        stuck = StuckBounds(stuck_s=10.0, announced_s=60.0)
        self.ranks = KnownRanks((WorkerState(spec, stuck) for spec in self._specs), self.now)
        self.decider = Decider(self.ranks, self._bounds, None)
        for side in ("prefill", "decode"):
            self.use(self._policy if side == "decode" else "shortest_queue", side)

    def _greet(self) -> None:
        for spec in self._specs:
            self.tell(m.WorkerGreeted(spec.name, self._slots, self._reserve))
            if spec.name in self.routers:
                self.tell(m.WorkerShared(spec.name, self.routers[spec.name]))
            self.tell(m.WorkerUp(spec.name))

    def shared(self, worker: str, routers: int) -> None:
        """So many send requests to that worker."""
        self.routers[worker] = routers
        self.tell(m.WorkerShared(worker, routers))

    def replace(self, workers_first: bool) -> None:
        """Another decider takes over, and is told of all that runs."""
        self._make()
        if workers_first:
            self._greet()
        for ask, said in self.asked.items():
            under_way = [each.move.ask for each in self.running.values() if each.move]
            if not said and ask not in under_way:
                self.answered(ask, "kept")
        for running in sorted(self.running.values(), key=lambda each: not each.calls):
            self._rejoin(running)
        if not workers_first:
            self._greet()

    def _rejoin(self, running: Running) -> None:
        calls = [(call, call is running.decode) for call in running.calls]
        move = None
        if running.move is not None:
            move = m.RejoinedMove(len(calls), running.move.why, running.move.ask)
            calls.append((running.move.reservation, True))
        view, failed = running.view, running.failed
        if running.attempts:
            view = replace(view, prompt_tokens=running.all_tokens)
        shape: m.Shape = "plain" if self.plain else "split"
        told = tuple(m.RejoinedCall(each.rank.key, last, each.proven) for each, last in calls)
        begins = running.waits and not calls and failed is None
        self.tell(
            m.Rejoined(
                running.number, view, shape, running.streams, self.now, self.now + 600.0,
                running.generated, running.attempts, begins, told, move,
            )
        )  # fmt: skip
        if failed is not None:
            self.tell(failed)

    def _restored(self, order: m.Restored) -> None:
        running, places = self.running[order.request], list(order.reservations)
        if running.prefill is not None:
            running.prefill = places.pop(0)
        if running.decode is not None:
            running.decode = places.pop(0)
        if running.move is not None:
            place = places.pop(0)
            running.move = structs.replace(running.move, reservation=place, rank=place.rank)
        assert places == []

    def use(self, policy: str, side: str = "decode") -> None:
        self.decider.on(m.UsePolicy(side, make_policy(policy, 1, side)), self.now)

    def tell(self, message: m.Message) -> None:
        """Say it, and carry out what follows."""
        todo = self.decider.on(message, self.now)
        while todo:
            order, *todo = todo
            self.orders.append(_words(order))
            for answer in self._carry_out(order):
                todo += self.decider.on(answer, self.now)

    def _carry_out(self, order: m.Order) -> list[m.Message]:
        match order:
            case m.PrefillOrder():
                self.running[order.request].prefill = order.reservation
            case m.DecodeOrder():
                running = self.running[order.request]
                running.decode, running.waits = order.reservation, False
            case m.Restored():
                self._restored(order)
            case m.Refuse():
                running = self.running[order.request]
                calls = [m.CallReleased(call, "unknown", False) for call in running.calls]
                return [*calls, self._over(running, order.why)]
            case m.Look():
                return [m.RunningSeen(tuple(map(seen, self.running.values())))]
            case m.MoveOrder():
                running = self.running[order.request]
                assert running.move is None and running.decode is not None
                assert running.decode.rank is not order.rank
                running.move = order
            case m.MoveKept():
                self.answered(order.ask, "kept")
            case m.Again():
                running = self.running[order.request]
                running.waits, running.failed = True, None
                running.attempts += 1
                view = replace(running.view, prompt_tokens=running.all_tokens)
                return [m.NextAttempt(order.request, view, running.generated)]
            case _:
                pass
        return []

    def arrive(
        self,
        tokens: int = 100,
        streams: bool = True,
        one_token: bool = False,
        request_class: RequestClass = RequestClass.STANDARD,
    ) -> Running:
        self.count += 1
        view = RequestView(prompt_tokens=tokens, now=self.now, request_class=request_class)
        running = self.running[self.count] = Running(self.count, view, streams)
        shape: m.Shape = "plain" if self.plain else "one_token" if one_token else "split"
        self.tell(m.Arrive(self.count, view, shape, streams, self.now, self.now + 600.0))
        return running

    def prefilled(self, running: Running) -> None:
        self.tell(m.Prefilled(running.number, replace(running.view, cached_tokens=1)))

    def ask(self, running: Running, target: str | None) -> None:
        """Somebody wants it moved."""
        number = len(self.asked) + 1
        self.asked[number] = []
        self.tell(m.MoveAsked(number, seen(running), None if target is None else ((target, 0),)))

    def answered(self, ask: int, how: str) -> None:
        if ask:
            self.asked[ask].append(how)

    def moved(self, running: Running) -> None:
        """Its move has come to its end: it goes on there, within the attempt."""
        old, move, running.move = running.decode, running.move, None
        assert old is not None and move is not None
        running.decode = move.reservation
        self.tell(m.CallReleased(old, "moved", True))
        self.answered(move.ask, "moved")
        self.tell(m.MoveEnded(running.number, "moved", move.rank.key, 0.1, running.all_tokens))

    def replayed(self, running: Running) -> None:
        """The same by another attempt, which has its place."""
        move, running.move = running.move, None
        assert move is not None
        for call in running.calls:
            self.tell(m.CallReleased(call, "moved", True))
        running.prefill = running.decode = None
        running.waits = True
        running.attempts += 1
        view = replace(running.view, prompt_tokens=running.all_tokens)
        place = move.reservation if move.rank.open else None
        if place is None:
            self.tell(m.CallReleased(move.reservation, "unsent", False))
        self.tell(m.NextAttempt(running.number, view, running.generated, True, place))
        self.answered(move.ask, "moved")
        self.tell(m.MoveEnded(running.number, "moved", move.rank.key, 0.1, running.all_tokens))

    def kept(self, running: Running, how: m.MoveHow = "kept", again: int = 0) -> None:
        """Its move does not come about; `again`: in this way, that is."""
        move, running.move = running.move, None
        if move is None:
            return
        self.tell(m.CallReleased(move.reservation, "unsent", False))
        if not again:
            self.answered(move.ask, how)
        self.tell(m.MoveEnded(running.number, how, generated=running.generated, again=again))

    def serve(self, running: Running) -> None:
        """To its end. Of every second one that moves its move is told of later."""
        late = running.move is not None and running.number % 2 == 0
        if not late:
            self.kept(running, "ended")
        for call in running.calls:
            self.tell(m.CallReleased(call, "served", True, 5, True))
        self.tell(self._over(running, "served"))
        if late:
            self.kept(running, "ended")

    def leave(self, running: Running) -> None:
        """Its client goes away."""
        self.kept(running, "ended")
        for call in running.calls:
            self.tell(m.CallReleased(call, "unknown", False))
        self.tell(self._over(running, "left"))

    def fail(
        self,
        running: Running,
        call: Reservation,
        kind: m.FailureKind = "lost",
        proven: bool = False,
    ) -> None:
        """An attempt fails on the worker of one of its calls."""
        self.kept(running)
        worker = call.rank.worker.name
        # Each says so when KV did not get across.
        suspects = frozenset(c.rank.worker.name for c in running.calls if kind == "transfer")
        for each in running.calls:
            outcome: m.Outcome = "failed" if each is call else "unknown"
            self.tell(m.CallReleased(each, outcome, False))
        running.prefill = running.decode = None
        digest = str(running.number).encode()
        running.failed = m.Failed(
            running.number, worker, kind, call.begun, proven, suspects | {worker}, digest
        )
        self.tell(running.failed)

    def _over(self, running: Running, how: str) -> m.RequestEnded:
        del self.running[running.number]
        self.ended.setdefault(running.number, []).append(how)
        return m.RequestEnded(running.number, served=how == "served")

    def pass_time(self, seconds: float) -> None:
        """With every tick that is due meanwhile."""
        until = self.now + seconds
        while (due := self.decider.due) is not None and due <= until:
            self.now = max(self.now, due)
            self.tell(m.TimePassed())
        self.now = until

    def settle(self) -> None:
        """All that is due at once."""
        self.pass_time(0.0)

    def read(self, worker: str) -> None:
        """A worker publishes its load: what the host has there."""
        for rank in self.ranks.workers[worker].ranks:
            used = rank.inflight_tokens
            reading = {"running": rank.inflight, "waiting": 0, "used_tokens": used,
                       "total_tokens": KV_TOKENS, "waiting_tokens": 0}  # fmt: skip
            self.tell(m.WorkerHeard(worker))
            self.tell(m.LoadRead(rank.key, reading))


def _words(order: m.Order) -> str:
    match order:
        case m.PrefillOrder() | m.DecodeOrder():
            return f"{type(order).__name__} {order.request} {order.rank.name}"
        case m.Refuse():
            return f"Refuse {order.request} {order.why} {order.role} {order.retry_after}"
        case m.Restored():
            return f"Restored {order.request} {[each.rank.name for each in order.reservations]}"
        case m.WorkerStuck() | m.HealthChanged():
            return f"{type(order).__name__} {order.worker}"
        case _:
            return str(order)
