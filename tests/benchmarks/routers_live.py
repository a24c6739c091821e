"""What two routers over the same real CPU workers cost beside one.

The workers of launch/cpu-eldr.yaml, 1P + 4D. Every round plays the same requests at the same times
(Poisson arrivals) once through one router and once through two, in balanced random order; requests
come to the two in turn. Routers are started for each play, so that a router which is alone has all
of `parked_per_prefill`; prefix caches are emptied before it. The project's prompts that the profile
was not fitted to. Five busy workers share the cores of one machine with routers and client: what is
compared is paired, and says nothing of how long a step takes by itself.

keys: by decode policy (POLICIES), `ratios`: FIGURES with two routers divided by those with one,
with 95 % intervals over rounds: TPOT p50 (`median_tpot_ms`), TTFT p50 and p99, `kv_spread` (mean
max - min KV tokens of decode workers), `distinct_experts` of a step; `one`, `two`: their medians.
"""

import asyncio
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.eldr_rounds import DOMAINS, say, warm_up, workload
from tests.benchmarks.shared.eldr_workers import Workers, workers
from tests.benchmarks.shared.own_router import own_router
from toolkit.bench.arrivals import poisson
from toolkit.bench.compare import judged
from toolkit.bench.runner import BenchLoad, new_session, play
from toolkit.bench.stats import orders, paired_ratio
from toolkit.bench.target import discover, flush_caches
from toolkit.bench.workload import Workload

MEASURES = ("toolkit/policies", "toolkit/decide", "toolkit/router/worker.py", "patches/streams")

POLICIES = ("eldr", "level", "shortest_queue")
COUNTS = (1, 2)
FIGURES = ("median_tpot_ms", "median_ttft_ms", "p99_ttft_ms", "kv_spread", "distinct_experts")
LOAD = BenchLoad(open_loop=True, concurrency=None)
Figures = dict[str, Any]


async def played(urls: list[str], own: list[str], requests: Workload, where: str) -> Figures:
    """One play's figures, through routers at `urls`; `own`: their workers. BenchError: it is no
    result."""
    async with new_session(300.0) as session:
        target = await discover(session, urls[0], urls[1:])
        await warm_up(session, target, requests, BenchLoad(concurrency=8))
        await flush_caches(session, own)
        return judged(await play(session, target, requests, LOAD), requests, where, None)


def through(count: int, policy: str, up: Workers, requests: Workload, number: int) -> Figures:
    """The round of that number through so many routers."""
    with ExitStack() as stack, tempfile.TemporaryDirectory(dir=up.folder) as name:
        urls = []
        for each in range(count):
            folder = Path(name) / str(each)
            folder.mkdir()
            own = {"number": each, "decode_policy": policy}
            urls.append(stack.enter_context(own_router(up.plan, folder, own))[0])
        where = f"round {number + 1}, {policy}, {count} router(s)"
        own_urls = [worker["url"] for worker in up.config["workers"]]
        found = asyncio.run(played(urls, own_urls, requests, where))
    say(f"{where}: " + ", ".join(f"{key} {found[key]:.4g}" for key in FIGURES))
    return found


def timed(requests: Workload, rate: float, seed: int) -> Workload:
    """With Poisson arrivals."""
    times = poisson(rate, len(requests), seed)
    items = (replace(i, arrival_s=at) for i, at in zip(requests.items, times, strict=True))
    return replace(requests, items=tuple(items))


def measured(policy: str, up: Workers, rounds: list[Workload]) -> Figures:
    """One policy's keys."""
    found: dict[int, list[Figures]] = {count: [] for count in COUNTS}
    for number, order in enumerate(orders(len(COUNTS), len(rounds), seed=0)):
        for index in order:
            count = COUNTS[index]
            found[count].append(through(count, policy, up, rounds[number], number))
    one, two = (found[count] for count in COUNTS)
    ratios: Figures = {}
    for key in FIGURES:
        ratios |= paired_ratio([r[key] for r in two], [r[key] for r in one]).keys(key)
    medians = {
        name: {key: statistics.median(row[key] for row in rows) for key in FIGURES}
        for name, rows in (("one", one), ("two", two))
    }
    return {"ratios": ratios, **medians}


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--rounds", {"type": int, "default": 8, "help": "an even number, of each policy"}),
        ("--requests", {"type": int, "default": 96, "help": "of each round"}),
        ("--tokens", {"type": int, "default": 96, "help": "mean output tokens; half to 1.5 x"}),
        ("--rate", {"type": float, "default": 2.5, "help": "requests a second"}),
        ("--policies", {"nargs": "+", "default": POLICIES, "help": "of decode workers"}),
    )
    if options.quick:
        options.rounds, options.requests, options.tokens, options.policies = 2, 16, 24, ["eldr"]
    made = workload(0, options.rounds, options.requests, options.tokens, DOMAINS, "all")
    rounds = [timed(each, options.rate, number) for number, each in enumerate(made)]
    result = Result()
    with workers() as up:
        result.keys = {policy: measured(policy, up, rounds) for policy in options.policies}
    result.keys |= {"rounds": options.rounds, "rate": options.rate}
    result.emit(options.rounds * options.requests * len(COUNTS) * len(options.policies))


if __name__ == "__main__":
    main()
