"""One start of a variant: its rounds are played to the routers that are up."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.bench.compare import judged
from toolkit.bench.errors import BenchError
from toolkit.bench.metrics import Slo
from toolkit.bench.runner import BenchLoad, play
from toolkit.bench.suite.traffic import SuiteLoad, rounds_of
from toolkit.bench.target import Target, discover, flush_caches, get_json, switch, worker_urls
from toolkit.bench.workload import Workload, backwards

if TYPE_CHECKING:
    import aiohttp

    from toolkit.bench.suite.question import SuiteArm, Traffic

WARM = 2
HEARD_S, HEARD_TRIES = 0.2, 25
"""Workers tell their steps some times a second."""


@dataclass(frozen=True, slots=True)
class SuiteStart:
    """`rounds`: all of the suite's, by kind of traffic; `numbers`: those that this start plays."""

    session: aiohttp.ClientSession
    target: Target
    workers: list[str]
    load: BenchLoad
    rounds: Mapping[Traffic, list[Workload]]
    numbers: range

    @classmethod
    async def at(
        cls, session: aiohttp.ClientSession, urls: Sequence[str], load: SuiteLoad, numbers: range
    ) -> SuiteStart:
        """The routers at these URLs, warmed up. BenchError: nobody answers, or prompts are too
        few."""
        url, *others = urls
        target = await discover(session, url, others)
        rounds = rounds_of(load, target)
        workers = worker_urls(await get_json(session, url + "/workers"), url)
        own = BenchLoad(concurrency=load.concurrency)
        first = rounds["plain"][numbers[0]]
        warm = Workload("warm-up", tuple(map(backwards, first.items[:WARM])))
        await play(session, target, warm, own)
        return cls(session, target, workers, own, rounds, numbers)

    async def settle(self, arm: SuiteArm, steps: int) -> None:
        """Until the busiest decode rank has made so many steps, with requests of other rounds."""
        plain = self.rounds["plain"]
        others = itertools.cycle(sorted({*range(len(plain))} - {*self.numbers}))
        done = await self._steps()
        if done < steps:
            await switch(self.session, self.target, arm.policies)
        while done < steps:
            await play(self.session, self.target, plain[next(others)], self.load)
            done = await self._more_than(done)

    async def round(self, arm: SuiteArm, traffic: Traffic, number: int) -> dict[str, Any]:
        """Metrics of a round, from empty prefix caches. BenchError: it is no result."""
        await switch(self.session, self.target, arm.policies)
        await flush_caches(self.session, self.workers)
        workload = self.rounds[traffic][number]
        outcome = await play(self.session, self.target, workload, self.load)
        figures = judged(outcome, workload, f"{arm.name}, round {number + 1}", Slo())
        # Without the long lists of single workers.
        return {key: value for key, value in figures.items() if not isinstance(value, list)}

    async def _more_than(self, before: int) -> int:
        """Steps, as soon as the router has heard of the round's."""
        for _ in range(HEARD_TRIES):
            if (done := await self._steps()) > before:
                return done
            await asyncio.sleep(HEARD_S)
        raise BenchError("decode workers count no steps: nobody knows when experts move")

    async def _steps(self) -> int:
        return decode_steps(await get_json(self.session, self.target.url + "/workers"))


def decode_steps(state: Mapping[str, Any]) -> int:
    """Of the decode rank that has made most since the router started, by `GET /workers`."""
    rows = (row for row in state["workers"] if row["role"] == "decode")
    return max((int(row.get("steps", {}).get("steps", 0)) for row in rows), default=0)
