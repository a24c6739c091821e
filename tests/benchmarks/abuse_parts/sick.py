"""`abuse`, one sick worker of three decodes: how many posts still go to it, and who suffers."""

import asyncio
import sys
from typing import Any

from tests.benchmarks.abuse_parts.watch import Tally, known, settled
from tests.standin.cluster import Cluster
from tests.standin.storm import Traffic

MODES = ("500", "429", "silent", "half")
LANES = 24
CONFIG = {
    "request_timeout_s": 12,
    "rerun_wait_s": 5,
    **known(first_token_timeout_s=1.0, idle_timeout_s=1.0),
}


async def sick(first_s: float, then_s: float, seed: int) -> dict[str, Any]:
    """Each sickness in turn, on a fresh router: a while in which anything may go to the sick
    worker, then one in which its share of all posts to decodes is taken."""
    tally = Tally()
    shares: dict[str, float] = {}
    failed: dict[str, int] = {}
    sent: dict[str, int] = {}
    for mode in MODES:
        shares[mode], failed[mode], sent[mode] = await _one(mode, first_s, then_s, seed, tally)
    return {
        "sick_share": max(shares.values()),
        "sick_failed": sum(failed.values()),
        "sick_shares": shares,
        "sick_failures": failed,
        "sick_requests": sent,
        "hangs": tally.hangs,
        "crashes": tally.crashes,
        "stuck": tally.stuck,
    }


async def _one(
    mode: str, first_s: float, then_s: float, seed: int, tally: Tally
) -> tuple[float, int, int]:
    """The sick worker's share of posts after `first_s`, clients that failed, requests sent."""
    args = ["--token-ms", "3", "--steps"]
    async with Cluster(decodes=3, worker_args=args, config=CONFIG) as cluster:
        names = [worker.name for worker in cluster.workers if worker.role == "decode"]
        traffic = Traffic(cluster, 24, seed)
        running = asyncio.create_task(traffic.run(None, LANES, until_s=1.0 + first_s + then_s))
        await asyncio.sleep(1.0)
        await cluster.make(names[1], mode)
        await asyncio.sleep(first_s)
        before = [(await cluster.stats(name))["posts"] for name in names]
        await asyncio.sleep(then_s)
        after = [(await cluster.stats(name))["posts"] for name in names]
        checked = await running
        await cluster.make(names[1], "well")
        await settled(cluster, tally)
    posts = [b - a for a, b in zip(before, after, strict=True)]
    for why in checked.why[:5]:
        print(f"{mode}: {why}", file=sys.stderr)
    share = posts[1] / sum(posts) if sum(posts) else float("nan")
    return share, checked.lost + checked.wrong, checked.sent
