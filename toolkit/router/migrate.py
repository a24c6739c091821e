"""POST /admin/migrate: an operator has requests moved."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.router.asks import FindMovable, MovableRequests, MoveRequests, ask_each
from toolkit.router.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from toolkit.contract.events import Moving
    from toolkit.router.asks import AskedPlane
    from toolkit.router.configured_workers import ConfiguredWorkers
    from toolkit.router.moves import Live, MoveOutcome, Moves
    from toolkit.router.worker import Rank

SHAPE = (
    'the body must be {"rid": "...", "to": "decode-1"} or '
    '{"from": "decode-0", "to": "decode-1", "count": 3}; "to" may be null or left out (the decode '
    "policy then chooses), and a worker's DP rank is named as in decode-1:0"
)
MOST = 4096
OUTCOMES = ("moved", "kept", "ended", "lost")


@dataclass(frozen=True, slots=True)
class MigrateOrder:
    """What the body asks for. `source`: empty where it names a request, `rid`. `target`: None where
    the policy is to choose."""

    rid: str
    source: list[Rank]
    target: list[Rank] | None
    count: int


def read(body: Any, known_workers: ConfiguredWorkers) -> MigrateOrder:
    """The order in a body. ApiError 400 says what is wrong with it, and how to mend it."""
    if not isinstance(body, dict) or not set(body) <= {"rid", "from", "to", "count"}:
        raise ApiError(400, SHAPE)
    rid, source, to, count = (body.get(name) for name in ("rid", "from", "to", "count"))
    if (rid is None) == (source is None):
        raise ApiError(400, f'give "rid" or "from", one of them: {SHAPE}')
    if rid is not None and (not isinstance(rid, str) or not rid):
        raise ApiError(400, '"rid" must be the id that the client has of its request, a text')
    if count is not None and source is None:
        raise ApiError(400, '"count" goes with "from"; a request named by "rid" is one')
    if count is not None and (type(count) is not int or not 1 <= count <= MOST):
        raise ApiError(400, f'"count" must be a whole number from 1 to {MOST}')
    ranks = [] if source is None else _ranks(known_workers, source, "from")
    target = None if to is None else _ranks(known_workers, to, "to")
    if target is not None and set(target) == set(ranks):
        raise ApiError(400, '"from" and "to" are the same: name another one, or leave "to" out')
    return MigrateOrder(rid or "", ranks, target, count or 1)


def _ranks(known_workers: ConfiguredWorkers, name: Any, field: str) -> list[Rank]:
    ranks = known_workers.ranks_named(name) if isinstance(name, str) else []
    if ranks and ranks[0].worker.config.role != "prefill":
        return ranks
    known = [
        rank.name
        for worker in known_workers.workers
        if worker.config.role != "prefill"
        for rank in worker.ranks
    ]
    raise ApiError(
        400,
        f'"{field}" must name a worker that decodes, one of {", ".join(known)}; got {name!r:.80}',
    )


async def migrate(planes: Iterable[AskedPlane], order: MigrateOrder) -> dict[str, Any]:
    """Run it: what became of each request that it is about.

    Raises:
        ApiError: 404 when no request of that id runs.
    """
    ask = FindMovable(order.rid, [rank.key for rank in order.source])
    found = await ask_each(dict.fromkeys(planes, ask))
    stays: Counter[str] = Counter()
    rows: list[tuple[int, int, AskedPlane]] = []
    for plane, answer in found:
        stays.update(answer.stays)
        rows += [(length, number, plane) for number, length in answer.movable]
    if order.rid and not rows:
        raise ApiError(404, f"no request {order.rid[:256]!r} runs here (any more)")
    if not order.rid:
        rows.sort(key=lambda row: row[0], reverse=True)
        rows = rows[: order.count]
    targets = None if order.target is None else [rank.key for rank in order.target]
    wanted: dict[AskedPlane, list[int]] = {}
    for _, number, plane in rows:
        wanted.setdefault(plane, []).append(number)
    moved = await ask_each(
        {plane: MoveRequests(numbers, targets) for plane, numbers in wanted.items()}, limit_s=None
    )
    told = [each for _, rows_of_one in moved for each in rows_of_one]
    counted = Counter(each["outcome"] for each in told)
    counts = {how: counted[how] for how in OUTCOMES}
    return {"moves": told, **counts, "stays": dict(stays)}


def movable(moves: Moves, known_workers: ConfiguredWorkers, ask: FindMovable) -> MovableRequests:
    """Of one data plane: those that go by the id, or on the ranks those that can move, and why
    others cannot: where the KV is."""
    if ask.rid:
        return MovableRequests([(live.number, live.length) for live in moves.named(ask.rid)])
    found, stays = MovableRequests(), Counter[str]()
    for name, dp_rank in ask.sources:
        for live in moves.on(known_workers.named(name).ranks[dp_rank]):
            reason = moves.why_not(live)
            if reason is None:
                found.movable.append((live.number, live.length))
            else:
                stays[reason] += 1
    found.stays = dict(stays)
    return found


async def move(
    moves: Moves, known_workers: ConfiguredWorkers, ask: MoveRequests
) -> list[dict[str, Any]]:
    """Of one data plane: what became of each."""
    targets = None
    if ask.targets is not None:
        targets = [known_workers.named(name).ranks[dp_rank] for name, dp_rank in ask.targets]

    async def one(number: int) -> dict[str, Any]:
        live = moves.numbered(number)
        if live is None:
            return {"rid": "", "from": None, "to": None, "outcome": "ended"}
        before = live.rank
        return _told(live, before, await moves.move(live, targets))

    return list(await asyncio.gather(*map(one, ask.numbers)))


def _told(live: Live, source: Rank | None, outcome: MoveOutcome) -> dict[str, Any]:
    told: dict[str, Any] = {
        "rid": live.rid,
        "from": None if source is None else source.name,
        "to": outcome.to or None,
        "outcome": outcome.how,
    }
    if outcome.reason:
        told["reason"] = outcome.reason
    if outcome.how == "moved":
        told["kind"] = outcome.kind
        told["tokens"] = outcome.tokens
        told["stall_ms"] = round(outcome.stall_s * 1e3, 3)
    if outcome.cause:
        told["cause"] = outcome.cause
    if outcome.copied is not None:
        told["copied"] = _copied(outcome.copied)
    return told


def _copied(told: Moving) -> dict[str, Any]:
    """What the source of a direct move measured: of its own rank, where several share a request."""
    return {
        "rounds": told.rounds,
        "bytes": told.bytes,
        "mb_s": round(told.rate / 1e6, 3),
        "step_ms": round(told.step_s * 1e3, 3),
        "last_bytes": told.last_bytes,
        "last_ms": round(told.last_s * 1e3, 3),
        "token_bytes": round(told.token_bytes),
        "seconds": round(told.seconds, 4),
    }
