"""How evenly decode ranks are loaded: BR-0, BR-H, level against load balancers, real workers.

launch/cpu-dp.yaml: one prefill worker and one decode server on the CPU. `--set attention`, the
default: `--tp 2 --dp 2 --enable-dp-attention`, two ranks that meet at a barrier in every step.
`--set plain`: `--dp-size 4`, four ranks that do not.

Lengths: three kinds of traffic with long tails and users of their own (`toolkit.bench.lengths`), or
with `--trace FILE` consecutive requests of a public trace. All prompts are scaled by one factor and
all answers by another, to means of `--prompt` and `--answer` tokens (cut at 2000 and 512), so that
a rank has `--slots` requests at a time, about half of its pool of 16,384 KV tokens is in use, and
one prefill worker keeps up. Closed loop: the slots of all ranks and 8 more for each in flight, so
that slots are full and some finished prefills wait; measured is the time while the loop is full.
Answers end by themselves, at lengths that the router is not told (`toolkit.bench.ending`), but for
the arm `brh@oracle:0`, whose requests say them as their limit. Every round plays the same requests
once an arm, in balanced random order, prefix caches emptied before each; each seed draws others.
Ours choose from all that wait (s_greedy 0: `br0@0`, `level@0`, `brh@learned:0`); in the table are
also `br0`, `brh` and `level` with their defaults, which pass nobody by for long, `composed` with
ELDR, `least_tokens`.

keys: br0_ratio, brh_ratio (predictor learned), level_ratio, oracle_ratio, composed_ratio (with
level and all other parts but eldr): mean over time of max - min KV tokens over ranks
(`toolkit.bench.balance`), divided by that of `best_baseline`, the one of random, round robin,
shortest queue and power of two with the least; each with its 95 % interval over paired rounds.
More: `arms`, the medians of every arm (SHOWN); `against_best`, every arm's ratio; `ranks`, `slots`
of each; `prompt_mean`, `answer_mean` of what was sent; `remarks`: a seed whose rounds failed is
played again once, and said here.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.common import Result, arguments
from tests.benchmarks.eldr_rounds import ratio, say, warm_up
from tests.dp_recipe import SETS, SLOTS, recipe
from toolkit.bench.build import load_tokenizer, token_pool
from toolkit.bench.compare import Arm, Comparison, compare
from toolkit.bench.ending import FLAG
from toolkit.bench.errors import BenchError
from toolkit.bench.hosted import hosted
from toolkit.bench.lengths import draw, of_trace, scaled
from toolkit.bench.runner import Load, new_session
from toolkit.bench.synthetic import TokenPool
from toolkit.bench.target import Target, discover
from toolkit.bench.traces import TraceRow, load
from toolkit.bench.workload import Item, Workload

BASELINES = ("random", "round_robin", "shortest_queue", "power_of_two")
PARTS = "composed@filter+level@0+user"
OURS = {
    "br0": "br0@0",
    "brh": "brh@learned:0",
    "level": "level@0",
    "oracle": "brh@oracle:0",
    "composed": PARTS,
}
ARMS = (*OURS.values(), "br0", "brh", "level", "composed", *BASELINES, "least_tokens")
WAITING = 8
"""Requests in flight for each rank beyond its slots."""
LONGEST = (2000, 512)
SHOWN = (
    "kv_spread", "kv_max", "kv_mean", "kv_min", "barrier_share", "barrier_share_cpu", "mean_batch",
    "median_step_wall_ms", "median_worker_tpot_wall_ms", "p99_worker_tpot_wall_ms",
    "median_ttft_ms", "p99_ttft_ms", "output_throughput", "window_throughput",
)  # fmt: skip


def workload(
    rows: list[TraceRow] | None, pool: TokenPool, seed: int, count: int, means: tuple[float, float]
) -> Workload:
    """`count` requests with prompts of their own."""
    lengths = draw(count, seed) if rows is None else of_trace(rows, count, seed)
    items = [
        Item(pool.block(f"imbalance-{seed}-{n}", one.prompt), one.answer, user=one.user)
        for n, one in enumerate(scaled(lengths, *means, LONGEST))
    ]
    return Workload(f"lengths-{seed}", tuple(items))


async def measure(url: str, options: Any) -> tuple[Comparison, dict[str, float], int]:
    """All seeds' rounds in one comparison; means of what was sent; samples."""
    arms = [Arm.parse(text) for text in options.arms.split(",")]
    whole = Comparison(arms, [[] for _ in arms])
    in_flight = SETS[options.set]["dp"] * (options.slots + WAITING)
    played = Load(concurrency=in_flight, hidden=True)
    told = Load(concurrency=in_flight)
    loads = {arm.text: told for arm in arms if "oracle" in arm.text}
    rows = load(Path(options.trace)) if options.trace else None
    sent: list[Item] = []
    async with new_session(600.0) as session:
        target: Target = await discover(session, url)
        pool = token_pool(load_tokenizer(target.model_path))
        for seed in range(options.seeds):
            count = options.rounds * options.requests
            drawn = workload(rows, pool, seed, count, (options.prompt, options.answer))
            rounds = drawn.rounds(options.rounds)
            sent += drawn.items
            if not seed:
                await warm_up(session, target, rounds[0], played)
            play = partial(
                compare, session, target, rounds, played, arms, seed, report=say, loads=loads
            )
            try:
                one = await play()
            except BenchError as error:
                # A worker that was starved by another process of the machine; once.
                say(f"seed {seed} is played again: {error}")
                whole.remarks.append(f"seed {seed} was played again: {error}")
                one = await play()
            whole.remarks += [r for r in one.remarks if r not in whole.remarks]
            for mine, more in zip(whole.rounds, one.rounds, strict=True):
                mine.extend(more)
    for arm, done in zip(arms, whole.rounds, strict=True):
        if not all("kv_spread" in metrics for metrics in done):
            raise BenchError(f"{arm.text}: the ranks' steps were not heard: {whole.remarks}")
    means = {
        "prompt_mean": statistics.fmean(len(item.prompt) for item in sent),
        "answer_mean": statistics.fmean(item.output_tokens for item in sent),
    }
    return whole, means, len(sent) * len(arms)


