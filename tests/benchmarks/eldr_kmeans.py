"""Vanilla against balanced k-means where the calibration is skewed, on real CPU workers, 1P + 4D.

Three quarters of the requests are in two of the four languages, in the calibration and in the
traffic alike (`en:3,zh:3,ru:1,fr:1`, four domains evenly). Vanilla k-means then gives a worker to
every language, and two workers most of the traffic; balanced clusters of at most a quarter of the
requests share the large languages out. ELDR's paper: vanilla costs up to + 17.4 % p99 TPOT.

Each seed draws such a calibration from the fitted requests of the shipped profile (88 of 149),
clusters it in both ways (K = 4, the same k-means seed, weights and layers of the shipped profile),
and writes two profiles. Two router processes before the same workers serve one each,
`refit_on_drift` off; that they serve these very centroids is checked over `GET /workers`, before
and after. Every round plays the same requests, of prompts that no fit has seen, once an arm in
balanced random order, prefix caches emptied before each; the other router idles meanwhile.

Arms: `balanced`, `vanilla`: policy eldr, tau 0.1, with our guard against crowded workers;
`balanced@0`, `vanilla@0`: the nearest worker, as the paper's pure rule; `shortest_queue` (in the
balanced router). TPOT is replayed in turn and TTFT the client's live one, see
`tests.benchmarks.eldr`.

keys: vanilla_p99_ratio, vanilla_p50_ratio (TPOT), vanilla_distinct_ratio (distinct experts a step
and layer), vanilla_ttft_ratio (p50): vanilla / balanced, each with its 95 % interval over `seeds`
(rounds of a seed share its centroids, so they are averaged first); pure_p99_ratio, ...: the same
four of vanilla@0 / balanced@0.
More: `arms`, medians of every arm live; `against_shortest_queue`, TPOT and distinct experts of
every arm; `balanced_sizes`, `vanilla_sizes`: requests in each cluster, by seed; `calibration`:
requests by language; `batch_max`: the mean batch of the busiest worker, median over rounds.
"""

import asyncio
import statistics
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.conditions import of_conditions
from tests.benchmarks.shared.eldr_batches import Moments, Record
from tests.benchmarks.shared.eldr_profiles import Part, shipped, skewed
from tests.benchmarks.shared.eldr_replay import Played, replayed, tpot
from tests.benchmarks.shared.eldr_rounds import (
    DOMAINS,
    SKEW,
    medians,
    ratio,
    say,
    warm_up,
    workload,
)
from tests.benchmarks.shared.eldr_workers import Workers, check_centroids, workers
from toolkit.bench.compare import Arm, Comparison, compare
from toolkit.bench.runner import BenchLoad, new_session
from toolkit.bench.stats import Ratio, orders, paired_ratio
from toolkit.bench.target import discover, get_json
from toolkit.signatures import Clusters, balanced_kmeans, vanilla_kmeans

KINDS = {"balanced": balanced_kmeans, "vanilla": vanilla_kmeans}
ROUTERS = {  # by arm: whose centroids
    "balanced": "balanced",
    "vanilla": "vanilla",
    "balanced@0": "balanced",
    "vanilla@0": "vanilla",
    "shortest_queue": "balanced",
}
NAMES = tuple(ROUTERS)
POLICIES = ("eldr", "eldr", "eldr@0", "eldr@0", "shortest_queue")
ARMS = [Arm(name, {"decode": policy}) for name, policy in zip(NAMES, POLICIES, strict=True)]
LIVE = {"distinct": "distinct_experts", "ttft": "median_ttft_ms"}
REPLAYED = {"p50": 50, "p99": 99}


def calibration(seed: int, k: int) -> tuple[Part, dict[str, Clusters]]:
    """A skewed part of the shipped profile, and its clusters of both kinds."""
    part = skewed(shipped(), DOMAINS, SKEW, seed)
    return part, {kind: cluster(part.vectors, k, seed) for kind, cluster in KINDS.items()}


def one_seed(
    up: Workers, folder: Path, part: Part, clusters: dict[str, Clusters], seed: int, options: Any
) -> tuple[Comparison, list[Moments]]:
    """Every round of a seed, between two routers of its own."""
    profiles = {
        kind: part.clustered(found, seed).write(folder / f"{kind}-{seed}")
        for kind, found in clusters.items()
    }
    with (
        up.router(profiles["balanced"], refit_on_drift=False) as balanced,
        up.router(profiles["vanilla"], refit_on_drift=False) as vanilla,
    ):
        urls = {"balanced": balanced, "vanilla": vanilla}
        return asyncio.run(measure(urls, profiles, seed, options))


