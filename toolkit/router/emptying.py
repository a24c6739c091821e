"""Emptying ranks: what runs there goes on elsewhere, or is waited for."""

from __future__ import annotations

import asyncio
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import msgspec

from toolkit.contract.numbers import Count, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from toolkit.decide.moves import MoveDecider
    from toolkit.router.known_workers import KnownWorkers
    from toolkit.router.worker import Rank

LOOK_S = 0.02
REASONS_MAX = 64


class EmptyingCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one router's requests on some ranks: what became of those that went since the order, how
    many are `left`, and why they stay. `over`: it does no more about them."""

    moved: Count = 0
    ended: Count = 0
    lost: Count = 0
    left: Count = 0
    stays: Annotated[dict[Text, Count], msgspec.Meta(max_length=REASONS_MAX)] = {}
    over: bool = True


class _Emptying:
    """Of one order. `before`: what had become of moves when it began."""

    def __init__(self, before: dict[Rank, Counter[str]]) -> None:
        self.before = before
        self.task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        return self.task is None or self.task.done()


class Emptyings:
    """Of each rank the last one: a newer order takes its ranks from the one before."""

    def __init__(self, known_workers: KnownWorkers, moves: MoveDecider) -> None:
        self._known = known_workers
        self._moves = moves
        self._last: dict[Rank, _Emptying] = {}

    def begin(self, ranks: Sequence[Rank], seconds: float) -> None:
        """Empty these ranks, for so long at most."""
        emptying = _Emptying({rank: Counter(self._moves.emptied[rank]) for rank in ranks})
        self._last |= dict.fromkeys(ranks, emptying)
        self._known.empty(ranks)
        emptying.task = asyncio.get_running_loop().create_task(self._run(emptying, seconds))

    def end(self, ranks: Iterable[Rank]) -> None:
        """Leave what still runs on these ranks where it is."""
        ended = [rank for rank in ranks if self._last.pop(rank, None) is not None]
        if ended:
            self._known.empty(ended, on=False)

    def stop(self) -> None:
        """All of them, for good."""
        for emptying in set(self._last.values()):
            if emptying.task is not None:
                emptying.task.cancel()

    async def over(self, ranks: Sequence[Rank], within_s: float) -> None:
        """Returns when all that is done about these ranks is done, or after so long."""
        tasks = [
            each.task for each in self._of(ranks) if each.task is not None and not each.task.done()
        ]
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)

    def counts(self, ranks: Sequence[Rank]) -> EmptyingCounts:
        """What has come of it so far."""
        outcomes, stays = Counter[str](), Counter[str]()
        for rank in ranks:
            emptying = self._last.get(rank)
            if emptying is not None:
                outcomes += self._moves.emptied[rank] - emptying.before[rank]
            stays += self._moves.stays(rank)
        return EmptyingCounts(
            outcomes["moved"], outcomes["ended"], outcomes["lost"],
            sum(rank.inflight for rank in ranks), dict(stays.most_common(REASONS_MAX)),
            all(each.over for each in self._of(ranks)),
        )  # fmt: skip

    def _of(self, ranks: Sequence[Rank]) -> set[_Emptying]:
        return {self._last[rank] for rank in ranks if rank in self._last}

    async def _run(self, emptying: _Emptying, seconds: float) -> None:
        begun = monotonic()
        while True:
            ranks = [rank for rank in emptying.before if self._last.get(rank) is emptying]
            if not self._busy(ranks) or monotonic() - begun >= seconds:
                break
            await asyncio.sleep(LOOK_S)
        if ranks:
            self._known.empty(ranks, on=False)

    def _busy(self, ranks: Sequence[Rank]) -> bool:
        """A request leaves its rank a little before its move is known to be over."""
        return any(rank.inflight or self._moves.leaving(rank) for rank in ranks)
