"""Shortest job first with aging against the order of arrival, where prefill is the bottleneck.

Two prefill workers of real SGLang on the CPU, one with `waiting: sjf`, one with SGLang's own fcfs,
one decode worker, and a router before each prefill worker (late dispatch). Every round the same
arrivals go to both in turn (ABBA), open loop, at `--load` of the capacity that was measured
before: prompts of 20 to 2,000 tokens (lognormal, median 150, mean 260), two of five of which begin
like others (12 beginnings of 50 to 600 tokens), one output token. The worker that is not being
measured sleeps. A pass takes at most 512 tokens; age 5 s, unless `--age` says otherwise.

keys: ttft_mean_ratio, ttft_p99_ratio (sjf divided by fcfs, geometric mean over the rounds, with the
95 % interval). More: `ttft_p50_ratio`, `short_mean_ratio`, `long_mean_ratio` (the shortest and the
longest tenth of prompts), medians over rounds in ms for each order, `worst_ratio` (the longest
TTFT), `rate` (requests/s), `load`, `age_s`, and what a round costs a scheduler with 1,000 waiting:
`round_p50_ms`, `round_p99_ms`, `round_idle_p50_ms` (see `sjf_round`; CPU time).
"""

import asyncio
import random
import statistics
import sys
import time
from typing import Any

from tests.benchmarks.shared.common import Result, arguments, percentile
from tests.benchmarks.sjf_round import round_cost
from tests.benchmarks.sjf_workers import arms
from toolkit.bench.arrivals import poisson
from toolkit.bench.client import Sample, payload, send
from toolkit.bench.errors import BenchError
from toolkit.bench.runner import new_session
from toolkit.bench.stats import orders, paired_ratio
from toolkit.bench.workload import Item

ORDERS = ("sjf", "fcfs")
SHORTEST, LONGEST = 20, 2000
CHUNK = 512
CAPACITY_REQUESTS = 120


class Prompts:
    """Token ids with heavy-tailed lengths; the beginnings stay, nothing else comes twice."""

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)
        self._heads = [self._ids(self._source.randint(50, 600)) for _ in range(12)]

    def items(self, count: int) -> list[Item]:
        """`count` prompts, one output token each."""
        return [Item(tuple(self._prompt()), 1) for _ in range(count)]

    def _prompt(self) -> list[int]:
        length = round(self._source.lognormvariate(5.0, 1.05))
        length = max(SHORTEST, min(LONGEST, length))
        head: list[int] = []
        if self._source.random() < 0.4:
            # A few tokens at least are always its own.
            head = self._source.choice(self._heads)[: length - 8]
        return head + self._ids(length - len(head))

    def _ids(self, count: int) -> list[int]:
        return self._source.choices(range(300, 4000), k=count)


async def play(session: Any, url: str, items: list[Item], at: list[float]) -> list[Sample]:
    """Send each item at its time (seconds from now). BenchError: one was lost."""
    bodies = [payload("generate", "", item, True) for item in items]
    start, tasks = time.perf_counter(), []
    for body, when in zip(bodies, at, strict=True):
        wait = start + when - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(send(session, url, "generate", body)))
    samples = await asyncio.gather(*tasks)
    lost = [sample.error for sample in samples if not sample.success]
    if lost:
        raise BenchError(f"{len(lost)} of {len(items)} requests were lost: {lost[0]}")
    return list(samples)


async def capacity(session: Any, urls: dict[str, str], prompts: Prompts, count: int) -> float:
    """Requests a second when all are there at once; the mean over both orders."""
    items, rates = prompts.items(count), []
    for order in ORDERS:
        begin = time.perf_counter()
        await play(session, urls[order], items, [0.0] * count)
        rates.append(count / (time.perf_counter() - begin))
    say(f"capacity: {rates[0]:.2f} and {rates[1]:.2f} requests/s")
    return statistics.fmean(rates)


def summary(items: list[Item], samples: list[Sample]) -> dict[str, float]:
    """One round of one order, ms."""
    ttft = [sample.ttft * 1000 for sample in samples]
    ranked = sorted(range(len(items)), key=lambda index: len(items[index].prompt))
    tenth = max(1, len(items) // 10)
    return {
        "mean": statistics.fmean(ttft),
        "p50": percentile(ttft, 50),
        "p99": percentile(ttft, 99),
        "worst": max(ttft),
        "short_mean": statistics.fmean(ttft[index] for index in ranked[:tenth]),
        "long_mean": statistics.fmean(ttft[index] for index in ranked[-tenth:]),
    }


async def measure(urls: dict[str, str], options: Any, result: Result) -> int:
    """All rounds; fills the keys and returns how many requests were timed."""
    prompts = Prompts(options.seed)
    found: dict[str, list[dict[str, float]]] = {order: [] for order in ORDERS}
    timed = 0
    async with new_session(300.0) as session:
        for order in ORDERS:  # connections, first-call costs, and the shared beginnings
            await play(session, urls[order], prompts.items(20), [0.0] * 20)
        count = CAPACITY_REQUESTS // 3 if options.quick else CAPACITY_REQUESTS
        rate = options.load * await capacity(session, urls, prompts, count)
        for number, turns in enumerate(orders(len(ORDERS), options.rounds, options.seed)):
            at = poisson(rate, max(20, round(rate * options.seconds)), options.seed + number)
            items = prompts.items(len(at))
            for turn in turns:
                samples = await play(session, urls[ORDERS[turn]], items, at)
                found[ORDERS[turn]].append(summary(items, samples))
                timed += len(items)
            say(f"round {number}: " + ", ".join(shown(order, found[order][-1]) for order in ORDERS))
    for name in ("mean", "p99", "p50", "short_mean", "long_mean", "worst"):
        one, two = ([row[name] for row in found[order]] for order in ORDERS)
        key = f"ttft_{name}_ratio" if name in ("mean", "p99", "p50") else f"{name}_ratio"
        result.keys |= paired_ratio(one, two).keys(key)
        for order, row in zip(ORDERS, (one, two), strict=True):
            result.keys[f"{order}_{name}_ms"] = statistics.median(row)
    result.keys |= {"rate": rate, "load": options.load, "age_s": options.age}
    return timed


def shown(order: str, row: dict[str, float]) -> str:
    return f"{order} mean {row['mean']:.0f} p99 {row['p99']:.0f} ms"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--rounds", {"type": int, "help": "pairs of rounds (6; quick: 2)"}),
        ("--seconds", {"type": float, "help": "arrivals of a round (45; quick: 10)"}),
        ("--load", {"type": float, "default": 0.93, "help": "of the capacity"}),
        ("--age", {"type": float, "default": 5.0, "help": "age_s of the order"}),
        ("--seed", {"type": int, "default": 1}),
    )
    options.rounds = options.rounds or (2 if options.quick else 6)
    options.seconds = options.seconds or (10.0 if options.quick else 45.0)
    result = Result()
    with arms(options.age, CHUNK) as urls:
        timed = asyncio.run(measure(urls, options, result))
    result.keys |= round_cost(100 if options.quick else 400)
    result.emit(timed)


if __name__ == "__main__":
    main()