def table(whole: Comparison) -> dict[str, dict[str, float | None]]:
    """SHOWN of every arm, medians over its rounds."""
    return {
        arm.text: {key: whole.median(index, key) for key in SHOWN}
        for index, arm in enumerate(whole.arms)
    }


def keys(whole: Comparison) -> dict[str, Any]:
    """The ratios of `kv_spread` to the best baseline that was played."""
    names = [arm.text for arm in whole.arms]

    def spread(index: int) -> float:
        return statistics.median(metrics["kv_spread"] for metrics in whole.rounds[index])

    baselines = [index for index, name in enumerate(names) if name in BASELINES]
    if not baselines:
        raise BenchError(f"--arms needs one of {', '.join(BASELINES)} to compare with")
    best = min(baselines, key=spread)
    found: dict[str, Any] = {"best_baseline": names[best]}
    for short, name in OURS.items():
        if name in names:
            found |= ratio(whole, names.index(name), "kv_spread", best).keys(f"{short}_ratio")
    against: Mapping[str, float] = {
        name: ratio(whole, index, "kv_spread", best).value for index, name in enumerate(names)
    }
    return found | {"against_best": dict(against), "arms": table(whole)}


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--set", {"default": "attention", "choices": SETS}),
        ("--slots", {"type": int, "default": SLOTS, "help": "of each rank"}),
        ("--arms", {"default": ",".join(ARMS), "help": "policies, separated by commas"}),
        ("--seeds", {"type": int, "default": 3}),
        ("--rounds", {"type": int, "default": 2, "help": "of each seed"}),
        ("--requests", {"type": int, "default": 240, "help": "of each round"}),
        ("--prompt", {"type": float, "default": 160.0, "help": "mean tokens"}),
        ("--answer", {"type": float, "default": 96.0, "help": "mean tokens"}),
        ("--trace", {"help": "a trace file in place of the synthetic mix"}),
        ("--url", {"help": "a router that is up, its workers with --" + FLAG}),
    )
    if options.quick:
        options.seeds, options.rounds, options.requests = 1, 1, 96
        options.arms = "br0@0,brh@learned:0,level@0,round_robin,shortest_queue"
    result = Result()
    if options.url:
        whole, means, samples = asyncio.run(measure(options.url, options))
    else:
        with tempfile.TemporaryDirectory(prefix="imbalance-") as folder:
            path = recipe(options.set, Path(folder), options.slots)
            with hosted(path, Path(folder)) as up:
                whole, means, samples = asyncio.run(measure(up.router_url, options))
    result.keys |= keys(whole) | means
    result.keys |= {"set": options.set, "ranks": SETS[options.set]["dp"], "trace": options.trace}
    result.keys |= {"slots": options.slots, "remarks": whole.remarks}
    result.emit(samples)


if __name__ == "__main__":
    main()
