"""ELDR when the traffic switches to other languages in mid-run, on real CPU workers, 1P + 4D.

The router's profile is fitted to the French and Russian requests of the shipped profile alone:
weights, layer mask, and K = 4 centroids. `refit_on_drift` is on. Each seed starts a router of its
own (with the profile's centroids again, which is checked) and plays the same requests twice, in
turn first by `--policy` and first by `--control`, prefix caches emptied before: a closed loop,
`--before` requests in French and Russian, then without a pause `--after` in English and Chinese,
over four domains. The router finds the drift, refits in a process of its own and swaps the
centroids, once it has seen enough (provisionally), and usually once more `wait_limit` (256)
requests later.

Stages: `before` the switch; `switched`, until the first refit was adopted; `refitted`, until a
second one was; `refitted_again`. They are cut by the numbers of the requests, at the same ones for
both policies: what decode workers did from the start of one request to the start of another. Only
time while the loop is full counts: from the first answer's end to the last request's start. After
each change (the switch, an adoption) time is left out until every request that was sent before it
has ended, in both runs: some 1.3 times `--concurrency` requests. A stage of fewer than 30 decode
steps is none.

About 90 prompts are in no fit, so prompts come several times and hit the prefix cache, for both
policies alike: what is measured is decode. TPOT is that in the worker, see `tests.benchmarks.eldr`;
it counts in the stage in which the request ended.

keys: distinct_STAGE, tpot_p50_STAGE, tpot_p99_STAGE: ours / control in each stage, with 95 %
intervals over the seeds that have the stage (null: none has it); distinct_gain, tpot_p50_gain,
tpot_p99_gain: that ratio in `refitted` divided by that in `switched`, which is what the refit
brought; and of the first refit, medians over seeds: refit_requests (sent from the switch until it
was adopted), refit_after_s (seconds from the switch), refit_s (that it took, with what is fitted
ahead for lost workers), cosine_old, cosine_new (mean to the nearest centroid on held-out requests,
as the router reports it).
More: `stages`: medians of both by stage; `settling`: requests left out after the switch and the
first adoption, by seed; `refits`: the router's own account, by seed; `adopted`: seeds that did.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.benchmarks.eldr_stages import STAGES, Refit, Run
from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.eldr_profiles import of_languages, shipped
from tests.benchmarks.shared.eldr_rounds import DOMAINS, Draw, say, warm_up
from tests.benchmarks.shared.eldr_workers import workers
from toolkit.bench.errors import BenchError
from toolkit.bench.runner import BenchLoad, RunOutcome, check, new_session, play
from toolkit.bench.stats import orders, paired_ratio
from toolkit.bench.target import Target, discover, flush_caches, get_json, set_policy
from toolkit.bench.workload import Workload

OLD, NEW = ("fr", "ru"), ("en", "zh")
FIGURES = {
    "distinct": "distinct_experts",
    "tpot_p50": "median_worker_tpot_ms",
    "tpot_p99": "p99_worker_tpot_ms",
}
SHOWN = (*FIGURES.values(), "mean_batch", "decode_steps")
REFIT = (
    "result", "seconds", "cosine_old", "cosine_new", "distinct_old", "distinct_new", "batch",
    "moved", "fitted", "held_out", "provisional", "why",
)  # fmt: skip


def traffic(seed: int, options: Any) -> Workload:
    """The old traffic, then the new one."""
    draw = Draw(seed, options.tokens)
    old = draw.items(options.before, DOMAINS, ",".join(OLD))
    new = draw.items(options.after, DOMAINS, ",".join(NEW))
    items = (*old, *(replace(item, phase=1) for item in new))
    return Workload(f"switch-{seed}", items)


async def measure(url: str, seed: int, order: list[str], options: Any) -> Run:
    """Both plays of one seed through a fresh router."""
    workload = traffic(seed, options)
    load = BenchLoad(concurrency=options.concurrency)
    outcomes = {}
    async with new_session(300.0) as session:
        target = await discover(session, url)
        # Not by eldr: what it sees here would count as traffic.
        await set_policy(session, url, {"decode": options.control})
        await warm_up(session, target, workload, load)
        offset = time.time() - time.perf_counter()
        for policy in order:
            outcomes[policy] = await one(session, target, workload, load, policy)
            report(seed, policy, outcomes[policy], options.before)
        state = await get_json(session, url + "/workers")
    refits = tuple(
        Refit(entry["time"] - offset, entry)
        for entry in state["eldr"]["refits"]
        if entry["cause"] == "drift"
    )
    for refit in refits:
        say(f"seed {seed}: {refit.numbers}")
    return Run(options.policy, outcomes, refits, options.before)


async def one(
    session: Any, target: Target, workload: Workload, load: BenchLoad, policy: str
) -> RunOutcome:
    """One play. BenchError: requests or workers were lost, or a worker was not heard."""
    await set_policy(session, target.url, {"decode": policy})
    state = await get_json(session, target.url + "/workers")
    await flush_caches(session, [worker["url"] for worker in state["workers"]])
    outcome = await play(session, target, workload, load)
    check(outcome, len(workload))
    if outcome.note:
        raise BenchError(f"{policy}: {outcome.note}")
    return outcome


def report(seed: int, policy: str, outcome: RunOutcome, switch: int) -> None:
    """A line on standard error."""
    cut = outcome.samples[switch].start_time
    assert outcome.decode is not None
    halves = [
        outcome.decode.between(*span).metrics().get("distinct_experts", float("nan"))
        for span in pairwise((0.0, cut, float("inf")))
    ]
    shown = " and ".join(f"{value:.1f}" for value in halves)
    say(
        f"seed {seed} {policy}: {outcome.duration_s:.0f} s, {shown} distinct experts before and "
        "after the switch"
    )


def compared(runs: list[Run], ours: str, control: str) -> dict[str, float | None]:
    """The keys of every stage, and of what the refit brought."""
    every = [run.metrics() for run in runs]
    keys: dict[str, float | None] = {}

    def take(name: str, values: list[float], other: list[float]) -> None:
        names = (name, f"{name}_low", f"{name}_high")
        found = paired_ratio(values, other).keys(name) if values else dict.fromkeys(names)
        keys.update(found)

    for short, figure in FIGURES.items():
        for stage in STAGES:
            there = [metrics[stage] for metrics in every if stage in metrics]
            take(
                f"{short}_{stage}",
                [both[ours][figure] for both in there],
                [both[control][figure] for both in there],
            )
        both_there = [m for m in every if "switched" in m and "refitted" in m]
        ratios = {
            stage: [m[stage][ours][figure] / m[stage][control][figure] for m in both_there]
            for stage in ("switched", "refitted")
        }
        take(f"{short}_gain", ratios["refitted"], ratios["switched"])
    return keys


def shown(runs: list[Run]) -> dict[str, dict[str, dict[str, float]]]:
    """Medians over seeds by stage and policy."""
    every = [run.metrics() for run in runs]
    return {
        stage: {
            policy: {
                key: statistics.median(metrics[stage][policy][key] for metrics in there)
                for key in SHOWN
            }
            for policy in runs[0].outcomes
        }
        for stage in STAGES
        if (there := [metrics for metrics in every if stage in metrics])
    }


def first_refits(runs: list[Run]) -> dict[str, float | None]:
    """Medians of the first adoption after the switch, None where no seed had one."""
    adopted = [(run, run.adoptions[0]) for run in runs if run.adoptions]

    def median(value: Callable[[Run, Refit], float]) -> float | None:
        return statistics.median(value(*pair) for pair in adopted) if adopted else None

    return {
        "refit_requests": median(lambda run, refit: run.sent(run.ours, refit.at) - run.switch),
        "refit_after_s": median(lambda run, refit: refit.at - run.switched_at),
        "refit_s": median(lambda run, refit: refit.numbers["seconds"]),
        "cosine_old": median(lambda run, refit: refit.numbers["cosine_old"]),
        "cosine_new": median(lambda run, refit: refit.numbers["cosine_new"]),
        "adopted": len(adopted),
    }


def account(run: Run) -> list[dict[str, Any]]:
    """A run's refits: `request`, how many of the new traffic had been sent (below 0: of the old
    one, before the switch), and what the router says."""
    return [
        {"request": run.sent(run.ours, refit.at) - run.switch}
        | {key: refit.numbers.get(key) for key in REFIT}
        for refit in run.refits
    ]


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--seeds", {"type": int, "default": 4}),
        ("--before", {"type": int, "default": 192, "help": "requests of the old traffic"}),
        ("--after", {"type": int, "default": 560, "help": "requests of the new traffic"}),
        ("--tokens", {"type": int, "default": 64, "help": "mean output tokens; half to 1.5 x"}),
        ("--concurrency", {"type": int, "default": 48}),
        ("--policy", {"default": "eldr", "help": "ours; eldr@0: without residents and guard"}),
        ("--control", {"default": "shortest_queue", "choices": ("shortest_queue", "round_robin")}),
    )
    if options.quick:
        options.seeds, options.before, options.after = 1, 144, 320
    result = Result()
    runs = []
    with tempfile.TemporaryDirectory(prefix="eldr-drift-") as folder:
        profile = Path(folder) / "profile"
        of_languages(shipped(), OLD).fitted_anew(4, seed=0).write(profile)
        policies = (options.policy, options.control)
        with workers(profile) as up:
            for seed, order in enumerate(orders(2, options.seeds, seed=0)):
                with up.router(profile, refit_on_drift=True) as url:
                    turn = [policies[index] for index in order]
                    runs.append(asyncio.run(measure(url, seed, turn, options)))
    result.keys |= compared(runs, *policies) | first_refits(runs)
    result.keys |= {
        "policy": options.policy,
        "control": options.control,
        "stages": shown(runs),
        "settling": [[run.settled(n) - n for n in run.changes[:2]] for run in runs],
        "refits": [account(run) for run in runs],
    }
    result.emit(samples=2 * options.seeds * (options.before + options.after))


if __name__ == "__main__":
    main()
