"""ELDR against load balancers: distinct experts, TPOT and TTFT on real CPU workers, 1P + 4D.

Two deployments side by side, of which one at a time is asked: launch/cpu-eldr.yaml, and for the
load balancers the same without profile and expert capturer, which they do not need, so that ELDR
alone pays for them. The project's prompts that the profile was *not* fitted to (four domains x
four languages), or with `--prompts FILE` those of a file that training has not seen either (every
domain in a language that has ten of them). `--model` and `--profile` name another model than the
embedded one (with the same tokenizer) and its profile. `--concurrency` requests are in flight in a
closed loop, so that each decode worker has a batch of about a quarter; decode is measured while the
loop is full. Every round plays the same requests once an arm, in balanced random order, prefix
caches emptied before each; `--seeds` seeds draw other requests and orders.

Two cores cannot run five busy workers at once: the wall clock of a step contains the wait for a
core, and even its CPU time the caches that its neighbours (and other machines on the same host)
took from it. So TPOT is measured in turn, on what the policies did: at `--moments` moments of every
round, evenly spread over the time in which the loop was full, the batch of each decode worker is
taken down (which requests, and how far they were), and afterwards all these batches are replayed on
one worker that has the machine for itself, 20 steps each, arm after arm in random order, a second
apart. A request's TPOT is the step of its batch: the CPU time of the one thread that runs the model
(`patches.steps.step_log`). TTFT is the client's from the live rounds, and does contain the waiting
for cores, for every arm alike.

keys: distinct_ratio_rr (distinct experts a step and layer against round robin, which for this runs
beside the capturer too, live), tpot_p50_ratio, tpot_p99_ratio (replayed), ttft_ratio (p50): ours
against `best_baseline`, the load balancer of the lowest TPOT p50 (BALANCERS), each with its 95 %
interval over `rounds` paired rounds (moments of one round are not independent of each other);
prompts, how many the requests are drawn from.
More: `arms`, the medians of every arm live; `replayed`, TPOT, batch and distinct experts of every
arm there, and its step times against that balancer's in batches of equal size; `against_best`, each
arm live against that balancer; `live_tpot_p50_ratio`, `live_tpot_p99_ratio`, TPOT inside the five
busy workers; `throughput_ratio`, output tokens a second of the live closed loop; `batch`, the mean
decode batch of ours; `router`, its counters.

--set main (default) | tau (eldr at 0, 0.05, 0.1, 0.2, 1) | skew (75 % of the traffic in two
languages) | flood (one language only, the centroids as they are) | domain (one domain only).
"""

import asyncio
import math
import statistics
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import Result, arguments, percentile
from tests.benchmarks.shared.eldr_batches import Moments, Record
from tests.benchmarks.shared.eldr_replay import Played, by_token, replayed, tpot
from tests.benchmarks.shared.eldr_rounds import (
    DOMAINS,
    SKEW,
    against,
    medians,
    ratio,
    recipe,
    say,
    unseen,
    warm_up,
    without_experts,
    workload,
)
from toolkit.bench.compare import Arm, Comparison, compare
from toolkit.bench.hosted import hosted
from toolkit.bench.runner import BenchLoad, new_session
from toolkit.bench.stats import paired_ratio
from toolkit.bench.target import discover, get_json

MEASURES = (
    "toolkit/policies/eldr.py",
    "toolkit/policies/support",
    "toolkit/signatures",
    "toolkit/decide",
    "toolkit/router/eldr",
    "patches/experts",
)

BALANCERS = (
    *("round_robin", "shortest_queue", "power_of_two", "kv_shortest_queue", "least_tokens"),
    *("pooled@shortest_queue", "pooled@kv_shortest_queue", "pooled@least_tokens"),
)
COUNTED = "late:round_robin"
"""Round robin beside the capturer, which counts its experts."""
SWEEP = tuple(f"eldr@{tau:g}" for tau in (0.1, 0, 0.05, 0.2, 1))
# name: (arms, domains, languages)
SETS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "main": (
        ("eldr", "eldr@paper", "eldr@artifact", COUNTED, "label_oracle", *BALANCERS),
        DOMAINS,
        "all",
    ),
    "tau": ((*SWEEP, COUNTED, "round_robin", "shortest_queue"), DOMAINS, "all"),
    "skew": (("eldr", "eldr@0", "shortest_queue"), DOMAINS, SKEW),
    "flood": (("eldr", "eldr@0", "shortest_queue"), DOMAINS, "en"),
    "domain": (("eldr", "eldr@0", "shortest_queue"), "code", "all"),
}


async def measure(
    url: str, plain: str, options: Any
) -> tuple[Comparison, list[Moments], dict[str, Any], int]:
    """All seeds' rounds in one comparison, the load balancers' at the router `plain`; the batches
    of each round; and the account of ELDR of the router at `url`."""
    arms, domains, languages = SETS[options.set]
    whole = Comparison([Arm.parse(arm) for arm in arms], [[] for _ in arms])
    load = BenchLoad(concurrency=options.concurrency, label="language")
    samples = 0
    recorded: list[Moments] = []
    async with new_session(300.0) as session:
        target = await discover(session, url)
        without = await discover(session, plain)
        elsewhere = {arm: without for arm in arms if arm in BALANCERS}
        for seed in range(options.seeds):
            rounds = workload(
                *(seed, options.rounds, options.requests, options.tokens),
                *("all" if options.prompts and options.set == "main" else domains, languages),
                *(options.prompts, options.profile),
            )
            if not seed:
                await warm_up(session, target, rounds[0], load)
                await warm_up(session, without, rounds[0], load)
            record = Record(rounds, len(arms), options.moments)
            one = await compare(
                *(session, target, rounds, load, whole.arms, seed),
                report=say,
                keep=record.keep,
                elsewhere=elsewhere,
            )
            for mine, more in zip(whole.rounds, one.rounds, strict=True):
                mine.extend(more)
            recorded += record.rounds()
            samples += sum(map(len, rounds)) * len(arms)
        state = await get_json(session, url + "/workers")
    return whole, recorded, state.get("eldr") or {}, samples