async def measure(
    urls: dict[str, str], profiles: dict[str, Path], seed: int, options: Any
) -> tuple[Comparison, list[Moments]]:
    """One seed's rounds, and the batches of each.

    BenchError also when a router's centroids changed meanwhile.
    """
    load = BenchLoad(concurrency=options.concurrency)
    rounds = workload(seed, options.rounds, options.requests, options.tokens, DOMAINS, SKEW)
    whole = Comparison(ARMS, [[] for _ in ARMS])
    record = Record(rounds, len(ARMS), options.moments)
    async with new_session(300.0) as session:
        targets = {kind: await discover(session, url) for kind, url in urls.items()}
        for target in targets.values():
            await warm_up(session, target, rounds[0], load)
        for number, order in enumerate(orders(len(ARMS), len(rounds), seed)):
            for index in order:
                target = targets[ROUTERS[NAMES[index]]]
                one = await compare(
                    session,
                    target,
                    rounds[number : number + 1],
                    load,
                    [ARMS[index]],
                    seed,
                    report=say,
                    keep=lambda _, __, outcome: record.keep(index, number, outcome),  # noqa: B023
                )
                whole.rounds[index] += one.rounds[0]
        for kind, url in urls.items():
            check_centroids(await get_json(session, url + "/workers"), profiles[kind])
    return whole, record.rounds()


def largest_batch(rounds: list[dict[str, Any]]) -> float:
    """The mean batch of the busiest worker, median over rounds."""
    return float(
        statistics.median(
            max(worker.get("mean_batch", 0.0) for worker in metrics["decode_workers"].values())
            for metrics in rounds
        )
    )


def over_seeds(ours: list[float], other: list[float], seeds: int) -> Ratio:
    """Of values of rounds, those of one seed after the other: one pair a seed."""
    rounds = len(ours) // seeds
    return of_conditions(*([side[r::rounds] for r in range(rounds)] for side in (ours, other)))


def ratios(whole: Comparison, found: list[list[list[Played]]], seeds: int) -> dict[str, float]:
    """Vanilla / balanced, by the guarded policy and by the pure rule."""
    keys: dict[str, float] = {}
    for prefix, suffix in (("vanilla", ""), ("pure", "@0")):
        pair = NAMES.index(f"vanilla{suffix}"), NAMES.index(f"balanced{suffix}")
        for name, key in LIVE.items():
            live = [[metrics[key] for metrics in whole.rounds[arm]] for arm in pair]
            keys |= over_seeds(live[0], live[1], seeds).keys(f"{prefix}_{name}_ratio")
        for name, percent in REPLAYED.items():
            ours, other = (tpot(found[arm], percent) for arm in pair)
            keys |= over_seeds(ours, other, seeds).keys(f"{prefix}_{name}_ratio")
    return keys


def against(whole: Comparison, found: list[list[list[Played]]]) -> dict[str, dict[str, float]]:
    """Every arm's TPOT and distinct experts divided by those of shortest queue."""
    other = NAMES.index("shortest_queue")
    return {
        name: {
            short: paired_ratio(tpot(found[arm], percent), tpot(found[other], percent)).value
            for short, percent in REPLAYED.items()
        }
        | {"distinct": ratio(whole, arm, LIVE["distinct"], other).value}
        for arm, name in enumerate(NAMES)
    }


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--seeds", {"type": int, "default": 3, "help": "calibrations, each with its requests"}),
        ("--rounds", {"type": int, "default": 2, "help": "of each seed"}),
        ("--requests", {"type": int, "default": 192, "help": "of each round"}),
        ("--tokens", {"type": int, "default": 96, "help": "mean output tokens; half to 1.5 x"}),
        ("--concurrency", {"type": int, "default": 48}),
        ("--moments", {"type": int, "default": 12, "help": "of each round"}),
    )
    if options.quick:
        options.seeds, options.rounds, options.requests, options.tokens = 1, 1, 96, 64
        options.moments = 4
    if options.moments < 1:
        raise SystemExit("--moments must be 1 or more: TPOT is that of the batches taken then")
    result = Result()
    whole = Comparison(ARMS, [[] for _ in ARMS])
    recorded: list[Moments] = []
    sizes: dict[str, list[list[int]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="eldr-kmeans-") as folder, workers() as up:
        for seed in range(options.seeds):
            part, clusters = calibration(seed, up.decoders)
            for kind, one_kind in clusters.items():
                sizes[kind].append(one_kind.sizes.tolist())
            one, moments = one_seed(up, Path(folder), part, clusters, seed, options)
            recorded += moments
            for mine, more in zip(whole.rounds, one.rounds, strict=True):
                mine.extend(more)
    found = asyncio.run(replayed(recorded))
    result.keys |= ratios(whole, found, options.seeds)
    result.keys |= {
        "seeds": options.seeds,
        **{f"{kind}_sizes": found for kind, found in sizes.items()},
        "calibration": part.profile.data.languages,
        "batch_max": {n: largest_batch(r) for n, r in zip(NAMES, whole.rounds, strict=True)},
        "arms": medians(whole, NAMES),
        "against_shortest_queue": against(whole, found),
    }
    result.emit(samples=options.seeds * options.rounds * options.requests * len(NAMES))


if __name__ == "__main__":
    main()
