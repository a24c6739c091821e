"""What the control plane asks whoever serves requests, and what it is answered.

A data plane is the part of a router that has clients: one in a router of one process, one in each
relay process of a larger one. Answers are added up over all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from typing import Any, Protocol

from msgspec import Struct, field

from toolkit.decide.messages import Key
from toolkit.router.quiet import where

log = logging.getLogger("toolkit.router")

ANSWER_S = 2.0
"""A data plane that answers later is left out."""


class AskFigures(Struct, tag=True):
    """Of all requests. `lengths`: of each one that decodes, too."""

    lengths: bool = False


class ClearFigures(Struct, tag=True):
    """What is measured describes requests from now on."""


class FindRequests(Struct, tag=True):
    """Those that go by this name. `caller`: only of this client's key; None: all."""

    name: str
    caller: str | None
    places: bool
    """Whether the answer says which workers they were on."""


class AbortRequests(Struct, tag=True):
    """By the client's own `rid`, or all. `caller`: only of this client's key; None: anybody's."""

    rid: str | None
    caller: str | None


class FindMovable(Struct, tag=True):
    """Requests that may be moved: by the id that their client has, or those on these ranks."""

    rid: str
    sources: list[Key]


class MoveRequests(Struct, tag=True):
    """Move them, by their numbers in this data plane. `targets`: None: the policy chooses."""

    numbers: list[int]
    targets: list[Key] | None


Ask = AskFigures | ClearFigures | FindRequests | AbortRequests | FindMovable | MoveRequests


class MoveCounts(Struct):
    """`outcomes` by why, kind and outcome; `kept` by kind and cause; stalls in seconds."""

    under_way: int = 0
    outcomes: list[tuple[str, str, str, int]] = field(default_factory=list)
    kept: list[tuple[str, str, int]] = field(default_factory=list)
    tokens: int = 0
    stalls: list[float] = field(default_factory=list)


class RequestFigures(Struct):
    """Of one data plane. `seconds`: of each part of the last requests (`Timing`); `lengths`: see
    `AskFigures`, (prompt, KV tokens, rank)."""

    running: int = 0
    queued: int = 0
    held_bytes: int = 0
    resumed: int = 0
    retried: int = 0
    moves: MoveCounts = field(default_factory=MoveCounts)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    lengths: list[tuple[int, int, str]] = field(default_factory=list)


class MovableRequests(Struct):
    """The answer to `FindMovable`: (number, KV tokens) of those that can move, and why others
    cannot. Of a request that was asked for by its id all parts are in `movable`."""

    movable: list[tuple[int, int]] = field(default_factory=list)
    stays: dict[str, int] = field(default_factory=dict)


class AskedPlane(Protocol):
    """One data plane."""

    async def answer(self, ask: Ask) -> Any:
        """What it says: `RequestFigures`, a list of requests as JSON shows them, how many were
        aborted, `MovableRequests`, or what became of each move."""
        ...


async def ask_all(planes: Iterable[AskedPlane], ask: Ask) -> list[Any]:
    """The answers of all that give one in time."""
    return [answer for _, answer in await ask_each(dict.fromkeys(planes, ask))]


async def ask_each(
    asks: Mapping[AskedPlane, Ask], limit_s: float | None = ANSWER_S
) -> list[tuple[AskedPlane, Any]]:
    """As `ask_all`, each another question; with who answers."""

    async def one(plane: AskedPlane, ask: Ask) -> Any:
        async with asyncio.timeout(limit_s):
            return await plane.answer(ask)

    answers = await asyncio.gather(*starmap(one, asks.items()), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            log.error("a question to who serves requests failed in %s", where(answer))
    return [
        (plane, answer)
        for plane, answer in zip(asks, answers, strict=True)
        if not isinstance(answer, BaseException)
    ]


def added(figures: Sequence[RequestFigures]) -> RequestFigures:
    """Of all data planes together."""
    outcomes: Counter[tuple[str, str, str]] = Counter()
    kept: Counter[tuple[str, str]] = Counter()
    whole = RequestFigures()
    for each in figures:
        whole.running += each.running
        whole.queued += each.queued
        whole.held_bytes += each.held_bytes
        whole.resumed += each.resumed
        whole.retried += each.retried
        whole.lengths += each.lengths
        for name, seconds in each.seconds.items():
            whole.seconds.setdefault(name, []).extend(seconds)
        moves, theirs = whole.moves, each.moves
        moves.under_way += theirs.under_way
        moves.tokens += theirs.tokens
        moves.stalls += theirs.stalls
        outcomes.update({(why, kind, how): count for why, kind, how, count in theirs.outcomes})
        kept.update({(kind, cause): count for kind, cause, count in theirs.kept})
    whole.moves.outcomes = [(*key, count) for key, count in sorted(outcomes.items())]
    whole.moves.kept = [(*key, count) for key, count in sorted(kept.items())]
    return whole


def percentiles_ms(seconds: Iterable[float]) -> dict[str, float]:
    """p50, p90 and p99 in milliseconds; empty of nothing."""
    values = sorted(seconds)
    return {
        f"p{p}": round(values[min(len(values) - 1, len(values) * p // 100)] * 1e3, 3)
        for p in (50, 90, 99)
        if values
    }