def best(names: Sequence[str], tpots: Sequence[float]) -> int:
    """The load balancer of the lowest TPOT p50."""
    return min((i for i, name in enumerate(names) if name in BALANCERS), key=tpots.__getitem__)


def same_batch(ours: Sequence[Played], other: Sequence[Played]) -> float | None:
    """Mean ratio of step times at equal batch sizes, those that both had often counting more."""
    logs, weights = [], []
    for size in {one.size for one in ours} & {one.size for one in other}:
        mine, theirs = ([p.step_ms for p in side if p.size == size] for side in (ours, other))
        logs.append(math.log(statistics.fmean(mine) / statistics.fmean(theirs)))
        weights.append(min(len(mine), len(theirs)))
    return math.exp(statistics.fmean(logs, weights)) if logs else None


def replay_keys(found: list[list[list[Played]]], names: list[str]) -> dict[str, Any]:
    """The keys of the replay: by arm and round."""
    half = [statistics.geometric_mean(tpot(rounds, 50)) for rounds in found]
    baseline = best(names, half)
    keys: dict[str, Any] = {"best_baseline": names[baseline]}
    for name, percent in (("tpot_p50_ratio", 50), ("tpot_p99_ratio", 99)):
        ours, other = tpot(found[0], percent), tpot(found[baseline], percent)
        keys |= paired_ratio(ours, other).keys(name)
    table = {}
    rival = list(chain(*found[baseline]))
    for name, rounds in zip(names, found, strict=True):
        every = list(chain(*rounds))
        table[name] = {
            "tpot_p50_ms": percentile(by_token(every), 50),
            "tpot_p99_ms": percentile(by_token(every), 99),
            "against_best_p50": paired_ratio(tpot(rounds, 50), tpot(found[baseline], 50)).value,
            "against_best_p99": paired_ratio(tpot(rounds, 99), tpot(found[baseline], 99)).value,
            "against_best_same_batch": same_batch(every, rival),
            "batch": statistics.fmean(one.size for one in every),
            "distinct_experts": statistics.fmean(one.distinct for one in every),
        }
    return keys | {"replayed": table, "replays": sum(len(b) for arm in found for b in arm)}


def live_keys(whole: Comparison, names: list[str], baseline: int) -> dict[str, Any]:
    """What was measured inside the five busy workers and by the client."""
    keys: dict[str, Any] = {}
    if COUNTED in names:
        keys |= ratio(whole, 0, "distinct_experts", names.index(COUNTED)).keys("distinct_ratio_rr")
    for name, key in (
        ("live_tpot_p50_ratio", "median_worker_tpot_ms"),
        ("live_tpot_p99_ratio", "p99_worker_tpot_ms"),
        ("ttft_ratio", "median_ttft_ms"),
        ("throughput_ratio", "output_throughput"),
    ):
        keys |= ratio(whole, 0, key, baseline).keys(name)
    return keys


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--set", {"default": "main", "choices": SETS}),
        ("--seeds", {"type": int, "default": 6}),
        ("--rounds", {"type": int, "default": 1, "help": "of each seed"}),
        ("--requests", {"type": int, "default": 192, "help": "of each round"}),
        ("--tokens", {"type": int, "default": 96, "help": "mean output tokens; half to 1.5 x"}),
        ("--concurrency", {"type": int, "default": 48}),
        ("--moments", {"type": int, "default": 12, "help": "of each round; 0: no replay"}),
        ("--prompts", {"type": Path, "help": "JSON lines of text, domain, language, source"}),
        ("--model", {"type": Path, "help": "its folder; default: the embedded model"}),
        ("--profile", {"type": Path, "help": "the model's; default: the embedded model's"}),
        ("--url", {"help": "a router that is up, with profile and capturer"}),
        ("--plain-url", {"help": "beside --url: one without them; default: the same one"}),
    )
    if options.quick:
        options.seeds, options.requests, options.tokens, options.moments = 1, 96, 64, 4
    result = Result()
    if options.url:
        found = asyncio.run(measure(options.url, options.plain_url or options.url, options))
    else:
        with tempfile.TemporaryDirectory(prefix="eldr-") as name:
            folder = Path(name)
            ours = recipe(folder, options.model, options.profile)
            others = without_experts(folder, options.model)
            with hosted(ours, folder / "ours") as up, hosted(others, folder / "others") as plain:
                found = asyncio.run(measure(up.router_url, plain.router_url, options))
    whole, recorded, router, samples = found
    names = [arm.text for arm in whole.arms]
    if options.moments:
        result.keys |= replay_keys(asyncio.run(replayed(recorded, options.model)), names)
        baseline = names.index(result.keys["best_baseline"])
    else:
        medians_live = [whole.median(i, "median_worker_tpot_ms") for i in range(len(names))]
        baseline = best(names, [value or 0.0 for value in medians_live])
        result.keys["best_baseline"] = names[baseline]
    result.keys |= live_keys(whole, names, baseline)
    result.keys |= {
        "set": options.set,
        "model": options.model.name if options.model else "embedded",
        "prompts": len(unseen(options.prompts, options.profile)),
        "rounds": len(whole.rounds[0]),
        "batch": whole.median(0, "mean_batch"),
        "arms": medians(whole, names),
        "against_best": against(whole, names, baseline),
        "router": {key: router.get(key) for key in ("located", "band_mean", "moved", "fallbacks")},
    }
    result.emit(samples)


if __name__ == "__main__":
    main()
