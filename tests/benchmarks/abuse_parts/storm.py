"""`abuse`, a storm of faults beside many requests; and the order of those that wait in it."""

import asyncio
import contextlib
import statistics
import sys
from time import perf_counter
from typing import Any

from tests.benchmarks.abuse_parts.watch import Tally, known, settled
from tests.benchmarks.shared.common import percentile
from tests.standin.cluster import Cluster
from tests.standin.storm import Checked, Storm, Traffic

LANES = 400
LIMITS = {
    "max_inflight": 400, "max_queue": 400, "parked_per_prefill": 64, "request_timeout_s": 60,
    "prefill_wait_s": 10, "silent_s": 0.8, "hung_s": 1.5, "rerun_wait_s": 30,
    "no_worker_wait_s": 30, **known(first_token_timeout_s=2.0, idle_timeout_s=2.0),
}  # fmt: skip


async def storm(requests: int, flaps: int, seed: int) -> dict[str, Any]:
    """Both halves; `flaps` is how often a worker's health changes in the second."""
    tally = Tally()
    caught, faults, took = await _storm(requests, seed, tally)
    waits = await _waits(flaps, seed, tally)
    firsts = sorted(waits.first_s)
    middle = statistics.median(firsts) if firsts else float("nan")
    p99 = percentile(firsts, 99) if firsts else float("nan")
    for why in [*caught.why, *waits.why]:
        print(why, file=sys.stderr)
    return {
        "storm_requests": caught.sent,
        "storm_lost": caught.lost + waits.lost,
        "storm_wrong": caught.wrong + waits.wrong,
        "storm_faults": faults,
        "storm_seconds": took,
        "storm_wait_p50_s": middle,
        "storm_wait_p99_s": p99,
        "storm_wait_ratio": p99 / middle,
        "storm_wait_samples": len(firsts),
        "hangs": tally.hangs,
        "crashes": tally.crashes,
        "stuck": tally.stuck,
    }


async def _storm(requests: int, seed: int, tally: Tally) -> tuple[Checked, dict[str, int], float]:
    """`LANES` at once over two prefills and four decodes; faults never overlap."""
    args = ["--token-ms", "15", "--slots", "256", "--steps"]
    async with Cluster(prefills=2, decodes=4, worker_args=args, config=LIMITS) as cluster:
        victims = [worker.name for worker in cluster.workers]
        weather = Storm(cluster, victims, every_s=1.5, lasts_s=1.2, seed=seed)
        blowing = asyncio.create_task(weather.run())
        began = perf_counter()
        try:
            checked = await Traffic(cluster, 48, seed, limit_s=90.0).run(requests, LANES)
        finally:
            took = perf_counter() - began
            blowing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await blowing
            await weather.calm()
        await settled(cluster, tally)
    return checked, weather.faults, took


async def _waits(flaps: int, seed: int, tally: Tally) -> Checked:
    """Waits at a capacity that does not change while the health of workers does.

    One prefill is all that is busy: it takes eight at a time, and 400 clients stand in a queue for
    its credits. A decode that nobody needs is reset again and again, which changes its health and
    costs nobody any capacity. Times are from the POST to the first byte, nearly all of it queue;
    requests of the first filling of the queue, which wait less, are left out.
    """
    args = ["--prefill-ms", "20"]
    config = {**LIMITS, "parked_per_prefill": 8, **known(first_token_timeout_s=30.0)}
    async with Cluster(decodes=3, worker_args=args, config=config) as cluster:
        traffic = Traffic(cluster, 2, seed, limit_s=90.0)
        running = asyncio.create_task(traffic.run(None, LANES, until_s=4.0 + flaps * 0.4))
        await asyncio.sleep(2.0)
        traffic.checked.first_s.clear()
        for _ in range(flaps):
            await cluster.make("decode-2", "reset")
            await asyncio.sleep(0.4)
        checked = await running
        await settled(cluster, tally)
    return checked
