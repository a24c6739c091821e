"""POST /admin/migrate: an operator has requests moved."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.router.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.contract.events import Moving
    from toolkit.router.known_workers import KnownWorkers
    from toolkit.router.moves import Live, MoveOutcome, Moves
    from toolkit.router.worker import Rank

SHAPE = (
    'the body must be {"rid": "...", "to": "decode-1"} or '
    '{"from": "decode-0", "to": "decode-1", "count": 3}; "to" may be null or left out (the decode '
    "policy then chooses), and a worker's DP rank is named as in decode-1:0"
)
MOST = 4096


@dataclass(frozen=True, slots=True)
class MigrateOrder:
    """What the body asks for. `source`: empty where it names a request, `rid`. `target`: None where
    the policy is to choose."""

    rid: str
    source: list[Rank]
    target: list[Rank] | None
    count: int


def read(body: Any, known_workers: KnownWorkers) -> MigrateOrder:
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


def _ranks(known_workers: KnownWorkers, name: Any, field: str) -> list[Rank]:
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


async def migrate(moves: Moves, order: MigrateOrder) -> dict[str, Any]:
    """Run it: what became of each request that it is about.

    Raises:
        ApiError: 404 when no request of that id runs.
    """
    stays: Counter[str] = Counter()
    if order.rid:
        wanted: Sequence[Live] = moves.named(order.rid)
        if not wanted:
            raise ApiError(404, f"no request {order.rid[:256]!r} runs here (any more)")
    else:
        wanted, stays = _longest(moves, order)
    before = [live.rank for live in wanted]
    outcomes = await asyncio.gather(*(moves.move(live, order.target) for live in wanted))
    told = [
        _told(live, rank, outcome)
        for live, rank, outcome in zip(wanted, before, outcomes, strict=True)
    ]
    counted = Counter(outcome.how for outcome in outcomes)
    return {"moves": told, **{how: counted[how] for how in ("moved", "kept", "ended", "lost")},
            "stays": dict(stays)}  # fmt: skip


def _longest(moves: Moves, order: MigrateOrder) -> tuple[list[Live], Counter[str]]:
    """The longest requests that can move, and why others cannot: where the KV is."""
    movable: list[Live] = []
    stays: Counter[str] = Counter()
    for rank in order.source:
        for live in moves.on(rank):
            reason = moves.why_not(live)
            if reason is None:
                movable.append(live)
            else:
                stays[reason] += 1
    movable.sort(key=lambda live: live.length, reverse=True)
    return movable[: order.count], stays


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
