"""CascadeInfer's published setting in the simulator: stages against round robin and the best queue.

16 instances of Llama-3.2-3B, each on an H20, at most 1,024 requests at a time, contexts up to 128K,
dialogue lengths with a long tail, Poisson arrivals for `--seconds`, of which the first quarter is
not looked at; the run ends with the last answer. Step times by data sheets, lengths by vLLM's paper
and a tail of ours, all sources in `tests.benchmarks.shared.llama`. Attention over mixed lengths
takes up to `--penalty` times as long as over even ones (published: 1.1 to 2.1); the same at the
heavy rates without it.

`plain`: each instance prefills and decodes, prompts first, as in the paper. `pd`: 16 decode
instances behind 16 that prefill.

Arms: `rr`, round robin, as the paper has vLLM and SGLang; `kv`, shortest queue in KV tokens, with
the pool where there is one: the strongest baseline here; `additive`, stages of the exact partition
program with the published, additive QoE model; `mixed`, the same with the penalty in it (ours);
`at_rate`, also for the rate at which requests come, so that no stage is overloaded (ours: what
`toolkit plan` does).
Inside a stage `kv` chooses. At most 6 stages; where there are several the bounds follow the live
lengths (range refinement), and requests move live: 400 Gb/s, the source decodes on meanwhile.

Heavy rates: from that at which round robin makes fewer tokens a second than at its best, the
highest rate at least. Ratios are means over the heavy rates, ours divided by the other, with 95 %
intervals over seeds. The keys are of `additive`, `plain`, which is what was published; all others
are under `plain` and `pd`. `tail`: p95 of normalized latency, whole answer divided by its tokens
(6.2).

`cv`: deviation / mean of output tokens over the instances of a stage, mean over stages, in the
paper's pipeline of four stages of four (6.5; bounds 256, 512, 1,024) at the least rate of plain:
`full`, `outgrown` (nobody moves for load) and `rr` (the same, and round robin inside a stage).

Moves without stages: `level_moves`; on real workers: `stages_live`.

keys: ttft_ratio_rr, tpot_ratio_rr, throughput_ratio_rr, tail_ratio_rr, the same with _kv, and with
_mixed and _at_rate of these arms against rr; cv_ratio (full / outgrown), cv_ratio_rr (full / rr);
`plain`, `pd`: rates, heavy, `arms` (by rate), `ratios`, `layouts`, `none` (without penalty);
`verdicts`; plan_s, heuristic_gap_percent, `worst` (`tests.benchmarks.partition`,
200 cases).
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from tests.benchmarks import partition
from tests.benchmarks.shared import llama
from tests.benchmarks.shared.common import Result, arguments, percentile
from tests.benchmarks.shared.conditions import of_conditions
from tests.benchmarks.shared.stage_tables import CLAIMS, show, verdicts
from toolkit.bench.stats import Ratio
from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.partition import MoveCost, exact
from toolkit.policies.stages.population import in_flight
from toolkit.policies.stages.staging import plan_stages
from toolkit.settings.router.rebalance import Rebalance
from toolkit.simulate.fleet import (
    DecodeFleet,
    Fleet,
    PrefillFleet,
    RouterFleet,
    StageFleet,
    WorkerFleet,
)
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation, Window

MEASURES = ("toolkit/policies/stages", "toolkit/decide", "toolkit/simulate")

INSTANCES = 16
MOST = 6
"""Stages; the paper's have 4 to 6."""
REFINE_S = 2.0
"""Between two times that bounds are looked at."""
STALL_S = 0.03
"""What a move costs its request, for the partition: about what one takes here."""
ARMS = ("rr", "kv", "additive", "mixed", "at_rate")
RATES = {"plain": "240,300,360,420", "pd": "300,360,420,480"}
FIGURES = ("ttft", "tpot", "throughput", "tail")
FOUR = ((256, 4), (512, 4), (1024, 4), (None, 4))
BALANCED = ("full", "outgrown", "rr_inside")


class Case(NamedTuple):
    """One run. `penalty` 1: lengths do not matter."""

    mode: str
    penalty: float
    arm: str
    rate: float
    seed: int
    seconds: float


Pair = dict[str, float]
"""A ratio: `value`, `low`, `high`."""


@cache
def answers() -> tuple[tuple[int, int], ...]:
    """(prompt, answer) of the period before, for which is planned."""
    return tuple(islice(llama.lengths(-1), 20_000))


@cache
def layout(mode: str, penalty: float, arm: str, rate: float) -> Layout:
    """Of the exact program, for what is in flight at that rate by the QoE model."""
    qoe = llama.qoe(mode == "plain")
    mixed = None if arm == "additive" else llama.cost(penalty).decode.mixed
    tokens = statistics.fmean(answer for _, answer in answers())
    found = in_flight(answers(), min(rate, 0.95 * capacity(mode)), INSTANCES, qoe)

    def planned(tokens_per_s: float) -> Layout:
        return plan_stages(
            answers(),
            INSTANCES,
            qoe,
            found,
            MoveCost(STALL_S),
            mixed,
            most_stages=MOST,
            tokens_per_s=tokens_per_s,
        ).layout

    if arm != "at_rate":
        return planned(0.0)
    while True:
        try:
            return planned(rate * tokens)
        except ValueError:
            rate *= 0.97  # no stages keep up: for as much as some can


