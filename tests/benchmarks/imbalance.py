"""How evenly decode ranks are loaded: BR-0, BR-H, level against load balancers, real workers.

launch/cpu-dp.yaml: one prefill worker and one decode server on the CPU. `--set attention`, the
default: `--tp 2 --dp 2 --enable-dp-attention`, two ranks that meet at a barrier in every step.
`--set plain`: `--dp-size 4`, four ranks that do not.

Lengths: three kinds of traffic with long tails and users of their own (`shared.kinds`), or
with `--trace FILE` consecutive requests of a public trace. All prompts are scaled by one factor and
all answers by another, to means of `--prompt` and `--answer` tokens (cut at 2000 and 512), so that
a rank has `--slots` requests at a time, about half of its pool of 16,384 KV tokens is in use, and
one prefill worker keeps up.

Without `--load` a closed loop: the slots of all ranks and 8 more for each in flight, so that slots
are full and some finished prefills wait. With `--load 0.85` Poisson arrivals at that share of what
shortest queue carries in such a closed loop, which is played first; a round begins with as many at
once as would then be in flight. Decode ranks are looked at from
the first answer's end to the last request's start. Answers end by themselves, at lengths that the
router is not told (`toolkit.bench.ending`), but for arms called *oracle*, whose requests say them
as their limit. Every round plays the same requests once an arm, in balanced random order, prefix
caches emptied before each; each seed draws others.

A request whose length is hidden has a logit processor, and such a one waits for its decode worker's
first token (`toolkit.router.first_token`): TTFT holds what it waits in the pool and for a slot.
With `--told` lengths are limits that everybody is told; a stream then begins with its prefill
worker's token, and the second token, which is shown beside TTFT, has waited there.

Arms: ours as they are by default (`level`, `brh`, `br0`) and choosing from all that wait (`@0`,
which lets the largest wait long), the published rules, and load balancers without the pool of
finished prefills and with it (`tests.benchmarks.shared.balancers`).

keys: `best`, of each column the balancer with the least spread (mean over time of max - min KV
tokens over ranks, `toolkit.bench.balance`) on these rounds; `against`, for every arm of ours and
each column the ratios ours / best of FIGURES, with 95 % intervals over rounds; `arms`, every arm's
means. More: `ranks`, `slots` of each, `load`, `rate` (requests a second); `prompt_mean`,
`answer_mean` of what was sent; `remarks`: a seed whose rounds failed is played again once, and said
here.
"""

import asyncio
import math
import statistics
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.balancers import (
    COLUMNS,
    Rounds,
    all_against,
    best,
    is_balancer,
    mean,
    show,
)
from tests.benchmarks.shared.calibrated import timed
from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.eldr_rounds import say, warm_up
from tests.benchmarks.shared.lengths import WAITING, workload
from tests.dp_recipe import SETS, SLOTS, recipe
from toolkit.bench.build import load_tokenizer, token_pool
from toolkit.bench.compare import Arm, Comparison, compare
from toolkit.bench.ending import FLAG
from toolkit.bench.errors import BenchError
from toolkit.bench.hosted import hosted
from toolkit.bench.runner import BenchLoad, new_session
from toolkit.bench.target import Target, discover
from toolkit.bench.traces import load
from toolkit.bench.workload import Item, Workload

MEASURES = (
    "toolkit/policies/rounds",
    "toolkit/policies/level.py",
    "toolkit/policies/br0.py",
    "toolkit/policies/brh.py",
    "toolkit/policies/predictors",
    "toolkit/decide",
    "toolkit/router",
    "patches/steps",
)

OURS = ("level", "brh", "br0", "level@0", "brh@learned:0", "br0@paper", "brh@paper")
OTHERS = (
    "round_robin",
    "power_of_two",
    "shortest_queue",
    "kv_shortest_queue",
    "least_tokens",
    "pooled@shortest_queue",
    "pooled@kv_shortest_queue",
    "pooled@least_tokens",
)
ARMS = (*OURS, *OTHERS)
QUICK = "level,brh,shortest_queue,kv_shortest_queue,pooled@kv_shortest_queue"
LEAD = "kv_spread"
FIGURES = (
    "barrier_share", "p99_worker_tpot_wall_ms", "p99_ttft_ms", "p99_ttst_ms", "window_throughput",
)  # fmt: skip
SHOWN = {
    "max - min KV": (LEAD, 1.0),
    "barrier share": ("barrier_share", 1.0),
    "TPOT p99 ms": ("p99_worker_tpot_wall_ms", 1.0),
    "TTFT p99 s": ("p99_ttft_ms", 1e-3),
    "2nd token p99 s": ("p99_ttst_ms", 1e-3),
    "tokens/s": ("window_throughput", 1.0),
}
KEPT = (
    "kv_spread", "kv_max", "kv_mean", "kv_min", "barrier_share", "barrier_share_cpu", "mean_batch",
    "median_step_wall_ms", "median_worker_tpot_wall_ms", "p99_worker_tpot_wall_ms",
    "median_ttft_ms", "p99_ttft_ms", "median_ttst_ms", "p99_ttst_ms", "p99_longest_gap_ms",
    "output_throughput", "window_throughput",
)  # fmt: skip


