"""Our router against sglang-router 0.3.2, both in PD mode over the same stand-in SSE servers.

Measured in rounds that alternate, ours and theirs, over one prefill and two decode stand-ins
(`tests/standin`: the wire format of SGLang, no model) and one load generator process:

- `chunk_us`, `other_chunk_us`, `cpu_ratio`: CPU time (user + system, psutil) of the router process
  per SSE event that the client got, everything included (parsing requests, both POSTs, late
  dispatch), 64 streams of paced tokens at once. `cpu_ratio` is ours / theirs, per pair of rounds:
  geometric mean with the 95 % interval of its logarithm.
- `added_first_chunk_ms`, `other_...`: median time from the client's POST to the first body byte
  at 8 streams at once, minus the same measured straight at a decode stand-in.
- `floor_chunk_us`: the same CPU time of a relay that does nothing but epoll, recv and send, and
  `floor_send_us`: of one that only sends (`tests/standin/floor.py`), at the same pace in the same
  rounds: what the kernel takes. No router of any make can be below `floor_send_us`.
- `reads_per_chunk`, `other_...`: how often the client was woken for a chunk. Below 1, chunks came
  in clumps, which is cheap for the router and late for the reader.
- `rss_growth_mib`: our resident memory after `requests` further requests, less that before them
  (after a warm-up); `rss_requests` says how many.

Nothing is asserted. `--quick` takes less than a minute (and then 4,000 requests for memory;
100,000 otherwise). Run as `python -m tests.benchmarks.router_relay [--quick]`.
"""

import asyncio
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import psutil

from tests.benchmarks.shared.common import Result, arguments, interval
from tests.benchmarks.shared.load import load
from tests.ports import free_port
from tests.preloading import ROOT
from tests.standin.cluster import Cluster

MEASURES = ("toolkit/router", "toolkit/decide")

# sglang-router imports SGLang when it can, for tracing only: 16 s and 500 MiB that it would not
# need. It then runs exactly as where only the wheel is installed.
LAUNCH = (
    "import sys; sys.modules['sglang'] = None; from sglang_router.launch_router import main; main()"
)


@dataclass
class Side:
    """One router process and its samples."""

    name: str
    port: int
    process: psutil.Process
    chunk_us: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)


async def cpu_round(side: Side, requests: int, tokens: int) -> None:
    before = side.process.cpu_times()
    result = await load(side.port, 64, requests, tokens)
    after = side.process.cpu_times()
    used = after.user + after.system - before.user - before.system
    side.chunk_us.append(used / result["chunks"] * 1e6)
    side.reads.append(result["reads"] / result["chunks"])


async def floor(*args: str) -> float:
    """CPU us a chunk of a relay that is nothing but system calls."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.standin.floor", *args, cwd=ROOT, stdout=subprocess.PIPE
    )
    out, _ = await process.communicate()
    return float(json.loads(out)["chunk_us"])


def start_other(cluster: Cluster) -> tuple[subprocess.Popen[bytes], int]:
    port = free_port()
    command = [
        sys.executable,
        "-c",
        LAUNCH,
        "--pd-disaggregation",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--prometheus-port",
        str(free_port()),
        "--policy",
        "round_robin",
        "--log-level",
        "error",
    ]
    for worker in cluster.workers:
        if worker.role == "prefill":
            command += ["--prefill", worker.url, "1"]
        else:
            command += ["--decode", worker.url]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return process, port


async def until_serving(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        if process.poll() is not None:
            raise RuntimeError(f"sglang-router ended with {process.returncode}")
        try:
            await load(port, 1, 1, 2, quiet=True)
            return
        except (RuntimeError, ValueError):
            await asyncio.sleep(0.1)
    raise RuntimeError("sglang-router did not get ready in time")


async def measure(quick: bool) -> dict[str, Any]:
    pairs, requests, tokens = (3, 128, 128) if quick else (10, 384, 128)
    memory_requests = 4_000 if quick else 100_000
    config = {"parked_per_prefill": 64}
    async with Cluster(worker_args=["--step-ms", "10"], config=config) as cluster:
        assert cluster.router is not None
        process, port = start_other(cluster)
        try:
            await until_serving(port, process)
            ours = Side("ours", cluster.port, psutil.Process(cluster.router.pid))
            other = Side("sglang-router", port, psutil.Process(process.pid))
            for side in (ours, other):  # warm-up: imports, connections, allocators
                await load(side.port, 64, 64, 16)
            floors: list[float] = []
            sends: list[float] = []
            for pair in range(pairs):
                floors.append(await floor())
                sends.append(await floor("--shared"))
                order = (ours, other) if pair % 2 == 0 else (other, ours)
                for side in order:
                    await cpu_round(side, requests, tokens)
            direct: list[float] = []
            decode = cluster.worker("decode-0").port
            for _ in range(pairs):
                for port, samples in (
                    (decode, direct),
                    (ours.port, ours.first_ms),
                    (other.port, other.first_ms),
                ):
                    samples += (await load(port, 8, 64, 8))["first_ms"]
        finally:
            process.kill()
            process.wait()
    growth, rss = await memory(memory_requests)
    ratios = [a / b for a, b in zip(ours.chunk_us, other.chunk_us, strict=True)]
    ratio, low, high = interval(ratios)
    base = statistics.median(direct)
    return {
        "cpu_ratio": round(ratio, 3),
        "cpu_ratio_low": round(low, 3),
        "cpu_ratio_high": round(high, 3),
        "chunk_us": round(statistics.median(ours.chunk_us), 2),
        "other_chunk_us": round(statistics.median(other.chunk_us), 2),
        "floor_chunk_us": round(statistics.median(floors), 2),
        "floor_send_us": round(statistics.median(sends), 2),
        "reads_per_chunk": round(statistics.median(ours.reads), 3),
        "other_reads_per_chunk": round(statistics.median(other.reads), 3),
        "added_first_chunk_ms": round(statistics.median(ours.first_ms) - base, 3),
        "other_added_first_chunk_ms": round(statistics.median(other.first_ms) - base, 3),
        "direct_first_chunk_ms": round(base, 3),
        "rss_growth_mib": round(growth, 2),
        "rss_mib": round(rss, 1),
        "rss_requests": memory_requests,
        "samples": pairs,
    }


async def memory(requests: int) -> tuple[float, float]:
    """MiB that the router grew over `requests` short streams after a warm-up, and its size."""
    config = {"parked_per_prefill": 64}
    async with Cluster(config=config) as cluster:
        assert cluster.router is not None
        process = psutil.Process(cluster.router.pid)
        await load(cluster.port, 64, max(2_000, requests // 10), 4)
        before = process.memory_info().rss
        await load(cluster.port, 64, requests, 4)
        after = process.memory_info().rss
    return (after - before) / 2**20, after / 2**20


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(__doc__)
    result = Result()
    measured = asyncio.run(measure(options.quick))
    samples = measured.pop("samples")
    result.keys |= measured
    result.emit(samples)


if __name__ == "__main__":
    main()
