"""Plays a workload against a target, in an open or a closed loop."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.bench.client import Endpoint, Sample, payload, send
from toolkit.bench.errors import BenchError
from toolkit.bench.target import Target
from toolkit.bench.watch import WorkerWatch
from toolkit.bench.workload import Item, Workload

if TYPE_CHECKING:
    import aiohttp


@dataclass(frozen=True, slots=True)
class Load:
    """How a workload is played.

    `concurrency` alone: closed loop, so many in flight, arrivals ignored. `open_loop`: each item
    is sent at its arrival; `concurrency` then caps what is in flight (None: no cap).
    """

    endpoint: Endpoint = "generate"
    open_loop: bool = False
    concurrency: int | None = 4
    ignore_eos: bool = True
    timeout_s: float = 600.0


@dataclass(slots=True)
class Outcome:
    """What came back. `late_ms` is how far the client fell behind the arrivals at worst."""

    samples: list[Sample]
    duration_s: float
    late_ms: float
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    faults: list[str]


def new_session(timeout_s: float = 600.0, api_key: str | None = None) -> aiohttp.ClientSession:
    """An aiohttp session for load: no connection limit, no decompression, plain timeouts."""
    import aiohttp

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        headers=headers,
        auto_decompress=False,
        read_bufsize=2**20,
    )


async def play(
    session: aiohttp.ClientSession, target: Target, workload: Workload, load: Load
) -> Outcome:
    """Run the workload once. Does not judge the outcome: `check` does."""
    bodies = [payload(load.endpoint, target.model, item, load.ignore_eos) for item in workload]
    samples: list[Sample | None] = [None] * len(bodies)
    late = 0.0

    async def one(index: int, item: Item) -> None:
        samples[index] = await send(session, target.url, load.endpoint, bodies[index], item.domain)

    async with WorkerWatch(session, target.url) as watch:
        start = time.perf_counter()
        if load.open_loop:
            late = await _open(workload, one, load.concurrency, start)
        else:
            await _closed(workload, one, load.concurrency or 1)
        duration = time.perf_counter() - start
    done = [sample for sample in samples if sample is not None]
    return Outcome(done, duration, late * 1000, watch.before, watch.after, watch.faults)


async def _closed(workload: Workload, one: Any, concurrency: int) -> None:
    queue = iter(enumerate(workload))

    async def worker() -> None:
        for index, item in queue:
            await one(index, item)

    await asyncio.gather(*(worker() for _ in range(min(concurrency, len(workload)))))


async def _open(workload: Workload, one: Any, cap: int | None, start: float) -> float:
    gate = asyncio.Semaphore(cap) if cap else None
    worst = 0.0

    async def gated(index: int, item: Item) -> None:
        if gate is None:
            await one(index, item)
            return
        async with gate:
            await one(index, item)

    tasks = []
    for index, item in enumerate(workload):
        wait = start + item.arrival_s - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        worst = max(worst, time.perf_counter() - start - item.arrival_s)
        tasks.append(asyncio.create_task(gated(index, item)))
    await asyncio.gather(*tasks)
    return worst


def check(outcome: Outcome, expected: int, tolerate_faults: bool = False) -> None:
    """Raise BenchError for a run that is no result: lost requests, no tokens, lost workers."""
    samples = outcome.samples
    failed = [sample for sample in samples if not sample.success]
    problems = []
    if failed or len(samples) != expected:
        lost = expected - len(samples) + len(failed)
        problems.append(f"{lost} of {expected} requests were lost")
        reasons = Counter(sample.error.splitlines()[0][:200] for sample in failed if sample.error)
        problems += [f"  {count} x {reason}" for reason, count in reasons.most_common(5)]
    if not sum(sample.output_len for sample in samples):
        problems.append("no tokens were generated")
    if outcome.faults and not tolerate_faults:
        problems += outcome.faults
    if problems:
        raise BenchError("this run is an error, not a result:\n" + "\n".join(problems))
