"""All moves of this router: who can be moved, who is, and what came of it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from toolkit.decide import messages as m
from toolkit.router.moves.base import Move, MoveOutcome
from toolkit.router.moves.direct import Direct
from toolkit.router.moves.live import Kind, Live
from toolkit.router.moves.replay import Replay
from toolkit.router.moves.replay_times import ReplayTimes
from toolkit.router.quiet import where
from toolkit.router.worker import Rank
from toolkit.router.worker_listener import WorkerListener
from toolkit.settings.router.choosing import MovesBy

if TYPE_CHECKING:
    from toolkit.policies.stages.running import Why
    from toolkit.router.known_workers import KnownWorkers
    from toolkit.router.metrics import Metrics
    from toolkit.router.relay import Relay
    from toolkit.router.request import SubRequest
    from toolkit.router.request_channel import RequestChannel
    from toolkit.settings.router.config import RouterConfig

log = logging.getLogger("toolkit.router")

RING = 4096


class MoveCount(NamedTuple):
    """What moves are counted by."""

    why: str
    kind: str
    outcome: str


class Kept(NamedTuple):
    """What moves that had begun and did not take place are counted by."""

    kind: str
    cause: str


class Moves(WorkerListener):
    """Carries out the decider's moves, and knows the requests that run.

    A move is an order to the request's own task (`Live.order`), which runs it between two events of
    the stream (`Kind.run`): whoever asked for it may go away, the move goes on. A kind that the
    source is not able to is followed by the next best one.
    """

    def __init__(self, known_workers: KnownWorkers, metrics: Metrics, config: RouterConfig) -> None:
        self._known_workers = known_workers
        self._channel = known_workers.channel
        self._metrics = metrics
        self._live: dict[int, Live] = {}
        """By the number that the decider knows."""
        self._named: defaultdict[str, dict[Live, None]] = defaultdict(dict)
        self._asked: dict[int, asyncio.Future[MoveOutcome]] = {}
        """Who waits for what becomes of a move."""
        self._asks = 0
        self._planning: set[asyncio.Task[None]] = set()
        self._reasons: dict[int, list[str]] = {}
        """Of moves under way: why kinds that were tried could not."""
        self.kind: MovesBy = config.moves
        """What was set."""
        self._replays = ReplayTimes()
        self.kinds: Sequence[Kind] = ()
        """Those that this router may use, the best one first."""
        self.use(config.moves)
        self.counts: Counter[MoveCount] = Counter()
        self.kept: Counter[Kept] = Counter()
        self.emptied: defaultdict[Rank, Counter[str]] = defaultdict(Counter)
        """By source, what came of moves of ranks that are to be empty."""
        self.tokens = 0
        """KV tokens of all that was moved."""
        self.under_way: Counter[Rank] = Counter()
        """By source, the moves that were begun and are not over."""
        self._stalls: deque[float] = deque(maxlen=RING)
        if config.rebalancing is not None and not known_workers.worker_key:
            log.warning("rebalance: nothing can be moved, as the router has no worker_api_key_env")

    def use(self, kind: MovesBy) -> None:
        """From now on."""
        direct, replay = Direct(self._known_workers.worker_key, self._replays), Replay()
        chosen: dict[MovesBy, tuple[Kind, ...]] = {
            "auto": (direct, replay), "direct": (direct,), "replay": (replay,)
        }  # fmt: skip
        self.kinds, self.kind = chosen[kind], kind

    @contextmanager
    def running(
        self, sub_request: SubRequest, relay: Relay | None, channel: RequestChannel
    ) -> Iterator[Live]:
        """From its first attempt to its end."""
        live = Live(sub_request, relay, channel)
        names = {sub_request.rid, sub_request.job} - {""}
        self._live[live.number] = live
        for name in names:
            self._named[name][live] = None
        error: BaseException | None = None
        try:
            yield live
        except BaseException as raised:
            error = raised
            raise
        finally:
            del self._live[live.number]
            for name in names:
                del self._named[name][live]
                if not self._named[name]:
                    del self._named[name]
            live.over(error)

    def named(self, rid: str) -> list[Live]:
        """The parts of a request by the id that its client has: several with n > 1 or a batch, one
        by `RID_2`, none when it does not run (any more)."""
        return list(self._named.get(rid, ()))

    def all(self) -> list[Live]:
        """All that run, wherever."""
        return list(self._live.values())

    def on(self, rank: Rank) -> list[Live]:
        """What decodes there now, or is prefilled for it."""
        return [live for live in self._live.values() if live.rank is rank]

    def why_not(self, live: Live) -> str | None:
        """Why this request cannot be moved, wherever to; None when it can."""
        if not self._known_workers.worker_key:
            return (
                "the workers have no key, without which they go on with no other one's request: "
                "give the router worker_api_key_env"
            )
        return live.why_not()

    async def move(self, live: Live, targets: Sequence[Rank] | None) -> MoveOutcome:
        """Ask for a move to the one of `targets` that has the most KV free, or (None) to whom the
        decode policy takes among all others. Waits for what becomes of it. Raises nothing."""
        if live.number not in self._live:
            return MoveOutcome("ended", "it came to its end first")
        self._asks = ask = self._asks + 1
        self._asked[ask] = asyncio.get_running_loop().create_future()
        keys = None if targets is None else tuple(rank.key for rank in targets)
        self._channel.send(m.MoveAsked(ask, self._seen(live), keys))
        try:
            return await self._asked[ask]
        finally:
            del self._asked[ask]

    def note(self, order: m.Noted) -> None:
        """What the decider wants to see, or to have moved."""
        match order:
            case m.Look():
                self._channel.send(m.RunningSeen(tuple(map(self._seen, self._live.values()))))
            case m.MoveOrder():
                self._begin(order)
            case m.MoveKept():
                self._not_begun(order)
            case m.PlanStages():
                task = asyncio.get_running_loop().create_task(self._plan(order))
                self._planning.add(task)
                task.add_done_callback(self._planning.discard)
            case m.Restaged():
                log.info("stages are %s now", order.layout)
            case _:
                pass

    async def _plan(self, order: m.PlanStages) -> None:
        plan = order.planner.plan
        try:
            layout = await asyncio.to_thread(plan, order.live, order.layout, order.move_s)
        except Exception as error:  # the stages stay, and there is a next time
            log.error("stages were not planned: %s", where(error))
            return
        if layout is not None:
            self._channel.send(m.StagesPlanned(layout))

    def _seen(self, live: Live) -> m.SeenRequest:
        return m.SeenRequest(live.number, live.generated, self.why_not(live) or "")

    def _begin(self, order: m.MoveOrder) -> None:
        live, target = self._live.get(order.request), cast(Rank, order.rank)
        reasons = self._reasons.setdefault(order.request, [])
        source = None if live is None else live.rank
        if live is None or source is None:
            self._refuse(order, MoveOutcome("ended", "it came to its end first"))
            return
        reason = self.why_not(live)
        for way in range(order.way, len(self.kinds)) if reason is None else ():
            kind = self.kinds[way]
            cannot = kind.why_not(live, target)
            if cannot is None:
                self._order(live, source, order, way)
                return
            reasons.append(cannot)
        self._refuse(order, MoveOutcome("kept", reason or "; ".join(reasons)))

    def _order(self, live: Live, source: Rank, order: m.MoveOrder, way: int) -> None:
        target, kind = cast(Rank, order.rank), self.kinds[way]
        move = Move(
            source, target, order.why, kind.name, live.length, order.reservation, self._channel
        )
        move.done.add_done_callback(lambda done: self._ended(order, move, way, done.result()))
        self.under_way[source] += 1
        live.order(move, kind)

    def _refuse(self, order: m.MoveOrder, outcome: MoveOutcome) -> None:
        """It is not begun, or not gone on with."""
        self._channel.give_back(order.reservation)
        if order.way == 0:
            self._count(order.why, outcome)
        self._over(order, outcome)

    def _not_begun(self, kept: m.MoveKept) -> None:
        outcome = MoveOutcome("ended" if kept.ended else "kept", kept.reason)
        if self._reasons.pop(kept.request, None) is None:
            self._count(kept.why, outcome)
        self._tell(kept.ask, kept.request, outcome)

    def _ended(self, order: m.MoveOrder, move: Move, way: int, outcome: MoveOutcome) -> None:
        self.under_way[move.source] -= 1
        self._count(move.why, outcome)
        if outcome.how == "kept":
            kept = Kept(outcome.kind, outcome.cause or "target")
            self.kept[kept] += 1
            self._metrics.moves_kept.labels(*kept).inc()
        if outcome.how == "moved":
            if outcome.kind == Replay.name:
                self._replays.add(outcome.stall_s, outcome.tokens)
            self.tokens += outcome.tokens
            self._stalls.append(outcome.stall_s)
            self._metrics.moved(outcome.stall_s, outcome.tokens)
        live = self._live.get(order.request)
        if outcome.how == "kept" and outcome.other_kind and way + 1 < len(self.kinds) and live:
            self._reasons.setdefault(order.request, []).append(outcome.reason)
            ended = m.MoveEnded(order.request, "kept", generated=live.generated, again=way + 1)
            self._channel.send(ended)
            return
        if order.why == "drain":
            self.emptied[move.source][outcome.how] += 1
        self._over(order, outcome)

    def _over(self, order: m.MoveOrder, outcome: MoveOutcome) -> None:
        """For good."""
        self._reasons.pop(order.request, None)
        live = self._live.get(order.request)
        where = live.rank if outcome.how == "moved" and live is not None else None
        ended = m.MoveEnded(
            order.request,
            outcome.how,
            None if where is None else where.key,
            outcome.stall_s,
            outcome.tokens,
        )
        self._tell(order.ask, order.request, outcome)
        self._channel.send(ended)

    def _tell(self, ask: int, request: int, outcome: MoveOutcome) -> None:
        waits, live = self._asked.get(ask), self._live.get(request)
        if waits is not None and not waits.done():
            waits.set_result(outcome)
        if live is not None and outcome.how == "kept":
            live.refused = outcome.reason

    def _count(self, why: Why, outcome: MoveOutcome) -> None:
        counted = MoveCount(why, outcome.kind, outcome.how)
        self.counts[counted] += 1
        self._metrics.moves.labels(*counted).inc()

    def describe(self) -> dict[str, Any]:
        """For GET /workers."""
        stalls = sorted(self._stalls)
        return {
            "kind": self.kind,
            "under_way": sum(self.under_way.values()),
            "outcomes": [
                {**counted._asdict(), "count": count}
                for counted, count in sorted(self.counts.items())
            ],
            "kept": [
                {**kept._asdict(), "count": count} for kept, count in sorted(self.kept.items())
            ],
            "tokens": self.tokens,
            "stall_ms": {
                f"p{p}": round(stalls[min(len(stalls) - 1, len(stalls) * p // 100)] * 1e3, 3)
                for p in (50, 90, 99)
                if stalls
            },
        }
