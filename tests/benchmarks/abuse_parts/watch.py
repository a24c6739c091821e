"""What `abuse` keeps an eye on: the router's life, memory and counters, and what it answered."""

import asyncio
import hashlib
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

import psutil

from tests.benchmarks.abuse_parts.http import HANG_S, Outcome
from tests.standin.cluster import Cluster
from toolkit.settings.router.config import RouterConfig

MIB = 2**20
SHOWN = 20
"""Distinct inputs that got a 500 or hung, printed on standard error."""
BACK_S = 20.0
"""A prefill's answer may come 10 s after its decode's (`PREFILL_LINGER_S`)."""


@dataclass
class Tally:
    """Of many exchanges with the router. `stuck` counters were not back to 0 after them."""

    sent: int = 0
    hangs: int = 0
    crashes: int = 0
    answers_500: int = 0
    garbled: int = 0
    stuck: int = 0
    slowest_s: float = 0.0
    statuses: dict[int, int] = field(default_factory=dict)
    shown: set[bytes] = field(default_factory=set)

    def count(
        self, what: bytes, outcome: Outcome, kind: str = "", failures: int | None = None
    ) -> None:
        """`failures`: those that count as a 500; all that say so when it is None."""
        failures = outcome.failures if failures is None else failures
        self.sent += 1
        self.hangs += outcome.hung
        self.answers_500 += failures
        self.garbled += outcome.garbled
        self.slowest_s = max(self.slowest_s, outcome.seconds)
        for status, _ in outcome.answers:
            self.statuses[status] = self.statuses.get(status, 0) + 1
        why = "hung" if outcome.hung else "500" if failures else ""
        why = "garbled" if outcome.garbled else why
        digest = hashlib.blake2b(kind.encode() or what, digest_size=8).digest()
        if why and digest not in self.shown and len(self.shown) < SHOWN:
            self.shown.add(digest)
            print(f"{why}: {kind} {what[:600]!r} ({len(what)} bytes)", file=sys.stderr, flush=True)


class Memory:
    """`with Memory(pid) as memory:` resident memory of a process, sampled every 50 ms, in MiB."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peak = 0.0

    def __enter__(self) -> Self:
        self.first = self.now()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def now(self) -> float:
        """0 when the process is gone."""
        try:
            rss = self._process.memory_info().rss / MIB
        except psutil.NoSuchProcess:
            rss = 0.0
        self.peak = max(self.peak, rss)
        return float(rss)

    @property
    def growth(self) -> float:
        return self.now() - self.first

    def _sample(self) -> None:
        while not self._stop.wait(0.05):
            self.now()


def known(**config: Any) -> dict[str, Any]:
    """Those settings that this router's configuration has: older ones lack some."""
    return {name: value for name, value in config.items() if name in RouterConfig.model_fields}


def alive(cluster: Cluster) -> bool:
    return cluster.router is not None and cluster.router.poll() is None


async def settled(cluster: Cluster, tally: Tally) -> None:
    """Count as stuck what is not back to 0 in time, of the router and of the stand-ins; a router
    that is gone or does not answer is a crash or a hang."""
    if not alive(cluster):
        tally.crashes += 1
        print(f"the router ended:\n{cluster.log.read_text()[-3000:]}", file=sys.stderr)
        return
    deadline = asyncio.get_running_loop().time() + BACK_S
    while True:
        try:
            async with asyncio.timeout(HANG_S):
                left = await _left(cluster)
        except TimeoutError:
            tally.hangs += 1
            print("the router does not answer /workers", file=sys.stderr)
            return
        if not left or asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(0.1)
    tally.stuck += len(left)
    if left:
        print(f"not back to 0: {left}", file=sys.stderr, flush=True)


async def _left(cluster: Cluster) -> dict[str, int]:
    state = await cluster.state()
    counts = {name: state[name] for name in ("running", "queued", "parked")}
    for worker in state["workers"]:
        for name in ("inflight", "inflight_tokens"):
            counts[f"{worker['name']} {name}"] = worker[name]
    for worker in cluster.workers:
        if worker.process is not None:
            counts[f"{worker.name} running"] = (await cluster.stats(worker.name))["running"]
    return {name: count for name, count in counts.items() if count}


async def side_by_side(
    inputs: Iterable[Any], one: Callable[[Any], Awaitable[None]], lanes: int
) -> None:
    """`one` for each input, so many at a time, in order of their arrival."""
    source = iter(inputs)

    async def lane() -> None:
        for each in source:
            await one(each)

    await asyncio.gather(*(lane() for _ in range(lanes)))
