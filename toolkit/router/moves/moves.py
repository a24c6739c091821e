"""All moves of this router: who can be moved, who is, and what came of it."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from toolkit.router.moves.base import Move, MoveOutcome, Why
from toolkit.router.moves.direct import Direct
from toolkit.router.moves.live import Kind, Live
from toolkit.router.moves.replay import Replay
from toolkit.router.moves.replay_times import ReplayTimes
from toolkit.router.moves.targets import Targets
from toolkit.router.worker import Rank
from toolkit.settings.router.choosing import MovesBy

if TYPE_CHECKING:
    from toolkit.router.known_workers import KnownWorkers
    from toolkit.router.metrics import Metrics
    from toolkit.router.relay import Relay
    from toolkit.router.request import SubRequest
    from toolkit.router.request_channel import RequestChannel
    from toolkit.settings.router.config import RouterConfig

AT_A_TIME = 3
"""Moves of one rank, those that leave it and those that come to it counted apart (CascadeInfer,
section 5)."""
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


class Moves:
    """Moves requests between ranks, and knows those that run.

    A move is an order to the request's own task (`Live.order`), which runs it between two events of
    the stream (`Kind.run`): whoever asked for it may go away, the move goes on.
    """

    def __init__(self, known_workers: KnownWorkers, metrics: Metrics, config: RouterConfig) -> None:
        self._known_workers = known_workers
        self._metrics = metrics
        self._live: dict[Live, None] = {}
        self._named: defaultdict[str, dict[Live, None]] = defaultdict(dict)
        self._leaving: defaultdict[Rank, asyncio.Semaphore] = defaultdict(_three)
        self._coming: defaultdict[Rank, asyncio.Semaphore] = defaultdict(_three)
        self.targets = Targets(known_workers, config.eject_share)
        self.kind: MovesBy = config.moves
        """What was set."""
        self._replays = ReplayTimes()
        self.kinds: Sequence[Kind] = ()
        """Those that this router may use, the best one first."""
        self.use(config.moves)
        self.counts: Counter[MoveCount] = Counter()
        self.kept: Counter[Kept] = Counter()
        self.tokens = 0
        """KV tokens of all that was moved."""
        self.under_way: Counter[Rank] = Counter()
        """By source, the moves that were begun and are not over."""
        self._stalls: deque[float] = deque(maxlen=RING)
        self.on_end: Callable[[Move, MoveOutcome], None] = lambda move, outcome: None
        """Told of every move that was begun."""

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
        self._live[live] = None
        for name in names:
            self._named[name][live] = None
        error: BaseException | None = None
        try:
            yield live
        except BaseException as raised:
            error = raised
            raise
        finally:
            del self._live[live]
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
        return list(self._live)

    def on(self, rank: Rank) -> list[Live]:
        """What decodes there now, or is prefilled for it."""
        return [live for live in self._live if live.rank is rank]

    def why_not(self, live: Live) -> str | None:
        """Why this request cannot be moved, wherever to; None when it can."""
        if not self._known_workers.worker_key:
            return (
                "the workers have no key, without which they go on with no other one's request: "
                "give the router worker_api_key_env"
            )
        return live.why_not()

    async def move(self, live: Live, target: Rank | Sequence[Rank] | None, why: Why) -> MoveOutcome:
        """Move a request to `target`, of several to the one that has the most KV free, or (None) to
        whom the decode policy takes among all others.

        Waits while three are under way from its rank, or to the target. A kind that the source is
        not able to is followed by the next best one. Raises nothing.
        """
        source = live.rank
        reason = self.why_not(live)
        targets = [target] if isinstance(target, Rank) else target
        if source is None or reason is not None:
            return self._not_begun(why, MoveOutcome("kept", reason or "it runs nowhere now"))
        move: Move | None = None
        reasons: list[str] = []
        async with _leased(self._leaving[source], lambda: move):
            chosen = self._chosen(live, source, targets)
            if isinstance(chosen, MoveOutcome):
                return self._not_begun(why, chosen)
            async with _leased(self._coming[chosen], lambda: move):
                for kind in self.kinds:
                    # The wait, or the kind before, may have taken long.
                    refused = self._refused(live, source, chosen)
                    if refused is not None:
                        return refused if move is not None else self._not_begun(why, refused)
                    reason = kind.why_not(live, chosen)
                    if reason is None:
                        move = self._begin(live, source, chosen, why, kind)
                        outcome = await asyncio.shield(move.done)
                        if outcome.how != "kept" or not outcome.other_kind:
                            return outcome
                        reason = outcome.reason
                    reasons.append(reason)
        kept = MoveOutcome("kept", "; ".join(reasons))
        return kept if move is not None else self._not_begun(why, kept)

    def _chosen(
        self, live: Live, source: Rank, targets: Sequence[Rank] | None
    ) -> Rank | MoveOutcome:
        gone = self._gone(live, source)
        if gone is not None:
            return gone
        if targets is None:
            chosen = self.targets.choose(live)
        else:
            chosen = self.targets.best(live, targets)
        return MoveOutcome("kept", chosen) if isinstance(chosen, str) else chosen

    def _refused(self, live: Live, source: Rank, target: Rank) -> MoveOutcome | None:
        gone = self._gone(live, source)
        if gone is not None:
            return gone
        reason = self.targets.why_not(live, target) or self.why_not(live)
        return None if reason is None else MoveOutcome("kept", reason)

    def _gone(self, live: Live, source: Rank) -> MoveOutcome | None:
        if live not in self._live:
            return MoveOutcome("ended", "it came to its end first")
        if live.rank is not source:
            return MoveOutcome("kept", f"it is not on {source.name} any more")
        return None

    def _begin(self, live: Live, source: Rank, target: Rank, why: Why, kind: Kind) -> Move:
        assert live.relay is not None
        channel = self._known_workers.channel
        reservation = channel.reserve(target, live.view(), live.relay.tokens)
        move = Move(source, target, why, kind.name, live.length, reservation, channel)
        move.done.add_done_callback(lambda done: self._ended(move, done.result()))
        self.under_way[source] += 1
        live.order(move, kind)
        return move

    def _ended(self, move: Move, outcome: MoveOutcome) -> None:
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
        self.on_end(move, outcome)

    def _not_begun(self, why: Why, outcome: MoveOutcome) -> MoveOutcome:
        self._count(why, outcome)
        return outcome

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


def _three() -> asyncio.Semaphore:
    return asyncio.Semaphore(AT_A_TIME)


@asynccontextmanager
async def _leased(
    places: asyncio.Semaphore, begun: Callable[[], Move | None]
) -> AsyncIterator[None]:
    """One of the places, until the move is done: whoever ordered it may go away before."""
    await places.acquire()
    try:
        yield
    finally:
        move = begun()
        if move is None or move.done.done():
            places.release()
        else:
            move.done.add_done_callback(lambda _: places.release())
