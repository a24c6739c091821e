"""Best-effort prompts stopped between layers, against latency-sensitive first between chunks.

Workers that prefill and decode both, side by side, and nobody is asked but one at a time. Arms of
`tests.benchmarks.shared.preempt_arms`, each with chunks of several sizes: `preempt`, a best-effort
prompt is stopped between two layers; `classes`, latency-sensitive requests go first, but not before
the chunk that runs has ended. Best-effort prompts of 8,000 to 24,000 tokens,
latency-sensitive ones of 32 to 256, six requests in flight. Every round plays the same requests
under each arm, in balanced random order.

figures: by arm `ls_ttft_ms`, `ls_ttft_p99_ms` (of all its latency-sensitive requests), `be_rate`
(best-effort prompt tokens a second), `be_turnaround_ms`; `latency_sensitive`, their number an arm;
`best_preempt` and `best_classes`, the chunk of each kind with the least mean TTFT; of these two
`ttft_ratio`, `rate_ratio`, `turnaround_ratio`, paired over rounds with their 95 % intervals; the
same with `_equal`: of the `classes` arm whose rate is nearest to that of `best_preempt`. Fails
where a request was lost.
"""

import asyncio
import random
import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks.shared.common import percentile
from tests.benchmarks.shared.preempt_arms import BE, LS, NO_STOP, TOKENS, Arm
from tests.e2e import calls
from tests.gpu import servers
from tests.gpu.context import Context
from tests.gpu.steps.preempt import model_of
from toolkit.bench.client import Sample, payload, send
from toolkit.bench.runner import new_session
from toolkit.bench.stats import orders, paired_ratio
from toolkit.bench.workload import Item

IN_FLIGHT = 6
SHARE = 0.75
"""Of requests that are latency-sensitive."""
FIGURES = {"ttft": "ls_ttft_ms", "rate": "be_rate", "turnaround": "be_turnaround_ms"}


def arms(context: Context) -> tuple[str, ...]:
    if context.tiny:
        return ("classes@256", "classes@1024", "preempt@1024")
    return ("classes@1024", "classes@2048", "classes@8192", "preempt@4096", "preempt@24576")


def longest(context: Context) -> int:
    return context.size(24_000, 900)


def described(context: Context, name: str) -> dict[str, Any]:
    arm = Arm(name)
    args: dict[str, Any] = {"chunked-prefill-size": arm.number, "disable-radix-cache": True}
    role = {"policy": "strict", **({"slice": NO_STOP} if arm.kind == "classes" else {})}
    worker = context.role(4 * (longest(context) + 1024), 16, args=args, preempt=role)
    return context.described(
        f"classes-{name.replace('@', '-')}",
        "plain",
        model=model_of(context),
        worker=worker,
        router={"kind": "toolkit", "classes": {}},
    )


def requests(context: Context, number: int) -> list[Item]:
    """Of a round; no prompt begins like another one."""
    source = random.Random(f"classes-{number}")
    long = (longest(context) // 3, longest(context))
    found = []
    for place in range(context.size(60, 10)):
        kind = LS if source.random() < SHARE else BE
        length = source.randint(*((32, 256) if kind is LS else long))
        ids = calls.prompt(f"classes-{number}-{place}", length)
        found.append(Item(tuple(ids), TOKENS, kind=kind.value))
    return found


@dataclass
class Rounds:
    """What came of an arm's rounds."""

    ttft: list[float] = field(default_factory=list)
    rows: dict[str, list[float]] = field(default_factory=lambda: {k: [] for k in FIGURES.values()})

    def add(self, items: list[Item], samples: list[Sample], seconds: float) -> None:
        sides = {
            kind: [s for i, s in zip(items, samples, strict=True) if i.kind == kind]
            for kind in (LS, BE)
        }
        self.ttft += [sample.ttft * 1e3 for sample in sides[LS]]
        tokens = sum(len(item.prompt) for item in items if item.kind == BE)
        self.rows["ls_ttft_ms"].append(statistics.fmean(s.ttft * 1e3 for s in sides[LS]))
        self.rows["be_rate"].append(tokens / seconds)
        self.rows["be_turnaround_ms"].append(statistics.fmean(s.latency * 1e3 for s in sides[BE]))

    def figures(self) -> dict[str, float]:
        found = {name: statistics.fmean(values) for name, values in self.rows.items()}
        return found | {"ls_ttft_p99_ms": percentile(self.ttft, 99)}


async def played(session: Any, url: str, items: list[Item]) -> tuple[list[Sample], float]:
    """The answers, and the seconds of it all."""
    gate, loop = asyncio.Semaphore(IN_FLIGHT), asyncio.get_running_loop()

    async def one(item: Item) -> Sample:
        async with gate:
            body = payload("generate", "", item, True)
            return await send(session, url, "generate", body, request_class=item.request_class)

    begin = loop.time()
    samples = await asyncio.gather(*map(one, items))
    lost = [sample.error for sample in samples if not sample.success]
    assert not lost, f"{len(lost)} of {len(items)} requests were lost: {lost[0]}"
    return list(samples), loop.time() - begin


async def compared(context: Context, urls: dict[str, str]) -> dict[str, Any]:
    names, count = list(urls), context.size(6, 2)
    rounds = {name: Rounds() for name in names}
    async with new_session(300.0) as session:
        for name in names:  # kernels of these sizes
            await played(session, urls[name], requests(context, -1))
        for number, turns in enumerate(orders(len(names), count, 0)):
            items = requests(context, number)
            for turn in turns:
                samples, seconds = await played(session, urls[names[turn]], items)
                rounds[names[turn]].add(items, samples, seconds)
    return {name: each.figures() for name, each in rounds.items()} | held_against(rounds)


def held_against(rounds: dict[str, Rounds]) -> dict[str, Any]:
    """The best of both kinds, and the `classes` that costs best-effort requests as much."""
    means = {name: each.figures() for name, each in rounds.items()}

    def of_kind(kind: str) -> list[str]:
        return [name for name in means if Arm(name).kind == kind]

    best = {
        kind: min(of_kind(kind), key=lambda name: means[name]["ls_ttft_ms"])
        for kind in ("preempt", "classes")
    }
    ours = best["preempt"]
    equal = min(
        of_kind("classes"),
        key=lambda name: abs(means[name]["be_rate"] / means[ours]["be_rate"] - 1),
    )
    found: dict[str, Any] = {f"best_{kind}": name for kind, name in best.items()}
    found |= {"equal_classes": equal, "latency_sensitive": len(rounds[ours].ttft)}
    for suffix, other in (("", best["classes"]), ("_equal", equal)):
        for name, key in FIGURES.items():
            ratio = paired_ratio(rounds[ours].rows[key], rounds[other].rows[key])
            found |= ratio.keys(f"{name}_ratio{suffix}")
    return found


def measure(context: Context, figures: dict[str, Any]) -> None:
    with ExitStack() as stack:
        sides = {
            name: context.deployed(described(context, name), f"classes-{name}")
            for name in arms(context)
        }
        ups = servers.abreast(stack, sides)
        stack.enter_context(context.measuring("classes"))
        urls = {name: up.router_url for name, up in ups.items()}
        figures |= asyncio.run(compared(context, urls))
