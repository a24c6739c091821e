"""How fast the simulator is: one hour of Azure's conversation load on 16 decode ranks, one core.

The load: `toolkit.simulate.workloads.traffic.azure_like`, 5.4 requests a second as in Azure's
conversation trace of 2023 (19,366 in its hour), through four prefill workers and one decode server
with `--ranks` ranks of DP attention, 64 slots and 400,000 KV tokens each, loads read after every
step, policy `--policy` (BR-H with its learned predictor: the one that costs most).

keys: hour_s, wall clock of the hour; cpu_s, CPU time of it; peak_gib, the process's peak;
`growth_mib`, by how much the peak is above that of the first `1 / --parts` of the time (memory is
flat in the trace's length); requests, events, rounds, steps of the group.
"""

import os
import resource
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core

from tests.benchmarks.shared.common import Result, arguments

MEASURES = ("toolkit/simulate", "toolkit/decide", "toolkit/policies")


def main() -> None:
    """Run the benchmark and print its line."""
    from toolkit.simulate.costs.linear import Decode, Linear, Prefill, TransferCost
    from toolkit.simulate.fleet import DecodeFleet, Fleet, PrefillFleet, RouterFleet
    from toolkit.simulate.simulation import Simulation
    from toolkit.simulate.workloads.traffic import azure_like, generate

    options = arguments(
        __doc__,
        ("--ranks", {"type": int, "default": 16}),
        ("--policy", {"default": "brh"}),
        ("--rate", {"type": float, "default": 5.4, "help": "requests a second"}),
        ("--seconds", {"type": float, "default": 3600.0, "help": "of simulated time"}),
        ("--parts", {"type": int, "default": 6}),
    )
    if options.quick:
        options.seconds /= 6
    result = Result()
    cost = Linear(
        decode=Decode(base=0.012, per_request=2e-5, per_kv_token=3e-8),
        prefill=Prefill(base=0.01, per_token=3e-5),
        transfer=TransferCost(base=0.003, per_token=5e-7),
    )
    fleet = Fleet(
        prefill=PrefillFleet(replicas=max(4, options.ranks // 4)),
        decode=DecodeFleet(dp=options.ranks, dp_attention=True, slots=64, kv_tokens=400_000),
        router=RouterFleet(decode_policy=options.policy),
    )
    simulation = Simulation(fleet, cost, generate(azure_like(options.rate, options.seconds)))
    early: list[float] = []
    simulation.events.at(options.seconds / options.parts, lambda: early.append(peak_mib()))
    wall, cpu = time.perf_counter(), time.process_time()
    recorder = simulation.run()
    figures: dict[str, Any] = recorder.result()
    result.keys["hour_s"] = time.perf_counter() - wall
    result.keys["cpu_s"] = time.process_time() - cpu
    result.keys["peak_gib"] = peak_mib() / 1024
    result.keys["growth_mib"] = peak_mib() - early[0]
    result.keys |= {
        "simulated_s": simulation.events.now,
        "requests": recorder.ended,
        "events": simulation.events.handled,
        "rounds": pool.rounds if (pool := simulation.router.decider.pool) else 0,
        "steps": sum(group.steps for group in simulation.groups),
        "kv_spread": figures["kv_spread"],
        "tpot_mean_ms": figures["tpot_mean"] * 1e3,
    }
    result.emit(recorder.ended)


def peak_mib() -> float:
    """Of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