@cache
def capacity(mode: str) -> float:
    """The rate that the instances can just keep up with, by the QoE model."""
    low, high = 1.0, 1e5
    while high - low > 1e-3 * low:
        rate = (low + high) / 2
        try:
            in_flight(answers(), rate, INSTANCES, llama.qoe(mode == "plain"))
            low = rate
        except ValueError:
            high = rate
    return low


def fleet(case: Case) -> Fleet:
    """The arm's fleet."""
    plain = case.mode == "plain"
    laid: dict[str, Any] = {"replicas": INSTANCES}
    if case.arm in BALANCED:
        laid = {"stages": tuple(StageFleet(upto=upto, replicas=count) for upto, count in FOUR)}
    if case.arm in ARMS[2:]:
        stages = layout(case.mode, case.penalty, case.arm, case.rate).stages
        laid = {"stages": tuple(StageFleet(upto=s.upto, replicas=s.replicas) for s in stages)}
    sizes = {"slots": llama.SLOTS, "kv_tokens": llama.KV_TOKENS} | laid
    queue = "kv_shortest_queue" if plain else "pooled@kv_shortest_queue"
    policy = "round_robin" if case.arm.startswith("rr") else queue
    router = RouterFleet(decode_policy=policy, rebalance=rebalance(case))
    if plain:
        return Fleet(worker=WorkerFleet(chunk=llama.CHUNK, **sizes), router=router)
    prefill = PrefillFleet(replicas=INSTANCES, chunk=llama.CHUNK)
    return Fleet(prefill=prefill, decode=DecodeFleet(**sizes), router=router)


def rebalance(case: Case) -> Rebalance | None:
    """Who moves, in all arms with stages."""
    if case.arm in ("rr", "kv"):
        return None
    mixed = llama.cost(case.penalty).decode.mixed if case.arm in ARMS[3:] else 0.0
    return Rebalance(
        qoe=llama.qoe(case.mode == "plain").coefficients,
        mixed=mixed,
        refine_s=0.0 if case.arm in BALANCED else REFINE_S,
        replan_s=0.0,
        over=1e9 if case.arm in BALANCED[1:] else 0.25,
    )


def played(case: Case) -> dict[str, Any]:
    """One run's figures; times in seconds."""
    kept: list[Request] = []
    since = case.seconds / 4
    made = llama.requests(case.rate, case.seconds, case.seed)
    simulation = Simulation(
        fleet(case),
        llama.cost(case.penalty),
        _noted(made, kept),
        seed=case.seed,
        window=Window(since, case.seconds),
    )
    result = simulation.run().result()
    counted = [r for r in kept if r.arrived >= since]
    normalized = [(r.ended - r.arrived) / r.output for r in counted]
    stages = simulation.router.stages
    return {
        "ttft": result["ttft_mean"],
        "tpot": result["tpot_mean"],
        "throughput": result["output_tokens_s"],
        "tail": percentile(normalized, 95),
        "cv": _cv(
            [int(group.made[0]) for group in simulation.groups],
            [0] * INSTANCES if stages is None else stages.stages,
        ),
        "ttft_p95": percentile([r.ttft for r in counted], 95),
        "tpot_p95": percentile([r.tpot for r in counted if r.output > 1], 95),
        "e2e_p99": result["e2e_p99"],
        "moves": simulation.move_figures.get("moves", 0),
        "move_stall_mean": simulation.move_figures.get("move_stall_mean", 0.0),
        "requests": len(counted),
    }


def _noted(made: Iterable[Request], kept: list[Request]) -> Iterator[Request]:
    for request in made:
        kept.append(request)
        yield request


def _cv(made: Sequence[int], stages: Sequence[int]) -> float:
    """Deviation / mean of output tokens over instances of a stage, the mean of all stages that have
    several."""
    groups: dict[int, list[int]] = {}
    for tokens, stage in zip(made, stages, strict=True):
        groups.setdefault(stage, []).append(tokens)
    several = [each for each in groups.values() if len(each) > 1]
    return statistics.fmean(statistics.pstdev(x) / statistics.fmean(x) for x in several)


def play(pool: ProcessPoolExecutor, cases: list[Case]) -> dict[Case, dict[str, Any]]:
    """All, the longest first."""
    ordered = sorted(cases, key=lambda case: (-case.rate, case.arm in ("rr", "kv")))
    return dict(zip(ordered, pool.map(played, ordered), strict=True))


def heavy(rates: Sequence[float], throughput: Sequence[float]) -> list[int]:
    """Places of the heavy rates, by what round robin makes at each."""
    best = max(range(len(rates)), key=lambda place: throughput[place])
    return list(range(min(best + 1, len(rates) - 1), len(rates)))


def ratio(ours: list[list[float]], other: list[list[float]]) -> Pair:
    found: Ratio = of_conditions(ours, other)
    return {"value": found.value, "low": found.low, "high": found.high}


