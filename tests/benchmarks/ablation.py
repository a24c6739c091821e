"""What each patch that only makes something faster brings, with all others on.

One deployment of real CPU workers (launch/cpu-demo.yaml, more of them, with `background`): a
prefill and a decode worker have all patches, and for each patch that can be left out
(`patches.leaving_out`) one more worker of its side has all but that one. In front stand routers,
one for each pair: all patches on both sides, or all but one on one side. They take turns, in an
order that moves on from round to round, so that what the machine does besides meets all alike. A
round is `REQUESTS` requests of one pair, six in flight: unique prompts of 40, 160 and 400 tokens,
the same lengths in the same order for every pair, a quarter of one output token, the others of 24.

Of each round: `ttft` (median, of requests of 24 tokens), `tpot` (median time from the first token
to the last, per token), `one` (median latency of requests for one token) and `throughput` (output
tokens a second). Each figure is the ratio *with the patch / without it*, the geometric mean over
rounds with its 95 % interval. Below 1 the patch brings something for `ttft`, `tpot` and `one`,
above 1 for `throughput`; `_told` says which. Where 1 is in the interval, nothing was told apart.

`cpu_idle` is not among them: a worker without it keeps a core busy, which all others need.
"""

import asyncio
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from tests.benchmarks.shared.common import RECIPE, Result, arguments
from tests.benchmarks.shared.own_router import own_router
from toolkit.bench.client import Sample, payload, send
from toolkit.bench.errors import BenchError
from toolkit.bench.runner import new_session
from toolkit.bench.stats import Ratio, paired_ratio
from toolkit.bench.workload import Item
from toolkit.contract.variables import WITHOUT_VARIABLE
from toolkit.launch.plan import Plan
from toolkit.launch.resolve import resolve
from toolkit.launch.running import running
from toolkit.settings.load import load_deployment

MEASURES = ("patches", "tests/benchmarks/shared")

SIDES = {
    "first_token": "prefill",
    "prefill_only": "prefill",
    "early_send": "prefill",
    "early_place": "decode",
    "cpu_attention": "decode",
    "cpu_background": "decode",
}
"""Where each of them acts, or acts most."""
LENGTHS = (40, 160, 400)
TOKENS = 24
FLIGHT = 6
REQUESTS = 24
FIGURES = ("ttft", "tpot", "one", "throughput")
ALL = ""
Round = dict[str, float]


def planned(folder: Path, names: list[str]) -> Plan:
    """Workers 0 have everything; each of the others is without one patch of its side."""
    document = yaml.safe_load(RECIPE.read_text())
    for side in ("prefill", "decode"):
        document[side]["replicas"] = 1 + sum(SIDES[name] == side for name in names)
        document[side]["background"] = True
    path = folder / "ablation.yaml"
    path.write_text(yaml.safe_dump(document))
    plan = resolve(load_deployment(path))
    without = {worker: name for name, worker in lacking(names).items()}
    workers = (
        replace(worker, env={**worker.env, WITHOUT_VARIABLE: without.get(worker.name, "")})
        for worker in plan.workers
    )
    return replace(plan, workers=tuple(workers))


def lacking(names: list[str]) -> dict[str, str]:
    """The worker that is without each patch."""
    count, found = {"prefill": 0, "decode": 0}, {}
    for name in names:
        count[SIDES[name]] += 1
        found[name] = f"{SIDES[name]}-{count[SIDES[name]]}"
    return found


@contextmanager
def routers(plan: Plan, folder: Path, names: list[str]) -> Iterator[dict[str, str]]:
    """A router for each pair of workers; their URLs by what is left out."""
    assert plan.router is not None and plan.router.config is not None
    urls: dict[str, str] = {}
    with ExitStack() as stack:
        for name, worker in {ALL: "", **lacking(names)}.items():
            pair = {"prefill": "prefill-0", "decode": "decode-0"}
            if name:
                pair[SIDES[name]] = worker
            chosen = [w for w in plan.router.config["workers"] if w["name"] in pair.values()]
            own = folder / (name or "all")
            own.mkdir()
            front = replace(plan.router, config={**plan.router.config, "workers": chosen})
            urls[name], _ = stack.enter_context(own_router(front, own, {}))
        yield urls


def items(number: int, name: str) -> list[Item]:
    """The requests of a round: lengths and order of its number, tokens that nobody else has."""
    source = random.Random(f"{number} {name}")
    found = [(LENGTHS[n % 3], 1 if n // 3 % 3 == 2 else TOKENS) for n in range(REQUESTS)]
    random.Random(number).shuffle(found)
    return [Item(tuple(source.choices(range(300, 4000), k=size)), most) for size, most in found]


async def play(url: str, number: int, name: str) -> Round:
    """One round, FLIGHT at a time."""
    gate = asyncio.Semaphore(FLIGHT)
    async with new_session(120.0) as session:

        async def one(item: Item) -> Sample:
            async with gate:
                return await send(session, url, "generate", payload("generate", "", item, True))

        begin = time.perf_counter()
        samples = await asyncio.gather(*map(one, items(number, name)))
        seconds = time.perf_counter() - begin
    lost = [sample.error for sample in samples if not sample.success]
    if lost:
        raise BenchError(f"without {name or 'none'}: {len(lost)} request(s) were lost: {lost[0]}")
    answers = [sample for sample in samples if sample.output_len > 1]
    steps = [(sample.latency - sample.ttft) / (sample.output_len - 1) for sample in answers]
    return {
        "ttft": statistics.median(sample.ttft for sample in answers),
        "tpot": statistics.median(steps),
        "one": statistics.median(s.latency for s in samples if s.output_len == 1),
        "throughput": sum(sample.output_len for sample in samples) / seconds,
    }


async def rounds_of(urls: dict[str, str], rounds: int) -> dict[str, list[Round]]:
    """All pairs in turn; the first round warms connections and is not counted."""
    names, found = list(urls), {name: list[Round]() for name in urls}
    for number in range(-1, rounds):
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            played = await play(urls[name], number, name)
            if number >= 0:
                found[name].append(played)
    return found


def ratios(with_it: list[Round], without: list[Round]) -> dict[str, Any]:
    """Of one patch: each figure with its interval, and what that says."""
    keys: dict[str, Any] = {}
    for figure in FIGURES:
        ratio = paired_ratio(*([each[figure] for each in side] for side in (with_it, without)))
        keys |= ratio.keys(figure)
        keys[f"{figure}_told"] = told(ratio)
    return keys


def told(ratio: Ratio) -> str:
    """What an interval says: `less`, `more`, or that it tells nothing apart."""
    if math.isnan(ratio.low) or ratio.low <= 1 <= ratio.high:
        return "not told apart"
    return "less" if ratio.high < 1 else "more"


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--patches", {"nargs": "*", "choices": list(SIDES), "help": "only these"}),
        ("--rounds", {"type": int, "default": 16}),
    )
    names = options.patches or list(SIDES)
    rounds = 3 if options.quick else options.rounds
    result = Result()
    with tempfile.TemporaryDirectory(prefix="ablation-") as folder:
        here = Path(folder)
        plan = planned(here, names)
        with running(plan, here / "run"), routers(plan, here, names) as urls:
            found = asyncio.run(rounds_of(urls, rounds))
    for name in names:
        result.keys[name] = ratios(found[ALL], found[name])
        print(name, result.keys[name], flush=True)
    result.keys["rounds"] = rounds
    result.emit((len(names) + 1) * rounds * REQUESTS)


if __name__ == "__main__":
    main()
