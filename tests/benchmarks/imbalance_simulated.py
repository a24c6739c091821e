"""`imbalance` in the simulator: what long rounds would show on the same fleet.

The fleet of `imbalance --set attention` (one prefill worker, one decode server of two ranks with
DP attention, 32 requests and 16,384 KV tokens each), the same lengths, the same closed loop, step
times of the embedded model's profile, SGLang's loop as it is on a CPU: a rank looks at new requests
and at received KV once a step. Rounds of `--requests`, with `--trace FILE` of a trace.

keys: `spread`, for every policy the mean max - min KV tokens while the loop is full, mean over
seeds; `times_below`, how many times less than the best of random, round robin, shortest queue and
power of two (`best_baseline`); `each`, one value for each seed: how far rounds of this length
differ.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.common import Result, arguments
from tests.benchmarks.imbalance import BASELINES, LONGEST, SLOTS, WAITING
from tests.dp_recipe import RESERVED
from toolkit.bench.lengths import draw, of_trace, scaled
from toolkit.bench.traces import TraceRow, load
from toolkit.launch.deployment import load_deployment
from toolkit.resources import recipes_dir
from toolkit.simulate import costs
from toolkit.simulate.fleet import Fleet
from toolkit.simulate.of_deployment import fleet_of
from toolkit.simulate.request import Request
from toolkit.simulate.session import with_policies
from toolkit.simulate.simulation import Simulation, Window

ARMS = ("br0@0", "brh@learned:0", "level@0", "level", *BASELINES, "least_tokens")


def requests(
    rows: list[TraceRow] | None, seed: int, count: int, means: tuple[float, float]
) -> Iterator[Request]:
    drawn = draw(count, seed) if rows is None else of_trace(rows, count, seed)
    for number, one in enumerate(scaled(drawn, *means, LONGEST)):
        yield Request(number, 0.0, one.prompt, one.answer, user=one.user)


def fleet(ranks: int) -> Fleet:
    found = fleet_of(load_deployment(recipes_dir() / "cpu-dp.yaml"))
    sizes = {"slots": SLOTS, "reserve": RESERVED, "dp": ranks}
    return found.model_copy(update={"decode": found.decode.model_copy(update=sizes)})


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--arms", {"default": ",".join(ARMS), "help": "policies, separated by commas"}),
        ("--ranks", {"type": int, "default": 2}),
        ("--seeds", {"type": int, "default": 3}),
        ("--requests", {"type": int, "default": 4000, "help": "of each round"}),
        ("--prompt", {"type": float, "default": 160.0, "help": "mean tokens"}),
        ("--answer", {"type": float, "default": 96.0, "help": "mean tokens"}),
        ("--trace", {"help": "a trace file in place of the synthetic mix"}),
    )
    if options.quick:
        options.seeds, options.requests = 1, 1000
    result = Result()
    rows = load(Path(options.trace)) if options.trace else None
    cost, sizes = costs.load("embedded"), fleet(options.ranks)
    each: dict[str, list[float]] = {}
    for arm in options.arms.split(","):
        for seed in range(options.seeds):
            simulation = Simulation(
                with_policies(sizes, arm),
                cost,
                requests(rows, seed, options.requests, (options.prompt, options.answer)),
                seed=seed,
                in_flight=options.ranks * (SLOTS + WAITING),
                window=Window(full=True),
            )
            each.setdefault(arm, []).append(simulation.run().result()["kv_spread"])
    spread = {arm: statistics.fmean(values) for arm, values in each.items()}
    best = min((arm for arm in spread if arm in BASELINES), key=lambda arm: spread[arm])
    result.keys = {
        "best_baseline": best,
        "times_below": {arm: spread[best] / value for arm, value in spread.items()},
        "spread": spread,
        "each": {arm: str([round(value) for value in values]) for arm, values in each.items()},
    }
    result.emit(options.seeds * options.requests * len(each))


if __name__ == "__main__":
    main()