def compared(
    runs: dict[Case, dict[str, Any]],
    mode: str,
    penalty: float,
    arms: Sequence[str],
    rates: Sequence[float],
    at: Sequence[int] | None,
    seeds: int,
    seconds: float,
) -> dict[str, Any]:
    """Figures of each arm by rate, and the ratios at the heavy rates (`at`; None: to be found)."""

    def of(arm: str, rate: float, key: str) -> list[float]:
        return [runs[Case(mode, penalty, arm, rate, n, seconds)][key] for n in range(seeds)]

    def means(arm: str, key: str) -> list[float]:
        return [statistics.fmean(of(arm, rate, key)) for rate in rates]

    if at is None:
        at = heavy(rates, means("rr", "throughput"))
    loaded = [rates[place] for place in at]
    keys = next(iter(runs.values())).keys()
    ratios = {
        arm: {
            other: {
                key: ratio(
                    [of(arm, rate, key) for rate in loaded],
                    [of(other, rate, key) for rate in loaded],
                )
                for key in FIGURES
            }
            for other in ("rr", "kv")
        }
        for arm in arms
        if arm not in ("rr", "kv")
    }
    layouts = {
        arm: {f"{rate:g}": str(_shown(layout(mode, penalty, arm, rate))) for rate in rates}
        for arm in ratios
    }
    return {
        "rates": list(rates),
        "heavy": loaded,
        "arms": {arm: {key: means(arm, key) for key in keys} for arm in arms},
        "ratios": ratios,
        "layouts": layouts,
    }


def _shown(made: Layout) -> str:
    return ", ".join(f"{made.shown(n)} x {s.replicas}" for n, s in enumerate(made.stages))


def main() -> None:
    """Run the benchmark, print its tables and its line."""
    options = arguments(
        __doc__,
        ("--penalty", {"type": float, "default": 2.1, "help": "of mixed lengths [2.1]"}),
        ("--plain", {"default": RATES["plain"], "help": "requests a second"}),
        ("--pd", {"default": RATES["pd"], "help": "requests a second"}),
        ("--seeds", {"type": int, "default": 2}),
        ("--seconds", {"type": float, "default": 40.0, "help": "of arrivals"}),
        ("--jobs", {"type": int, "default": 2}),
    )
    if options.quick:
        options.seeds, options.seconds = 1, 8.0
        options.plain, options.pd = "360", "420"
    result = Result()
    seeds, seconds, penalty = options.seeds, options.seconds, options.penalty
    rates = {
        mode: [float(rate) for rate in getattr(options, mode).split(",")]
        for mode in ("plain", "pd")
    }

    def cases(mode: str, penalty: float, arms: Sequence[str], at: Sequence[float]) -> list[Case]:
        each = range(seeds)
        return [Case(mode, penalty, arm, r, n, seconds) for arm in arms for r in at for n in each]

    samples = 0
    with ProcessPoolExecutor(options.jobs) as pool:
        for mode, at in rates.items():
            runs = play(pool, cases(mode, penalty, ARMS, at))
            found = compared(runs, mode, penalty, ARMS, at, None, seeds, seconds)
            loaded = found["heavy"]
            without = play(pool, cases(mode, 1.0, ARMS[:3], loaded))
            every = range(len(loaded))
            found["none"] = compared(without, mode, 1.0, ARMS[:3], loaded, every, seeds, seconds)
            result.keys[mode] = found
            samples += sum(run["requests"] for run in (*runs.values(), *without.values()))
            show(mode, penalty, found)
        fours = play(pool, cases("plain", penalty, BALANCED, rates["plain"][:1]))

    def paired(played: dict[Case, dict[str, Any]], ours: str, other: str, key: str) -> Pair:
        both = (
            [run[key] for case, run in sorted(played.items()) if case.arm == arm]
            for arm in (ours, other)
        )
        return ratio(*([one] for one in both))

    ratios = result.keys["plain"]["ratios"]
    pairs = {
        f"{key}_ratio_{name}": ratios[arm][other][key]
        for name, arm, other in (
            ("rr", "additive", "rr"),
            ("kv", "additive", "kv"),
            ("mixed", "mixed", "rr"),
            ("at_rate", "at_rate", "rr"),
        )
        for key in FIGURES
    }
    pairs["cv_ratio"] = paired(fours, "full", "outgrown", "cv")
    pairs["cv_ratio_rr"] = paired(fours, "full", "rr_inside", "cv")
    for name, pair in pairs.items():
        result.keys |= {
            name: pair["value"],
            f"{name}_low": pair["low"],
            f"{name}_high": pair["high"],
        }
    result.keys["verdicts"] = verdicts(ratios["additive"]["rr"] | {"cv": pairs["cv_ratio"]})
    partition.gaps(partition.QUICK_CASES if options.quick else partition.CASES, result)
    result.keys["plan_s"] = partition.slowest(exact, 3 if options.quick else 20)
    print("\n" + CLAIMS)
    for line in result.keys["verdicts"].values():
        print(line)
    result.emit(samples)


if __name__ == "__main__":
    main()
