"""All moves of this router: who can be moved, who is, and what came of it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from toolkit.decide import messages as m
from toolkit.router.asks import MoveCounts, percentiles_ms
from toolkit.router.moves.base import Move, MoveOutcome
from toolkit.router.moves.direct import Direct
from toolkit.router.moves.live import Kind, Live
from toolkit.router.moves.replay import Replay
from toolkit.router.moves.replay_times import ReplayTimes
from toolkit.router.worker import Rank
from toolkit.router.worker_listener import WorkerListener
from toolkit.settings.router.choosing import MovesBy

if TYPE_CHECKING:
    from toolkit.policies.stages.running import Why
    from toolkit.router.configured_workers import ConfiguredWorkers
    from toolkit.router.decider_channel import DeciderChannel
    from toolkit.router.metrics import Metrics
    from toolkit.router.relay import Relay
    from toolkit.router.request import SubRequest
    from toolkit.router.request_channel import RequestChannel
    from toolkit.router.switches import Switches
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

    def __init__(
        self,
        known_workers: ConfiguredWorkers,
        channel: DeciderChannel,
        metrics: Metrics,
        config: RouterConfig,
        switches: Switches,
    ) -> None:
        self._known_workers = known_workers
        self._channel = channel
        self._metrics = metrics
        self._switches = switches
        self._live: dict[int, Live] = {}
        """By the number that the decider knows."""
        self._named: defaultdict[str, dict[Live, None]] = defaultdict(dict)
        self._asked: dict[int, asyncio.Future[MoveOutcome]] = {}
        """Who waits for what becomes of a move."""
        self._asks = 0
        self._reasons: dict[int, list[str]] = {}
        """Of moves under way: why kinds that were tried could not."""
        self._replays = ReplayTimes()
        direct, replay = Direct(known_workers.worker_key, self._replays), Replay()
        self._kinds: dict[MovesBy, Sequence[Kind]] = {
            "auto": (direct, replay), "direct": (direct,), "replay": (replay,)
        }  # fmt: skip
        self.counts: Counter[MoveCount] = Counter()
        self.kept: Counter[Kept] = Counter()
        self.tokens = 0
        """KV tokens of all that was moved."""
        self.under_way = 0
        """Moves that were begun and are not over."""
        self._stalls: deque[float] = deque(maxlen=RING)
        if config.rebalancing is not None and not known_workers.worker_key:
            log.warning("rebalance: nothing can be moved, as the router has no worker_api_key_env")

    @property
    def kinds(self) -> Sequence[Kind]:
        """Those that this router may use, the best one first."""
        return self._kinds[self._switches.moves]

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

    def numbered(self, number: int) -> Live | None:
        """By the number that the decider knows; None: it has ended."""
        return self._live.get(number)

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
            case _:
                pass

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
            source, target, order.why, kind.name, live.length, order.reservation, self._channel,
            order.room,
        )  # fmt: skip
        move.done.add_done_callback(lambda done: self._ended(order, move, way, done.result()))
        self.under_way += 1
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
        self._tell(kept.ask, outcome)

    def _ended(self, order: m.MoveOrder, move: Move, way: int, outcome: MoveOutcome) -> None:
        self.under_way -= 1
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
            reason=outcome.reason,
        )
        self._tell(order.ask, outcome)
        self._channel.send(ended)

    def _tell(self, ask: int, outcome: MoveOutcome) -> None:
        waits = self._asked.get(ask)
        if waits is not None and not waits.done():
            waits.set_result(outcome)

    def _count(self, why: Why, outcome: MoveOutcome) -> None:
        counted = MoveCount(why, outcome.kind, outcome.how)
        self.counts[counted] += 1
        self._metrics.moves.labels(*counted).inc()

    def figures(self) -> MoveCounts:
        """Since the start."""
        return MoveCounts(
            under_way=self.under_way,
            outcomes=[(*counted, count) for counted, count in self.counts.items()],
            kept=[(*kept, count) for kept, count in self.kept.items()],
            tokens=self.tokens,
            stalls=list(self._stalls),
        )


def described(figures: MoveCounts, kind: MovesBy) -> dict[str, Any]:
    """For GET /workers. `kind`: what was set."""
    return {
        "kind": kind,
        "under_way": figures.under_way,
        "outcomes": [
            {**MoveCount(why, how, outcome)._asdict(), "count": count}
            for why, how, outcome, count in figures.outcomes
        ],
        "kept": [
            {**Kept(how, cause)._asdict(), "count": count} for how, cause, count in figures.kept
        ],
        "tokens": figures.tokens,
        "stall_ms": percentiles_ms(figures.stalls),
    }
