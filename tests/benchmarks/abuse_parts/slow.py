"""`abuse`, slow clients and unfinished bodies beside normal traffic: the cost in its p99 TTFT.

The attackers are a process of their own with the lowest priority (`python -m
tests.benchmarks.abuse_parts.slow PORT SECONDS`): what they cost is what the router does about them,
not that they take turns with it on a small machine.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from tests.benchmarks.abuse_parts.watch import MIB, Memory, Tally, settled
from tests.benchmarks.shared.common import interval, percentile
from tests.benchmarks.shared.load import load
from tests.preloading import ROOT
from tests.standin.cluster import Cluster
from tests.standin.storm import Traffic

SLOW = 500
UNFINISHED = 24
BODY_MIB = 60
LANES = 8
CONFIG = {"max_inflight": 256, "max_queue": 512}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: slow\r\nX-Filler: "
BEGUN = (
    b"POST /v1/completions HTTP/1.1\r\nHost: slow\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)
PIECE = b"a" * (256 * 1024)


@dataclass
class Attack:
    """Clients that never finish, until cancelled. Who is turned away comes again after 2 s."""

    port: int
    lasts_s: float
    opened: int = 0
    closed: int = 0
    sent_mib: float = 0.0

    async def run(self) -> None:
        """Half of the slow ones dawdle with their heads, half with their bodies; the unfinished
        bodies come over the first half of the time, all but their last MiB."""
        tasks = [
            asyncio.create_task(self._again(self._drip, i % 2 == 0, i / SLOW)) for i in range(SLOW)
        ]
        tasks += [asyncio.create_task(self._again(self._upload)) for _ in range(UNFINISHED)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _again(self, one: Callable[..., Any], *args: Any) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                self.opened += 1
                sending = asyncio.ensure_future(one(writer, *args))
                gone = asyncio.ensure_future(reader.read())
                try:
                    await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
                    self.closed += 1
                finally:
                    for task in (sending, gone):
                        task.cancel()
                    await asyncio.gather(sending, gone, return_exceptions=True)
                    writer.transport.abort()
            await asyncio.sleep(2.0)

    async def _drip(self, writer: asyncio.StreamWriter, head: bool, phase: float) -> None:
        writer.write(HEAD if head else BEGUN % 5000)
        await asyncio.sleep(phase)
        while True:
            writer.write(b" ")
            await asyncio.sleep(1.0)

    async def _upload(self, writer: asyncio.StreamWriter) -> None:
        writer.write(BEGUN % (BODY_MIB * MIB) + b'{"prompt": "')
        pieces = (BODY_MIB - 1) * MIB // len(PIECE)
        began = perf_counter()
        for number in range(pieces):
            due = began + self.lasts_s / 2 * number / pieces
            await asyncio.sleep(max(0.0, due - perf_counter()))
            writer.write(PIECE)
            await writer.drain()
            self.sent_mib += len(PIECE) / MIB
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def attacked(port: int, lasts_s: float, told: dict[str, int]) -> AsyncIterator[None]:
    """Attackers while it lasts; `told` gets their numbers at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.benchmarks.abuse_parts.slow",
        str(port),
        str(lasts_s),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        await process.stdout.readline()  # all have connected
        yield
    finally:
        process.send_signal(signal.SIGINT)
        said, _ = await process.communicate()
    for name, count in json.loads(said).items():
        told[name] = told.get(name, 0) + count


async def _attack(port: int, lasts_s: float) -> None:
    """The attackers' own process: a line once they are there, and one with their numbers."""
    os.nice(19)
    attack = Attack(port, lasts_s)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    attacking = asyncio.create_task(attack.run())
    await asyncio.sleep(1.0)
    print("there", flush=True)
    await stop.wait()
    attacking.cancel()
    await asyncio.gather(attacking, return_exceptions=True)
    print(json.dumps({"turned_away": attack.closed, "sent_mib": int(attack.sent_mib)}))


async def slow(pairs: int, block_s: float) -> dict[str, Any]:
    """Blocks of the same traffic without and with the attack, alternating, in one router's life."""
    tally = Tally()
    ratios: list[float] = []
    p99s: dict[str, list[float]] = {"without": [], "with": []}
    told = {"turned_away": 0, "sent_mib": 0}
    lost = 0
    async with Cluster(worker_args=["--token-ms", "2"], config=CONFIG) as cluster:
        assert cluster.router is not None
        requests = await _rate(cluster, block_s)
        with Memory(cluster.router.pid) as memory:
            for pair in range(pairs):
                figures: dict[str, float] = {}
                for side in ("without", "with") if pair % 2 == 0 else ("with", "without"):
                    async with contextlib.AsyncExitStack() as stack:
                        if side == "with":
                            beside = attacked(cluster.port, block_s, told)
                            await stack.enter_async_context(beside)
                        p99, missed = await _block(cluster, requests)
                    await asyncio.sleep(1.0)
                    figures[side] = p99
                    p99s[side].append(p99)
                    lost += missed
                ratios.append(figures["with"] / figures["without"])
            growth = memory.peak - memory.first
        await settled(cluster, tally)
    refused = await _few_descriptors()
    mean, low, high = interval(ratios)
    return {
        "slow_p99_ratio": mean,
        "slow_p99_ratio_low": low,
        "slow_p99_ratio_high": high,
        "slow_p99_without_ms": sum(p99s["without"]) / pairs,
        "slow_p99_with_ms": sum(p99s["with"]) / pairs,
        "slow_growth_mib": growth,
        "slow_clients": SLOW,
        "slow_unfinished": UNFINISHED,
        "slow_turned_away": told["turned_away"],
        "slow_sent_mib": told["sent_mib"],
        "slow_failed": lost,
        "slow_requests": requests,
        "slow_pairs": pairs,
        "slow_descriptors_failed": refused,
        "hangs": tally.hangs,
        "crashes": tally.crashes,
        "stuck": tally.stuck,
    }


async def _few_descriptors() -> int:
    """Streams of 100, all at once, that fail at a router whose soft limit is 64 descriptors."""
    async with Cluster(files=64) as cluster:
        checked = await Traffic(cluster, 8, seed=1, limit_s=20.0).run(100, 100)
    return checked.lost + checked.wrong


async def _rate(cluster: Cluster, block_s: float) -> int:
    """Requests of a block that takes about so long in peace."""
    await load(cluster.port, LANES, 200, 8)
    began = perf_counter()
    await load(cluster.port, LANES, 400, 8)
    return max(200, int(400 * block_s / (perf_counter() - began)))


async def _block(cluster: Cluster, requests: int) -> tuple[float, int]:
    """p99 of the time to the first token, ms, and 1 when some requests were lost."""
    try:
        result = await load(cluster.port, LANES, requests, 8)
        return percentile(result["first_ms"], 99), 0
    except RuntimeError as error:
        print(f"normal traffic: {error}", file=sys.stderr)
        return float("nan"), 1


if __name__ == "__main__":
    asyncio.run(_attack(int(sys.argv[1]), float(sys.argv[2])))
