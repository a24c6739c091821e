"""A decode step's time with even and with mixed lengths at the same total of KV tokens.

One worker, batches of B requests: all of length L, or one in `LONG_SHARE` long and the others
short, so that both hold B x L tokens when they begin. Rounds of both in turns, the order
alternating. Only steps of the whole batch count.

figures: of each mean length L: `even_ms`, `mixed_ms` (medians), `ratio` mixed / even, geometric
mean over rounds with its 95 % interval, `kv_tokens` of the steps of both. Published (CascadeInfer,
figure 2): attention 1.1 to 2.1 times.
"""

import asyncio
import statistics
from typing import Any

from tests.e2e import calls
from tests.gpu.context import Context
from tests.gpu.listening import Steps, steps_of, whole_batch
from tests.gpu.model import scaled_up
from toolkit.bench.stats import paired_ratio

LONG_SHARE = 8
"""Of so many requests one is long."""
SHORT_PART = 8
"""The others have an eighth of the mean length."""
KINDS = ("even", "mixed")


def means(context: Context) -> tuple[int, ...]:
    return (64,) if context.tiny else (512, 2048, 8192)


def batch(context: Context) -> int:
    return context.size(32, 8)


def of_kind(kind: str, mean: int, count: int) -> list[int]:
    """`count` lengths of this mean."""
    if kind == "even":
        return [mean] * count
    short = mean // SHORT_PART
    long = LONG_SHARE * mean - (LONG_SHARE - 1) * short
    return ([long] + [short] * (LONG_SHARE - 1)) * (count // LONG_SHARE)


def described(context: Context) -> dict[str, Any]:
    count, longest = batch(context), max(means(context))
    tokens = count * (longest + 1024)
    args = {"disable-radix-cache": True, "chunked-prefill-size": 8192}
    # Of a prompt of which a chunk is left SGLang counts the place that it has and one more
    # (`get_num_allocatable_reqs`), and admits nobody else until a request ends.
    worker = context.role(tokens, count + 8, args=args)
    return context.described("lengths", "plain", worker=worker, model=str(scaled_up(context)))


async def played(
    context: Context, url: str, steps: Steps, kind: str, mean: int, number: int
) -> tuple[float, float]:
    """Median seconds and mean KV tokens of the steps of the whole batch."""
    count = batch(context)
    lengths = of_kind(kind, mean, count)
    # Whoever is prefilled first decodes on alone until all are there: a client of one process
    # takes half a second to send 32 long prompts.
    tokens = context.size(512, 24)
    bodies = [
        calls.greedy(calls.prompt(f"{mean}-{number}-{kind}-{n}", length), tokens, stream=False)
        for n, length in enumerate(lengths)
    ]
    rows, _ = await whole_batch(url, steps, bodies)
    return (
        statistics.median(steps.column(rows, "seconds")),
        float(steps.column(rows, "kv_tokens").mean()),
    )


async def compared(context: Context, url: str, steps: Steps, mean: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    held: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(context.size(3, 2)):
        for kind in KINDS if number % 2 else KINDS[::-1]:
            seconds, tokens = await played(context, url, steps, kind, mean, number)
            times[kind].append(seconds)
            held[kind].append(tokens)
    ratio = paired_ratio(times["mixed"], times["even"])
    found: dict[str, Any] = {f"{k}_ms": statistics.median(times[k]) * 1e3 for k in KINDS}
    found |= ratio.keys("ratio")
    return found | {"kv_tokens": {kind: statistics.fmean(held[kind]) for kind in KINDS}}


def measure(context: Context, figures: dict[str, Any]) -> None:
    async def main() -> None:
        async with steps_of(up, "worker-0") as steps:
            await played(context, up.router_url, steps, "mixed", min(means(context)), -1)
            for mean in means(context):
                figures[str(mean)] = await compared(context, up.router_url, steps, mean)

    with context.deployed(described(context), "lengths") as up, context.measuring("lengths"):
        asyncio.run(main())
