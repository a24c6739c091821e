"""Plays a workload against a target, in an open or a closed loop."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.bench.client import Endpoint, Sample, payload, send
from toolkit.bench.conversations import served
from toolkit.bench.decode import DecodeSteps
from toolkit.bench.ending import Ending, eos_ids
from toolkit.bench.errors import BenchError
from toolkit.bench.listen import DecodeWatch
from toolkit.bench.target import Target
from toolkit.bench.watch import WorkerWatch
from toolkit.bench.workload import Item, Label, Workload

if TYPE_CHECKING:
    import aiohttp

Whole = Callable[[int], Awaitable[None]]
"""Plays one chain of the workload, by its number."""
BUSY_CLIENT = 0.7
"""Above this share of a core the client may have kept answers waiting."""
FEW_STEPS = 30
FULL = (429, 503)
"""How a server says that it has no room."""


@dataclass(frozen=True, slots=True)
class BenchLoad:
    """How a workload is played.

    `concurrency` alone: closed loop, so many in flight, arrivals ignored. `open_loop`: each item
    is sent at its arrival; `concurrency` then caps what is in flight (None: no cap). `label` is
    what the router is told of each request, for the policy `label_oracle`; None: nothing.
    `hidden`: answers end by themselves where the item says, and the limit is the same for all; see
    `toolkit.bench.ending`. Of conversations `concurrency` counts those that are under way, also
    while somebody thinks; `served`: their history has the answers that were served, see
    `toolkit.bench.conversations`.
    """

    endpoint: Endpoint = "generate"
    open_loop: bool = False
    concurrency: int | None = 4
    ignore_eos: bool = True
    timeout_s: float = 600.0
    label: Label | None = None
    hidden: bool = False
    served: bool = False


@dataclass(slots=True)
class RunOutcome:
    """What came back. `late_ms` is how far the client fell behind the arrivals at worst.

    `decode` is what the decode workers logged meanwhile; None when they (or the router) cannot be
    listened to, and `note` says why. `client_cpu` is the share of a core that this process used.
    """

    samples: list[Sample]
    duration_s: float
    late_ms: float
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    faults: list[str]
    decode: DecodeSteps | None = None
    note: str = ""
    client_cpu: float = 0.0

    def full(self) -> tuple[float, float]:
        """From the first answer's end to the last request's start, seconds of `time.monotonic`: the
        time in which a closed loop had all its requests in flight, an open one its rate."""
        # On Linux perf_counter, which samples have, is the clock that monotonic is.
        since = min(sample.start_time + sample.latency for sample in self.samples)
        return since, max(sample.start_time for sample in self.samples)

    def while_full(self) -> DecodeSteps | None:
        """`decode` of the time in which the load was whole (`full`). Filling and running dry have
        batches that no policy is about. All of it where that time has few steps.
        """
        if self.decode is None or not self.samples:
            return self.decode
        full = self.decode.between(*self.full())
        enough = all(len(rank.steps) >= FEW_STEPS for rank in full.ranks)
        return full if enough else self.decode

    def remarks(self) -> list[str]:
        """What a reader of the numbers has to know of how they were taken."""
        said = []
        if self.note:
            said.append(f"no (or not all) numbers from inside the decode workers: {self.note}")
        if self.client_cpu > BUSY_CLIENT and self.duration_s > 1:  # else it is its start
            said.append(
                f"this client used more than {100 * BUSY_CLIENT:.0f} % of a core: the times that "
                "it measured are partly its own; play the load with several clients"
            )
        return said


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
    session: aiohttp.ClientSession, target: Target, workload: Workload, load: BenchLoad
) -> RunOutcome:
    """Run the workload once and listen to the decode workers. Does not judge the outcome: `check`
    does."""
    ending = None
    if load.hidden:
        most = max(item.output_tokens for item in workload)
        ending = Ending(most, eos_ids(target.model_path))
    chains = workload.chains()
    bodies = [
        payload(load.endpoint, target.model, item, load.ignore_eos, ending) for item in workload
    ]
    numbered = iter(range(len(bodies)))
    places = [[next(numbered) for _ in chain] for chain in chains]
    samples: list[Sample | None] = [None] * len(bodies)
    late = 0.0

    async def one(url: str, index: int, item: Item, body: dict[str, Any], keep: bool) -> Sample:
        sample = await send(
            session,
            url,
            load.endpoint,
            body,
            item.domain,
            item.label(load.label),
            item.user,
            keep,
            item.request_class,
        )
        if ending is not None and sample.success and sample.output_len != item.output_tokens:
            sample.success = False
            sample.error = f"an answer ended after {sample.output_len} tokens, not where it should"
        samples[index] = sample
        return sample

    async def whole(number: int) -> None:
        """A chain, turn by turn. What follows a failed one is not sent, and counts as lost."""
        answers: list[str] = []
        chain, last = chains[number], len(chains[number]) - 1
        url = target.urls[number % len(target.urls)]
        for turn, (index, item) in enumerate(zip(places[number], chain, strict=True)):
            if item.think_s:
                await asyncio.sleep(item.think_s)
            body = bodies[index]
            if load.served and turn:
                said = served(item, answers)
                body = payload(load.endpoint, target.model, said, load.ignore_eos, ending)
            sample = await one(url, index, item, body, load.served and turn < last)
            answers.append(sample.generated_text)
            if not sample.success:
                for left in places[number][turn + 1 :]:
                    samples[left] = Sample(
                        start_time=sample.start_time + sample.latency,
                        status=sample.status,
                        error="not sent: the turn before it failed",
                        domain=item.domain,
                    )
                return

    async with (
        WorkerWatch(session, target.urls) as watch,
        DecodeWatch(session, watch.before) as listener,
    ):
        start, cpu = time.perf_counter(), time.process_time()
        if load.open_loop:
            times = [chain[0].arrival_s for chain in chains]
            late = await _open(times, whole, load.concurrency, start)
        else:
            await _closed(len(chains), whole, load.concurrency or 1)
        duration, cpu = time.perf_counter() - start, time.process_time() - cpu
        done = [sample for sample in samples if sample is not None]
        # A request of one token is over with its prefill.
        decode = await listener.take(sum(s.success and s.output_len > 1 for s in done))
    return RunOutcome(
        done,
        duration,
        late * 1000,
        watch.before,
        watch.after,
        watch.faults,
        decode,
        listener.note,
        cpu / duration,
    )


async def _closed(count: int, whole: Whole, concurrency: int) -> None:
    queue = iter(range(count))

    async def worker() -> None:
        for number in queue:
            await whole(number)

    await asyncio.gather(*(worker() for _ in range(min(concurrency, count))))


async def _open(times: Sequence[float], whole: Whole, cap: int | None, start: float) -> float:
    gate = asyncio.Semaphore(cap) if cap else None
    worst = 0.0

    async def gated(number: int) -> None:
        if gate is None:
            await whole(number)
            return
        async with gate:
            await whole(number)

    tasks = []
    for number, arrival_s in enumerate(times):
        wait = start + arrival_s - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        worst = max(worst, time.perf_counter() - start - arrival_s)
        tasks.append(asyncio.create_task(gated(number)))
    await asyncio.gather(*tasks)
    return worst


def check(
    outcome: RunOutcome, expected: int, tolerate_faults: bool = False, refusals: bool = False
) -> None:
    """Raise BenchError for a run that is no result: lost requests, no tokens, lost workers.
    `refusals`: what a server that says it is full did not take is part of the result."""
    samples = outcome.samples
    failed = [
        sample
        for sample in samples
        if not sample.success and not (refusals and sample.status in FULL)
    ]
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
