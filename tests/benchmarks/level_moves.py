"""`level` with moves between decode ranks against `level` without, in the simulator.

The pd fleet of `stages`, without stages: 16 decode instances of Llama-3.2-3B on H20s, 16 that
prefill, dialogues with a tail up to 128K tokens, the penalty for mixed lengths on. Poisson arrivals
at `--rates` for `--seconds`, of which the first quarter is not looked at.

Arms: `level`; `level+moves`, where the KV tokens of ranks decide (`router: {rebalance: true}`);
`level+priced`, where a move also has to pay by the QoE model (`rebalance: {qoe: ...}`). The router
has the same `Mover`; on real workers: `stages_live`.

keys: spread_ratio (mean max - min KV tokens of the ranks, with moves / without), throughput_ratio,
tpot_ratio, tail_ratio (p99 TPOT), the same with _priced: means over rates, 95 % intervals over
seeds; `arms`: figures by rate.
"""

import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

from tests.benchmarks.shared import llama
from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.conditions import of_conditions
from toolkit.settings.router.rebalance import Rebalance
from toolkit.simulate.fleet import DecodeFleet, Fleet, PrefillFleet, RouterFleet
from toolkit.simulate.simulation import Simulation, Window

MEASURES = (
    "toolkit/policies/level.py",
    "toolkit/policies/stages",
    "toolkit/decide",
    "toolkit/simulate",
)

INSTANCES = 16
PENALTY = 2.1
ARMS: dict[str, Rebalance | None] = {
    "level": None,
    "level+moves": Rebalance(),
    "level+priced": Rebalance(qoe=llama.qoe(plain=False).coefficients),
}
FIGURES = {
    "spread": "kv_spread",
    "throughput": "output_tokens_s",
    "tpot": "tpot_mean",
    "tail": "tpot_p99",
}


class Case(NamedTuple):
    """One run."""

    arm: str
    rate: float
    seed: int
    seconds: float


def played(case: Case) -> dict[str, float]:
    """One run's figures; times in seconds."""
    fleet = Fleet(
        prefill=PrefillFleet(replicas=INSTANCES, chunk=llama.CHUNK),
        decode=DecodeFleet(replicas=INSTANCES, slots=llama.SLOTS, kv_tokens=llama.KV_TOKENS),
        router=RouterFleet(decode_policy="level", rebalance=ARMS[case.arm]),
    )
    made = llama.requests(case.rate, case.seconds, case.seed)
    window = Window(case.seconds / 4, case.seconds)
    run = Simulation(fleet, llama.cost(PENALTY), made, seed=case.seed, window=window)
    result = run.run().result() | run.move_figures
    return {key: float(result[name]) for key, name in FIGURES.items()} | {
        "kv_mean": float(result["kv_mean"]),
        "moves": float(result.get("moves", 0)),
        "move_stall_mean": float(result.get("move_stall_mean", 0.0)),
    }


def main() -> None:
    """Run the benchmark, print its table and its line."""
    options = arguments(
        __doc__,
        ("--rates", {"default": "300,420", "help": "requests a second"}),
        ("--seeds", {"type": int, "default": 4}),
        ("--seconds", {"type": float, "default": 25.0, "help": "of arrivals"}),
        ("--jobs", {"type": int, "default": 2}),
    )
    if options.quick:
        options.rates, options.seeds, options.seconds = "300", 2, 8.0
    rates = [float(rate) for rate in options.rates.split(",")]
    result, seeds = Result(), range(options.seeds)
    cases = [Case(arm, r, n, options.seconds) for arm in ARMS for r in rates for n in seeds]
    with ProcessPoolExecutor(options.jobs) as pool:
        runs = dict(zip(cases, pool.map(played, cases), strict=True))

    def of(arm: str, key: str) -> Sequence[list[float]]:
        return [[runs[Case(arm, r, n, options.seconds)][key] for n in seeds] for r in rates]

    arms: dict[str, dict[str, Any]] = {
        arm: {key: [statistics.fmean(each) for each in of(arm, key)] for key in runs[cases[0]]}
        for arm in ARMS
    }
    result.keys = {"rates": rates, "arms": arms}
    for arm, end in (("level+moves", ""), ("level+priced", "_priced")):
        for key in FIGURES:
            result.keys |= of_conditions(of(arm, key), of("level", key)).keys(f"{key}_ratio{end}")
    for arm, figures in arms.items():
        print(arm, {key: [round(x, 4) for x in values] for key, values in figures.items()})
    result.emit(len(cases))


if __name__ == "__main__":
    main()
