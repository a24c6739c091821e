"""Stages that follow the lengths that come, against those of the file: refined bounds, other plans.

Simulated as in `stages` (16 decode instances of Llama-3.2-3B on an H20 with prefill apart, exact
program, `--penalty`, moves live), with stages planned for the lengths of the period before, at one
rate. Traffic: `planned` has those lengths; `shorter` and `longer` have others, prompts and answers
0.4 and 2 times as long (and the rate such that as many tokens come).

Arms: `stands`, the file's stages; `refined`, bounds every 2 s; `replanned`, lengths and instances
every 5 s; `both`; `kv`, no stages, the shortest queue in KV tokens. All that have stages know what
mixed lengths cost.

keys: by traffic, for each arm but `stands` the ratios to it of `ttft`, `tpot` (means), `tail` (p95
of the time by token) and `throughput` (tokens a second), with 95 % intervals over seeds; `stages`
at the end of each arm's first run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from tests.benchmarks.shared import llama
from tests.benchmarks.shared.common import Result, arguments, percentile
from tests.benchmarks.stages import REFINE_S, Case, fleet, ratio
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation, Window

MEASURES = ("toolkit/policies/stages", "toolkit/decide", "toolkit/simulate")
REPLAN_S = 5.0
SCALES = {"planned": 1.0, "shorter": 0.4, "longer": 2.0}
ARMS: dict[str, dict[str, float]] = {
    "stands": {"refine_s": 0.0},
    "refined": {"refine_s": REFINE_S},
    "replanned": {"refine_s": 0.0, "replan_s": REPLAN_S},
    "both": {"refine_s": REFINE_S, "replan_s": REPLAN_S},
    "kv": {},
}
FIGURES = ("ttft", "tpot", "tail", "throughput")


class Followed(NamedTuple):
    """One run."""

    traffic: str
    arm: str
    seed: int
    rate: float
    seconds: float
    penalty: float


def scaled(run: Followed, kept: list[Request]) -> Iterator[Request]:
    """The requests of the traffic."""
    scale = SCALES[run.traffic]
    for request in llama.requests(run.rate / scale, run.seconds, run.seed):
        longer = replace(
            request,
            prompt=max(1, round(request.prompt * scale)),
            output=max(1, round(request.output * scale)),
        )
        kept.append(longer)
        yield longer


def played(run: Followed) -> dict[str, Any]:
    """One run's figures; times in seconds."""
    arm = "kv" if run.arm == "kv" else "additive"
    case = Case("pd", run.penalty, arm, run.rate, run.seed, run.seconds)
    made, kept = fleet(case), list[Request]()
    if made.rebalance is not None:
        known = ARMS[run.arm] | {"mixed": llama.cost(run.penalty).decode.mixed}
        rebalance = made.rebalance.model_copy(update=known)
        router = made.router.model_copy(update={"rebalance": rebalance})
        made = made.model_copy(update={"router": router})
    since = run.seconds / 4
    simulation = Simulation(
        made,
        llama.cost(run.penalty),
        scaled(run, kept),
        seed=run.seed,
        window=Window(since, run.seconds),
    )
    result = simulation.run().result()
    counted = [r for r in kept if r.arrived >= since]
    stages = simulation.router.stages
    return {
        "ttft": result["ttft_mean"],
        "tpot": result["tpot_mean"],
        "throughput": result["output_tokens_s"],
        "tail": percentile([(r.ended - r.arrived) / r.output for r in counted], 95),
        "stages": "" if stages is None else str(stages.layout),
        "requests": len(counted),
    }


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--penalty", {"type": float, "default": 2.1, "help": "of mixed lengths [2.1]"}),
        ("--rate", {"type": float, "default": 300.0, "help": "requests a second"}),
        ("--seeds", {"type": int, "default": 4}),
        ("--seconds", {"type": float, "default": 40.0, "help": "of arrivals"}),
        ("--jobs", {"type": int, "default": 2}),
    )
    if options.quick:
        options.seeds, options.seconds = 2, 10.0
    runs = [
        Followed(traffic, arm, seed, options.rate, options.seconds, options.penalty)
        for traffic in SCALES
        for arm in ARMS
        for seed in range(options.seeds)
    ]
    with ProcessPoolExecutor(options.jobs) as pool:
        found = dict(zip(runs, pool.map(played, runs), strict=True))
    result = Result()
    for traffic in SCALES:
        of = {
            arm: [row for run, row in found.items() if (run.traffic, run.arm) == (traffic, arm)]
            for arm in ARMS
        }
        keys: dict[str, Any] = {
            arm: {
                key: ratio([[row[key] for row in of[arm]]], [[row[key] for row in of["stands"]]])
                for key in FIGURES
            }
            for arm in ARMS
            if arm != "stands"
        }
        keys["stages"] = {arm: rows[0]["stages"] for arm, rows in of.items()}
        print(f"{traffic}: {keys}", file=sys.stderr, flush=True)
        result.keys[traffic] = keys
    result.emit(sum(row["requests"] for row in found.values()))


if __name__ == "__main__":
    main()
