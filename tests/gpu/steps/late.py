"""One prefill and two decode workers in one GPU's memory: late-bound against shortest queue.

The scaled-up model three times, a router in front. Arms, switched in the router that is up: `late`,
the decode worker is chosen after the prefill (KV-token shortest queue, with the pool of finished
prefills), and `queue`, before it (shortest queue). Every round plays the same requests under both,
in alternating order, in a closed loop.

figures: of each arm `ttft_ms`, `tpot_ms`, `tokens_s`, medians over rounds; `ratio`, late / queue of
each, paired, with its 95 % interval; `one`: `tests.benchmarks.late_binding` with one request in
flight (what choosing late adds to the first decode token's time, and the KV transfer);
`different`, requests of a round to which the arms say something else, `different_repeat` the same
of one arm played twice. Fails where a request was lost; on a CPU, where arms differ.
"""

import asyncio
import random
import statistics
import time
from typing import Any

from tests.benchmarks import late_binding
from tests.gpu.context import Context
from tests.gpu.model import scaled_up
from toolkit.bench.client import Sample, payload, send
from toolkit.bench.runner import new_session
from toolkit.bench.stats import paired_ratio
from toolkit.bench.target import set_policy
from toolkit.bench.workload import Item

ARMS = {
    "late": {"dispatch": "late", "decode": "kv_shortest_queue"},
    "queue": {"dispatch": "concurrent", "decode": "shortest_queue"},
}
ALONE = {"late": "kv_shortest_queue", "concurrent": "shortest_queue"}


def described(context: Context) -> dict[str, Any]:
    tokens = context.size(131_072, 16_384)
    most = context.size(64, 16)
    return context.described(
        "late",
        "pd",
        model=str(scaled_up(context)),
        # Both arms have the same prompts: the second one would find them cached.
        prefill=context.role(tokens, most, args={"disable-radix-cache": True}),
        decode=context.role(tokens, most, replicas=2),
    )


def requests(context: Context, number: int) -> list[Item]:
    """Of a round: prompts of very unlike lengths, so that prefills end in another order."""
    source = random.Random(f"late-{number}")
    longest = context.size(4096, 300)
    return [
        Item(
            tuple(source.choices(range(300, 4000), k=round(longest ** source.uniform(0.5, 1.0)))),
            source.randint(context.size(64, 8), context.size(192, 16)),
        )
        for _ in range(context.size(96, 8))
    ]


async def played(
    session: Any, url: str, arm: str, items: list[Item], in_flight: int
) -> tuple[list[Sample], float]:
    """The answers, and the seconds of it all."""
    await set_policy(session, url, ARMS[arm])
    gate, begin = asyncio.Semaphore(in_flight), time.perf_counter()

    async def one(item: Item) -> Sample:
        async with gate:
            return await send(session, url, "generate", payload("generate", "", item, True))

    samples = await asyncio.gather(*map(one, items))
    lost = [sample.error for sample in samples if not sample.success]
    assert not lost, f"{arm}: {len(lost)} of {len(items)} requests were lost: {lost[0]}"
    return list(samples), time.perf_counter() - begin


def figures_of(samples: list[Sample], seconds: float) -> dict[str, float]:
    tpot = [(s.latency - s.ttft) / (s.output_len - 1) for s in samples]
    return {
        "ttft_ms": statistics.fmean(s.ttft for s in samples) * 1e3,
        "tpot_ms": statistics.fmean(tpot) * 1e3,
        "tokens_s": sum(s.output_len for s in samples) / seconds,
    }


def different(one: list[Sample], other: list[Sample]) -> int:
    return sum(a.output_ids != b.output_ids for a, b in zip(one, other, strict=True))


async def compared(context: Context, url: str) -> dict[str, Any]:
    rows: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    changed, in_flight = 0, context.size(32, 4)
    async with new_session(300.0) as session:
        first = requests(context, -1)
        before, _ = await played(session, url, "queue", first, in_flight)
        again, _ = await played(session, url, "queue", first, in_flight)
        for number in range(context.size(6, 2)):
            items, said = requests(context, number), {}
            for arm in ARMS if number % 2 else list(ARMS)[::-1]:
                said[arm], seconds = await played(session, url, arm, items, in_flight)
                rows[arm].append(figures_of(said[arm], seconds))
            changed += different(said["late"], said["queue"])
    keys = rows["late"][0]
    by_arm = {arm: {key: [row[key] for row in rows[arm]] for key in keys} for arm in ARMS}
    ratios: dict[str, float] = {}
    for key in keys:
        ratios |= paired_ratio(by_arm["late"][key], by_arm["queue"][key]).keys(key)
    medians = {arm: {key: statistics.median(by_arm[arm][key]) for key in keys} for arm in ARMS}
    rounds = len(rows["late"])
    return {
        **medians,
        "ratio": ratios,
        "rounds": rounds,
        "requests": len(first),
        "different": changed / rounds,
        "different_repeat": different(before, again),
    }


def measure(context: Context, figures: dict[str, Any]) -> None:
    with context.deployed(described(context), "late") as up, context.measuring("late"):
        figures |= asyncio.run(compared(context, up.router_url))
        rounds, lengths = context.size(30, 3), (40, context.size(1600, 160))
        one, _ = asyncio.run(late_binding.measure(up.router_url, rounds, 1, ALONE, lengths))
        figures["one"] = one
    if context.on_cpu:  # where batches do not change what a request says
        assert figures["different"] == 0, "late dispatch changes outputs"
