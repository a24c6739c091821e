"""`imbalance` in the simulator: what long rounds would show on the same fleet.

The fleet of `imbalance --set attention` (one prefill worker for two ranks, one decode server with
DP attention, 32 requests and 16,384 KV tokens a rank), the same lengths, step times of the embedded
model's profile, SGLang's loop as it is on a CPU: a rank looks at new requests and at received KV
once a step. Rounds of `--requests`, with `--trace FILE` of a trace.

Without `--load` a closed loop: all slots and 8 more for each rank in flight. With it Poisson
arrivals at that share of what shortest queue carries in the closed loop; the first tenth of the
time is not looked at.

keys: `best`, of each column (without the pool, with it) the balancer with the least spread;
`arms`, for every policy the means over seeds (kv_spread: mean max - min KV tokens; seconds, tokens
a second); `against`, for every arm of ours and each column the ratios ours / best, with 95 %
intervals over seeds; `bias`, by policy, the simulator's spread divided by real workers'
(`validation --record`), empty where nobody measured it; `rate`, requests a second.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.balancers import (
    BALANCERS,
    COLUMNS,
    POOLED,
    all_against,
    best,
    mean,
    show,
)
from tests.benchmarks.shared.bias import bias
from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.kinds import draw, of_trace, scaled
from tests.benchmarks.shared.lengths import LONGEST, WAITING
from tests.benchmarks.shared.simulated import arriving
from tests.dp_recipe import RESERVED, SLOTS
from toolkit.bench.traces import TraceRow, load
from toolkit.resources import recipes_dir
from toolkit.settings.load import load_deployment
from toolkit.simulate import costs
from toolkit.simulate.fleet import Fleet
from toolkit.simulate.of_deployment import fleet_of
from toolkit.simulate.request import Request
from toolkit.simulate.session import with_policies
from toolkit.simulate.simulation import Simulation, Window

MEASURES = (
    "toolkit/policies/rounds",
    "toolkit/policies/level.py",
    "toolkit/policies/br0.py",
    "toolkit/policies/brh.py",
    "toolkit/policies/predictors",
    "toolkit/decide",
    "toolkit/simulate",
)

OURS = ("level", "brh", "br0", "level@0", "brh@learned:0", "br0@0", "br0@paper", "brh@paper")
ARMS = (*OURS, "unpooled@level", *BALANCERS, *POOLED)
LEAD = "kv_spread"
OTHERS = ("barrier_share", "tpot_p99", "ttft_p99", "output_tokens_s")
SHOWN = {
    "max - min KV": (LEAD, 1.0),
    "barrier share": ("barrier_share", 1.0),
    "TPOT p99 ms": ("tpot_p99", 1e3),
    "TTFT p99 s": ("ttft_p99", 1.0),
    "tokens/s": ("output_tokens_s", 1.0),
}


def requests(
    rows: list[TraceRow] | None, seed: int, count: int, means: tuple[float, float]
) -> Iterator[Request]:
    """The same lengths as `imbalance` plays; all at time 0, for a closed loop."""
    drawn = draw(count, seed) if rows is None else of_trace(rows, count, seed)
    for number, one in enumerate(scaled(drawn, *means, LONGEST)):
        yield Request(number, 0.0, one.prompt, one.answer, user=one.user)


def fleet(ranks: int) -> Fleet:
    """As `imbalance` starts it, with prefill workers in proportion."""
    found = fleet_of(load_deployment(recipes_dir() / "cpu-dp.yaml"))
    sizes = {"slots": SLOTS, "reserve": RESERVED, "dp": ranks}
    prefill = found.prefill.model_copy(update={"replicas": max(1, ranks // 2)})
    decode = found.decode.model_copy(update=sizes)
    return found.model_copy(update={"prefill": prefill, "decode": decode})


class Bench:
    """One fleet and its traffic; `rate` None is the closed loop."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.rows = load(Path(options.trace)) if options.trace else None
        self.cost = costs.load("embedded")
        self.fleet = fleet(options.ranks)
        self.rate: float | None = None
        if options.load:
            full = self.played("shortest_queue", 0)
            self.rate = options.load * full["requests"] / full["seconds"]

    def played(self, arm: str, seed: int) -> dict[str, float]:
        """One policy on one seed's requests."""
        options = self.options
        means = (options.prompt, options.answer)
        made = requests(self.rows, seed, options.requests, means)
        in_flight, window = options.ranks * (SLOTS + WAITING), Window(full=True)
        if self.rate is None:
            return self._run(arm, seed, made, in_flight, window)
        timed = arriving(made, self.rate, seed)
        last = timed[-1].arrived
        return self._run(arm, seed, iter(timed), None, Window(since=last / 10, until=last))

    def _run(
        self, arm: str, seed: int, made: Iterator[Request], in_flight: int | None, window: Window
    ) -> dict[str, float]:
        settings = with_policies(self.fleet, arm)
        run = Simulation(
            settings, self.cost, made, seed=seed, in_flight=in_flight, window=window
        ).run()
        return run.result()


def main() -> None:
    """Run the benchmark, print its table and its line."""
    options = arguments(
        __doc__,
        ("--arms", {"default": ",".join(ARMS), "help": "policies, separated by commas"}),
        ("--ranks", {"type": int, "default": 2}),
        ("--load", {"type": float, "help": "of what saturates [default: a closed loop]"}),
        ("--seeds", {"type": int, "default": 3}),
        ("--requests", {"type": int, "default": 4000, "help": "of each round"}),
        ("--prompt", {"type": float, "default": 160.0, "help": "mean tokens"}),
        ("--answer", {"type": float, "default": 96.0, "help": "mean tokens"}),
        ("--trace", {"help": "a trace file in place of the synthetic mix"}),
    )
    if options.quick:
        options.seeds, options.requests = 1, 1000
    result, bench = Result(), Bench(options)
    arms = options.arms.split(",")
    rounds = {arm: [bench.played(arm, seed) for seed in range(options.seeds)] for arm in arms}
    known = bias(LEAD)
    result.keys = {
        "ranks": options.ranks,
        "load": options.load,
        "rate": bench.rate,
        "best": {column: best(rounds, column, LEAD) for column in COLUMNS},
        "against": {
            arm: {column: one.keys() for column, one in found.items()}
            for arm, found in all_against(rounds, LEAD, ("ttft_p99",)).items()
        },
        "arms": {arm: {key: mean(rounds, arm, key) for key in (LEAD, *OTHERS)} for arm in rounds},
        "bias": {arm: known[arm] for arm in rounds if arm in known},
    }
    at = "closed loop" if options.load is None else f"load {options.load:g}"
    show(f"simulated, {options.ranks} ranks, {at}", rounds, SHOWN, LEAD, known)
    result.emit(options.seeds * options.requests * len(arms))


if __name__ == "__main__":
    main()