async def saturated(session: Any, target: Target, drawn: Workload, in_flight: int) -> float:
    """Requests a second that shortest queue carries in a closed loop."""
    full = BenchLoad(concurrency=in_flight, hidden=True)
    played = await compare(
        session, target, drawn.rounds(1), full, [Arm.parse("shortest_queue")], 0, report=say
    )
    answer = statistics.fmean(item.output_tokens for item in drawn.items)
    figures = played.rounds[0][0]
    return float(figures.get("window_throughput") or figures["output_throughput"]) / answer


def filled(arriving: Workload, first: int) -> Workload:
    """The same, with the first so many at once: else a round is over before its load is there."""
    items = arriving.items
    begin = items[min(first, len(items) - 1)].arrival_s
    return Workload(
        arriving.name,
        tuple(replace(item, arrival_s=max(0.0, item.arrival_s - begin)) for item in items),
    )


async def measure(url: str, options: Any) -> tuple[Comparison, dict[str, float], int]:
    """All seeds' rounds in one comparison; means of what was sent and the rate; samples."""
    arms = [Arm.parse(text) for text in options.arms.split(",")]
    whole = Comparison(arms, [[] for _ in arms])
    in_flight = SETS[options.set]["dp"] * (options.slots + WAITING)
    rows = load(Path(options.trace)) if options.trace else None
    sent: list[Item] = []
    rate = math.nan
    async with new_session(600.0) as session:
        target: Target = await discover(session, url)
        pool = token_pool(load_tokenizer(target.model_path))
        means = (options.prompt, options.answer)
        first = workload(rows, pool, 1000, options.requests, means)
        hidden = not options.told
        await warm_up(session, target, first, BenchLoad(concurrency=in_flight, hidden=hidden))
        if options.load:
            rate = options.load * await saturated(session, target, first, in_flight)
            say(f"load {options.load:g}: {rate:.3g} requests/s")
        played = BenchLoad(concurrency=in_flight, hidden=hidden)
        if options.load:
            played = BenchLoad(open_loop=True, concurrency=None, hidden=hidden)
        told = replace(played, hidden=False)
        loads = {arm.text: told for arm in arms if "oracle" in arm.text}
        for seed in range(options.seeds):
            drawn = workload(rows, pool, seed, options.rounds * options.requests, means)
            rounds = drawn.rounds(options.rounds)
            if options.load:
                first = round(min(options.load, 1.0) * in_flight)
                rounds = [
                    filled(timed(each, rate, seed * 100 + n), first)
                    for n, each in enumerate(rounds)
                ]
            sent += drawn.items
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
    found = {
        "prompt_mean": statistics.fmean(len(item.prompt) for item in sent),
        "answer_mean": statistics.fmean(item.output_tokens for item in sent),
        "rate": rate,
    }
    return whole, found, len(sent) * len(arms)


def keys(rounds: Rounds) -> dict[str, Any]:
    """Every arm of ours beside the best balancer of each column."""
    if not any(is_balancer(arm) for arm in rounds):
        raise BenchError("--arms needs a load balancer to compare with, as shortest_queue")
    return {
        "best": {column: best(rounds, column, LEAD) for column in COLUMNS},
        "against": {
            arm: {column: one.keys() for column, one in found.items()}
            for arm, found in all_against(rounds, LEAD, FIGURES).items()
        },
        "arms": {arm: {key: mean(rounds, arm, key) for key in KEPT} for arm in rounds},
    }


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--told", {"action": "store_true", "help": "lengths are no secret"}),
        ("--set", {"default": "attention", "choices": SETS}),
        ("--slots", {"type": int, "default": SLOTS, "help": "of each rank"}),
        ("--arms", {"default": ",".join(ARMS), "help": "policies, separated by commas"}),
        ("--load", {"type": float, "help": "of what saturates [default: a closed loop]"}),
        ("--seeds", {"type": int, "default": 3}),
        ("--rounds", {"type": int, "default": 1, "help": "of each seed"}),
        ("--requests", {"type": int, "default": 240, "help": "of each round"}),
        ("--prompt", {"type": float, "default": 160.0, "help": "mean tokens"}),
        ("--answer", {"type": float, "default": 96.0, "help": "mean tokens"}),
        ("--trace", {"help": "a trace file in place of the synthetic mix"}),
        ("--url", {"help": "a router that is up, its workers with --" + FLAG}),
    )
    if options.quick:
        options.seeds, options.rounds, options.requests = 1, 1, 160
        options.arms = QUICK
    result = Result()
    if options.url:
        whole, means, samples = asyncio.run(measure(options.url, options))
    else:
        with tempfile.TemporaryDirectory(prefix="imbalance-") as folder:
            path = recipe(options.set, Path(folder), options.slots)
            with hosted(path, Path(folder)) as up:
                whole, means, samples = asyncio.run(measure(up.router_url, options))
    texts = [arm.text for arm in whole.arms]
    rounds: Rounds = dict(zip(texts, whole.rounds, strict=True))
    ranks = SETS[options.set]["dp"]
    at = "closed loop" if options.load is None else f"load {options.load:g}"
    show(f"{ranks} real ranks ({options.set}), {at}", rounds, SHOWN, LEAD)
    result.keys |= keys(rounds) | means
    result.keys |= {"set": options.set, "ranks": ranks, "trace": options.trace}
    result.keys |= {"load": options.load}
    result.keys |= {"slots": options.slots, "remarks": whole.remarks}
    result.emit(samples)


if __name__ == "__main__":
    main()
