"""ELDR against load balancers: distinct experts, TPOT and TTFT on real CPU workers, 1P + 4D.

launch/cpu-eldr.yaml, the project's prompts that the profile was *not* fitted to, four domains x
four languages, `--concurrency` in flight in a closed loop, so that each decode worker has a batch
of about a quarter; decode is measured while the loop is full. Every round plays the same requests
once an arm, in balanced random order, prefix caches emptied before each; `--seeds` seeds draw other
requests and orders.

Two cores cannot run five busy workers at once, so the wall clock of a step contains the wait for a
core, which no fleet has. TPOT here is what the decode worker's scheduler thread *computed* between
a request's first and last token there, per token: the CPU time of the one thread that runs the
model (`patches.step_log`), which is the time that it would take on a core of its own. TTFT is the
client's and does contain the waiting, for every arm alike.

keys: distinct_ratio_rr (distinct experts a step and layer against round robin), tpot_p50_ratio,
tpot_p99_ratio, ttft_ratio (p50): ours against `best_baseline`, the load balancer of the lowest TPOT
p50 (round robin, shortest queue, power of two), each with its 95 % interval over paired rounds.
More: `arms`, the medians of every arm; `against_best`, each arm against that balancer; `batch`, the
mean decode batch of ours; `router`, its counters.

--set main (default) | tau (eldr at 0, 0.05, 0.1, 0.2, 1) | skew (75 % of the traffic in two
languages) | flood (one language only, the centroids as they are) | domain (one domain only).
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.common import Result, arguments
from tests.benchmarks.eldr_rounds import (
    DOMAINS,
    RECIPE,
    SKEW,
    against,
    medians,
    ratio,
    say,
    warm_up,
    workload,
)
from toolkit.bench.compare import Arm, Comparison, compare
from toolkit.bench.hosted import hosted
from toolkit.bench.runner import Load, new_session
from toolkit.bench.target import discover, get_json

BALANCERS = ("round_robin", "shortest_queue", "power_of_two")
SWEEP = tuple(f"eldr@{tau:g}" for tau in (0.1, 0, 0.05, 0.2, 1))
# name: (arms, domains, languages)
SETS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "main": (("eldr", *BALANCERS, "label_oracle"), DOMAINS, "all"),
    "tau": ((*SWEEP, "round_robin", "shortest_queue"), DOMAINS, "all"),
    "skew": (("eldr", "eldr@0", "shortest_queue"), DOMAINS, SKEW),
    "flood": (("eldr", "eldr@0", "shortest_queue"), DOMAINS, "en"),
    "domain": (("eldr", "eldr@0", "shortest_queue"), "code", "all"),
}


async def measure(url: str, options: Any) -> tuple[Comparison, dict[str, Any], int]:
    """All seeds' rounds in one comparison, and the router's own account of ELDR."""
    arms, domains, languages = SETS[options.set]
    whole = Comparison([Arm.parse(arm) for arm in arms], [[] for _ in arms])
    load = Load(concurrency=options.concurrency, label="language")
    samples = 0
    async with new_session(300.0) as session:
        target = await discover(session, url)
        for seed in range(options.seeds):
            rounds = workload(
                seed, options.rounds, options.requests, options.tokens, domains, languages
            )
            if not seed:
                await warm_up(session, target, rounds[0], load)
            one = await compare(session, target, rounds, load, whole.arms, seed, report=say)
            for mine, more in zip(whole.rounds, one.rounds, strict=True):
                mine.extend(more)
            samples += sum(map(len, rounds)) * len(arms)
        state = await get_json(session, url + "/workers")
    return whole, state.get("eldr") or {}, samples


def best(whole: Comparison, among: Sequence[str]) -> int:
    """The arm of the lowest TPOT p50."""
    found = [index for index, arm in enumerate(whole.arms) if arm.text in among]

    def tpot(index: int) -> float:
        return statistics.median(m["median_worker_tpot_ms"] for m in whole.rounds[index])

    return min(found, key=tpot)


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--set", {"default": "main", "choices": SETS}),
        ("--seeds", {"type": int, "default": 3}),
        ("--rounds", {"type": int, "default": 2, "help": "of each seed"}),
        ("--requests", {"type": int, "default": 192, "help": "of each round"}),
        ("--tokens", {"type": int, "default": 96, "help": "mean output tokens; half to 1.5 x"}),
        ("--concurrency", {"type": int, "default": 48}),
        ("--url", {"help": "a router that is up"}),
    )
    if options.quick:
        options.seeds, options.rounds, options.requests, options.tokens = 1, 1, 96, 64
    result = Result()
    if options.url:
        found = asyncio.run(measure(options.url, options))
    else:
        with (
            tempfile.TemporaryDirectory(prefix="eldr-") as folder,
            hosted(RECIPE, Path(folder)) as up,
        ):
            found = asyncio.run(measure(up.router_url, options))
    whole, router, samples = found
    names = [arm.text for arm in whole.arms]
    baseline = best(whole, BALANCERS)
    if "round_robin" in names:
        result.keys |= ratio(whole, 0, "distinct_experts", names.index("round_robin")).keys(
            "distinct_ratio_rr"
        )
    for name, key in (
        ("tpot_p50_ratio", "median_worker_tpot_ms"),
        ("tpot_p99_ratio", "p99_worker_tpot_ms"),
        ("ttft_ratio", "median_ttft_ms"),
    ):
        result.keys |= ratio(whole, 0, key, baseline).keys(name)
    result.keys |= {
        "best_baseline": names[baseline],
        "set": options.set,
        "batch": whole.median(0, "mean_batch"),
        "arms": medians(whole, names),
        "against_best": against(whole, names, baseline),
        "router": {key: router.get(key) for key in ("located", "band_mean", "moved", "fallbacks")},
    }
    result.emit(samples)


if __name__ == "__main__":
    main()
