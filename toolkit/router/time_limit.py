"""Time limits that do not count what the router itself is late.

A loop that comes round late runs its timers first, and then looks what has come: a connection may
be open in the kernel, and an answer lie there. So a limit that is over gives the loop some rounds
more, which take no time unless the loop is still busy.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType

ROUNDS = 8
"""Rounds of the loop that are given: a new connection that is open takes four until its task goes
on."""
HELD_UP_S = 0.5
"""A timer that comes later than this says that the router was held up."""


def after_rounds(do: Callable[[], object], rounds: int = ROUNDS) -> None:
    """Do it once the loop has looked that often what has come."""
    if rounds:
        asyncio.get_running_loop().call_soon(after_rounds, do, rounds - 1)
    else:
        do()


class TimeLimit:
    """`async with TimeLimit(seconds)`: raises TimeoutError in the block when they are over, as
    `asyncio.timeout` does, and the rounds, too."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._limit = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._seconds, after_rounds, self._end)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        await self._limit.__aexit__(kind, error, where)

    def _end(self) -> None:
        if self._timer is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())
