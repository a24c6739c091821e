"""What it costs a policy that several routers decide, each for its own requests.

Simulated, with the decider of the real router in each of them. All routers have the same workers. A
router knows its own requests, and of the others' what ranks say of their load every 20 ms: requests
and KV tokens, not where others are about to send. Prefills that are parked are shared out: each
router may have its part of 64 a prefill worker. Requests come to the routers in turn. One router
reads loads of the same age.

`balance`: one decode server of 16 ranks with DP attention, an H200 each by its data sheet, eight
prefill workers; `experts`: 16 decode workers, each with all experts, and requests of the embedded
model's profile, which its centroids were not fitted to. Poisson arrivals. `rotation`: the fleet of
`balance` with `round_robin` for prefill and `shortest_queue` for decode; `spread`: each router
begins its rotation elsewhere, as routers do; `together`: all at the same worker.

keys: by part and policy, `one`: `tpot_p50`, `tpot_p99`, `ttft_p50`, `ttft_p99` (seconds),
`kv_spread` (mean max - min KV tokens of ranks) and `distinct` (experts of a step) with one router;
by number of routers (2, 4, 8) each of these divided by that of one router, geometric mean over
seeds with its 95 % interval.
"""

import sys
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.simulated import BASE, cost, told
from toolkit.bench.stats import paired_ratio
from toolkit.resources import profiles_dir
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.fleet import DecodeFleet, Fleet, PrefillFleet, RouterFleet
from toolkit.simulate.request import Request
from toolkit.simulate.router import SimulatedRouter
from toolkit.simulate.simulation import Simulation, Window
from toolkit.simulate.workloads.patterns import with_rows
from toolkit.simulate.workloads.traffic import TrafficModel, generate

MEASURES = ("toolkit/policies", "toolkit/decide", "toolkit/simulate")

ROUTERS = (2, 4, 8)
RANKS = 16
PARKED = 64
REPORT_S = 0.02
WARM_S = 30.0
BALANCE = ("round_robin", "shortest_queue", "kv_shortest_queue", "level", "br0", "brh")
EXPERTS = ("shortest_queue", "eldr")
FIGURES = ("tpot_p50", "tpot_p99", "ttft_p50", "ttft_p99", "kv_spread", "distinct")
Figures = dict[str, float]


class Together(Simulation):
    """All routers have the same seed, and so begin their rotations at the same worker."""

    def _router(self, fleet: Fleet, seed: int, experts: SimulatedExperts | None) -> SimulatedRouter:
        return super()._router(fleet, self._seed, experts)


class Part:
    """A fleet and its traffic. `prefill`: who chooses prefill workers; `kind`: of simulation."""

    def __init__(
        self,
        name: str,
        rate: float,
        seconds: float,
        prefill: str = "shortest_queue",
        kind: type[Simulation] = Simulation,
    ) -> None:
        self.rate, self.seconds = rate, seconds
        self.prefill, self.kind = prefill, kind
        self.experts: SimulatedExperts | None = None
        # Of Qwen3-30B-A3B: as many as the profile has, and each stands for more of the model's.
        entries = 48 * 128
        if name == "experts":
            self.experts = SimulatedExperts.of_profile(profiles_dir() / "embedded")
            entries = self.experts.layers * self.experts.experts
            self.decode = DecodeFleet(replicas=RANKS, slots=256, kv_tokens=400_000)
            self.cost = cost(1, entries)
        else:
            self.decode = DecodeFleet(dp=RANKS, dp_attention=True, slots=256, kv_tokens=400_000)
            self.cost = cost(RANKS, entries)

    def requests(self, seed: int) -> Iterator[Request]:
        kind = BASE.model_copy(update={"prompt": (800.0, 1.0)})
        traffic = TrafficModel(
            rate=self.rate, seconds=self.seconds, kinds=(kind,), longest=(16_000, 4_000)
        )
        made = generate(traffic, seed)
        return made if self.experts is None else with_rows(made, self.experts, seed)

    def played(self, policy: str, routers: int, seed: int) -> Figures:
        """One run's figures."""
        fleet = Fleet(
            prefill=PrefillFleet(replicas=8),
            decode=self.decode,
            router=RouterFleet(
                prefill_policy=self.prefill,
                decode_policy=policy,
                parked_per_prefill=PARKED,
                report_s=REPORT_S,
                routers=routers,
            ),
        )
        window = Window(since=WARM_S, until=self.seconds)
        requests = self.requests(seed)
        run = self.kind(fleet, self.cost, requests, self.experts, seed, window=window)
        found = run.run().result()
        steps = sum(group.steps for group in run.groups)
        distinct = sum(group.distinct_steps for group in run.groups) / steps
        return {key: found[key] for key in FIGURES[:-1]} | {"distinct": distinct}


def compared(part: Part, policies: tuple[str, ...], seeds: int) -> dict[str, Any]:
    """Each policy's figures with one router, and of more by those."""
    keys: dict[str, Any] = {}
    for policy in policies:
        runs = {n: [part.played(policy, n, seed) for seed in range(seeds)] for n in (1, *ROUTERS)}
        shown = [name for name in FIGURES if all(run[name] > 0 for run in runs[1])]
        keys[policy] = {
            "one": {name: sum(run[name] for run in runs[1]) / seeds for name in shown},
            **{
                str(n): {
                    name: told(
                        paired_ratio([run[name] for run in runs[n]], [run[name] for run in runs[1]])
                    )
                    for name in shown
                }
                for n in ROUTERS
            },
        }
        shares = {n: keys[policy][n]["tpot_p50"]["value"] for n in map(str, ROUTERS)}
        print(f"{policy}: TPOT p50 by routers {shares}", file=sys.stderr, flush=True)
    return keys


def rotated(rate: float, seconds: float, kind: type[Simulation], seeds: int) -> dict[str, Any]:
    """With `round_robin` for prefill, in simulations of that kind."""
    part = Part("balance", rate, seconds, "round_robin", kind)
    (found,) = compared(part, ("shortest_queue",), seeds).values()
    return dict(found)


def main() -> None:
    """Run the benchmark, print its line."""
    options = arguments(
        __doc__,
        ("--seeds", {"type": int, "default": 5}),
        ("--rate", {"type": float, "default": 110.0, "help": "requests a second"}),
    )
    seconds = WARM_S + 40.0
    if options.quick:
        options.seeds, seconds = 1, WARM_S + 10.0
    result = Result()
    result.keys = {
        "balance": compared(Part("balance", options.rate, seconds), BALANCE, options.seeds),
        "experts": compared(Part("experts", options.rate, seconds), EXPERTS, options.seeds),
        "rotation": {
            name: rotated(options.rate, seconds, kind, options.seeds)
            for name, kind in (("spread", Simulation), ("together", Together))
        },
    }
    runs = (len(BALANCE) + len(EXPERTS) + 2) * (1 + len(ROUTERS))
    result.emit(options.seeds * runs)


if __name__ == "__main__":
    main()
