"""What a placement of experts does to a decode step, in the simulator.

One decode server of as many ranks as GPUs with DP attention, whose experts lie on all of them (EP
2, 4, 8), in a closed loop that fills it. Requests use experts as the embedded model's profile has
it; placements are made from the same profile, as `toolkit profile place` does. A layer waits for
the GPU that has to load most of the experts that the batch activates. Step times are those of
`eldr_simulated`, with each GPU's own experts. What crosses GPUs costs nothing here: load only.

keys: by EP size, for each placement: `tpot`, mean TPOT divided by that of `linear` (SGLang's
default), geometric mean over seeds and 95 % interval; `busiest`: of the busiest GPU's experts over
an equal share of all. `paper`: Gimbal (arXiv text in `papers/gimbal.txt`), mean TPOT with all its
parts on two A100, of which placement is the only one that can change a step.
"""

import statistics
import sys
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.simulated import BASE, MI300X, cost, told
from toolkit import placement
from toolkit.bench.stats import paired_ratio
from toolkit.profile.placing import traffic
from toolkit.profile_folder import store
from toolkit.resources import profiles_dir
from toolkit.simulate.experts import Mixture, SimulatedExperts
from toolkit.simulate.fleet import DecodeFleet, Fleet, PrefillFleet, RouterFleet
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation, Window
from toolkit.simulate.workloads.patterns import with_rows
from toolkit.simulate.workloads.traffic import TrafficModel, generate

KINDS = ("linear", "eplb", "gimbal", "joint")
GPUS = (2, 4, 8)
SLOTS = 16
"""Of a rank."""
PAPER = 0.87


def requests(experts: SimulatedExperts, count: int, seed: int) -> Iterator[Request]:
    made = TrafficModel(rate=100.0, seconds=count / 100, kinds=(BASE,), longest=(8_000, 2_000))
    return with_rows(generate(made, seed), experts, seed)


def played(experts: SimulatedExperts, gpus: int, count: int, seed: int) -> float:
    """Mean TPOT, s."""
    fleet = Fleet(
        prefill=PrefillFleet(replicas=8),
        decode=DecodeFleet(dp=gpus, dp_attention=True, slots=SLOTS, kv_tokens=1_000_000),
        router=RouterFleet(decode_policy="shortest_queue", parked_per_prefill=64),
    )
    run = Simulation(
        fleet,
        cost(1, experts.layers * experts.experts, *MI300X),
        requests(experts, count, seed),
        experts,
        seed,
        in_flight=gpus * SLOTS,
        window=Window(full=True),
    )
    return float(run.run().result()["tpot_mean"])


def busiest(experts: SimulatedExperts, gpus: int) -> float:
    """The busiest GPU's experts over an equal share, in batches that fill the server."""
    mixture = Mixture(experts)
    for number in range(gpus * SLOTS):
        mixture.add(number * 7 % len(experts))
    return mixture.busiest() * gpus / mixture.distinct()


def compared(gpus: int, seeds: int, count: int) -> dict[str, Any]:
    """All placements on as many GPUs, on the same requests."""
    folder = profiles_dir() / "embedded"
    experts, seen = SimulatedExperts.of_profile(folder), traffic(*store.read(folder))
    topology = placement.Topology(gpus)
    found: dict[str, list[float]] = {}
    shares: dict[str, float] = {}
    for kind in KINDS:
        placed = experts.placed(placement.place(kind, seen, topology))
        found[kind] = [played(placed, gpus, count, seed) for seed in range(seeds)]
        shares[kind] = busiest(placed, gpus)
        mean = statistics.fmean(found[kind]) * 1e3
        print(f"EP {gpus} {kind}: {mean:.2f} ms, busiest {shares[kind]:.3f}", file=sys.stderr)
    ratios = {kind: paired_ratio(values, found["linear"]) for kind, values in found.items()}
    return {kind: {"tpot": told(each), "busiest": shares[kind]} for kind, each in ratios.items()}


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--seeds", {"type": int, "default": 3}),
        ("--requests", {"type": int, "default": 1000, "help": "of each run"}),
    )
    if options.quick:
        options.seeds, options.requests = 1, 300
    result = Result()
    result.keys = {
        f"ep_{gpus}": compared(gpus, options.seeds, options.requests) for gpus in GPUS
    } | {"paper": PAPER}
    result.emit(options.seeds * len(GPUS) * len(KINDS))


if __name__ == "__main__":
    main()
