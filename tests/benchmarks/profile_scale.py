"""`toolkit profile --live` of a model as large as DeepSeek-V3: memory, loop lag, gaps in streams.

Two workers' HTTP processes (`shared.wide_worker`: 58 layers x 256 experts, 8 of them a token, 8 DP
ranks) say what a node that prefills and one that decodes would at `--rate` requests of 1,000 prompt
and 370 output tokens a second: 40 are about what DeepSeek reports of a node of 8 H800 (14,800
output tokens a second). No model runs. The sample is taken by the code of `toolkit profile --live`,
in this process, for `--seconds`; 32 streams of a token every 10 ms are read from each worker by a
process of its own, first without a sample, then beside it.

keys, by share of requests (`0.1`, the command's default; `1.0`): `requests` that were kept,
`mb_s` (experts a second), `dropped` (frames), `lag_p99_ms`, `lag_max_ms` (of this process's event
loop: what is not read meanwhile waits in the workers' memory), `rss_mib` (how much this process
grew), `after_s` (from the end of the sample to what a profile is made of); `gap_p99_ms` and
`gap_max_ms` of the streams, `before` and `beside` the sample.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.benchmarks.shared.common import Result, arguments, percentile
from tests.ports import free_port
from toolkit.profile.live import Listened, listen

MEASURES = (
    "toolkit/profile",
    "toolkit/contract/frames.py",
    "patches/streams/expert_stream.py",
)
STREAMS = 32
LOOK_S = 0.005
READER = """
import asyncio, json, sys, time
import aiohttp

async def read(session, url, gaps):
    async with session.get(url + "/stream") as response:
        before = None
        async for _ in response.content.iter_any():
            now = time.monotonic()
            if before is not None:
                gaps.append(now - before)
            before = now

async def main(urls, count, seconds):
    gaps = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        every = [url for url in urls for _ in range(count)]
        tasks = [asyncio.create_task(read(session, url, gaps)) for url in every]
        await asyncio.sleep(1.0)
        gaps.clear()
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
    print(json.dumps([gap * 1e3 for gap in gaps]))

asyncio.run(main(sys.argv[3:], int(sys.argv[1]), float(sys.argv[2])))
"""


@contextmanager
def workers(rate: float) -> Iterator[list[str]]:
    """The URLs of both, which are up."""
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.shared.wide_worker", role, str(port),
             str(rate), other]
        )
        for role, port, other in zip(("prefill", "decode"), ports, urls[::-1], strict=True)
    ]  # fmt: skip
    try:
        asyncio.run(_up(urls))
        yield urls
    finally:
        for process in started:
            process.terminate()
            process.wait()


async def _up(urls: Sequence[str]) -> None:
    async with aiohttp.ClientSession() as session:
        for url in urls:
            for _ in range(600):
                try:
                    async with session.get(url + "/workers") as response:
                        if response.status == 200:
                            break
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)
            else:
                raise SystemExit(f"the worker at {url} did not start")


def read(urls: Sequence[str], seconds: float) -> subprocess.Popen[str]:
    """Reads streams of both for so long."""
    return subprocess.Popen(
        [sys.executable, "-c", READER, str(STREAMS), str(seconds), *urls],
        stdout=subprocess.PIPE,
        text=True,
    )


def gaps(reader: subprocess.Popen[str]) -> dict[str, float]:
    said, _ = reader.communicate()
    found = json.loads(said)
    return {"gap_p99_ms": percentile(found, 99), "gap_max_ms": max(found)}


async def sampled(url: str, share: float, seconds: float, folder: Path) -> dict[str, Any]:
    """What `toolkit profile --live` did."""
    lags: list[float] = []
    last: list[Listened] = []

    async def watch() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(LOOK_S)
            lags.append((time.monotonic() - before - LOOK_S) * 1e3)

    watcher = asyncio.create_task(watch())
    began = time.monotonic()
    measured = await listen(url, share, seconds, folder, last.append)
    took = time.monotonic() - began
    watcher.cancel()
    shard = measured.shard
    tokens = int(shard.prompt_tokens.sum() + shard.output_tokens.sum())
    return {
        "requests": len(measured.prompts),
        "mb_s": tokens * 58 * 8 * 2 / took / 1e6,
        "dropped": last[-1].dropped,
        "lag_p99_ms": percentile(lags, 99),
        "lag_max_ms": max(lags),
        "after_s": took - seconds,
    }


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--rate", {"type": float, "default": 40.0, "help": "requests a second"}),
        ("--seconds", {"type": float, "default": 60.0}),
    )
    if options.quick:
        options.seconds = 8.0
    result, kept = Result(), 0
    with workers(options.rate) as urls:
        before = gaps(read(urls, options.seconds / 2))
        for share in (0.1, 1.0):
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with tempfile.TemporaryDirectory() as folder:
                reader = read(urls, options.seconds - 1.0)
                found = asyncio.run(sampled(urls[0], share, options.seconds, Path(folder)))
                beside = gaps(reader)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
            found |= {"rss_mib": grown / 1024, "before": before, "beside": beside}
            result.keys[str(share)] = found
            kept += found["requests"]
    result.emit(kept)


if __name__ == "__main__":
    main()
