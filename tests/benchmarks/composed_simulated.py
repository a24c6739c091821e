"""`composed` against each of its parts alone, on mixed traffic, in the simulator.

Traffic: conversations of three turns in the mean in the domains and languages of the embedded
model's profile (`profiles/embedded`: which experts a request uses), 200 users of very different
rates, lognormal prompts (median 600 tokens a turn) and answers (200) with long tails, every fifth
request urgent (no policy looks at that: it is shown apart), Poisson in bursts at `--load` of what
shortest queue carries in a closed loop. Prefill workers are never short.

Eight decode ranks with DP attention, in two settings: `one_server` of eight ranks, whose experts
lie on all eight GPUs, so that the experts of a step are those of all requests wherever they run,
and locality can gain nothing; `four_servers` of two ranks each, among which it chooses a server.
Step times are a data sheet's (H200, Qwen3-30B-A3B; `cost`), in which batch, KV and experts all
count: on the embedded model's own coefficients KV does not.

Arms: `composed` (filter, locality, level, user), and alone `eldr`, `level`, `brh@learned`, `gimbal`
(user affinity while no pool is 0.9 full; decode ranks keep no prefixes, so it gains nothing here),
and `shortest_queue`. `composed@filter+level+user` is what is left without locality.

keys: by setting, `rate` (requests/s), `arms` (each one's figures, means over seeds: seconds,
`distinct` experts of a group's step, `full_tokens_s`: tokens/s of a closed loop that fills all
slots), `ratios`: composed divided by each other arm, on the same requests, geometric mean and 95 %
interval over seeds.
"""

import statistics
import sys
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.simulated import cost
from toolkit.bench.stats import paired_ratio
from toolkit.resources import profiles_dir
from toolkit.simulate.costs.linear import Linear
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.fleet import DecodeFleet, Fleet, PrefillFleet, RouterFleet
from toolkit.simulate.recorder import Recorder
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation, Window
from toolkit.simulate.workloads.patterns import with_rows
from toolkit.simulate.workloads.traffic import RequestKind, TrafficModel, generate, mixed

ARMS = (
    "composed",
    "eldr",
    "level",
    "brh@learned",
    "gimbal",
    "shortest_queue",
    "composed@filter+level+user",
)
SETTINGS = {"one_server": (1, 8), "four_servers": (4, 2)}
"""Servers, ranks of each."""
RANKS, SLOTS, POOL = 8, 32, 200_000
BASE = RequestKind(
    name="",
    share=1,
    prompt=(600.0, 1.0),
    answer=(200.0, 0.8),
    turns=3.0,
    pause=20.0,
    urgent=0.2,
)
FIGURES = ("tpot_mean", "tpot_p99", "ttft_mean", "ttft_p99")
WARM_S = 30.0
"""Before that the fleet fills."""


def requests(
    experts: SimulatedExperts, rate: float, seconds: float, seed: int
) -> Iterator[Request]:
    """An equal share of each domain in each language that the profile has."""
    labels = sorted({labels[-1] for labels in experts.labels})
    kinds = mixed(dict.fromkeys(labels, 1.0), BASE)
    traffic = TrafficModel(
        rate=rate, seconds=seconds, kinds=kinds, clients=200, burst=1.3, longest=(24_000, 2_000)
    )
    return with_rows(generate(traffic, seed), experts, seed)


def fleet(policy: str, setting: str) -> Fleet:
    servers, ranks = SETTINGS[setting]
    return Fleet(
        prefill=PrefillFleet(replicas=16),
        decode=DecodeFleet(
            replicas=servers, dp=ranks, dp_attention=True, slots=SLOTS, kv_tokens=POOL
        ),
        router=RouterFleet(decode_policy=policy, parked_per_prefill=64),
    )


def full(
    policy: str,
    setting: str,
    step: Linear,
    experts: SimulatedExperts,
    made: Iterator[Request],
    seed: int,
) -> Recorder:
    """A closed loop that fills all slots."""
    window = Window(full=True)
    slots = RANKS * SLOTS
    return Simulation(fleet(policy, setting), step, made, experts, seed, slots, window).run()


def played(
    policy: str,
    setting: str,
    step: Linear,
    experts: SimulatedExperts,
    made: Iterator[Request],
    seed: int,
) -> dict[str, float]:
    """One run's figures."""
    window = Window(since=WARM_S)
    run = Simulation(fleet(policy, setting), step, made, experts, seed, window=window)
    recorder = run.run()
    result = recorder.result()
    found = {name: result[name] for name in FIGURES}
    found["urgent_ttft_mean"] = recorder.classes["latency_sensitive"].ttft.mean
    steps = sum(group.steps for group in run.groups)
    found["distinct"] = sum(group.distinct_steps for group in run.groups) / steps
    return found


def compared(setting: str, experts: SimulatedExperts, options: Any) -> dict[str, Any]:
    """All arms of a setting on the same requests."""
    step = cost(SETTINGS[setting][1], experts.layers * experts.experts)
    seconds = options.seconds
    begun = full("shortest_queue", setting, step, experts, requests(experts, 50, seconds, 0), 0)
    rate = options.load * begun.all.requests / begun.result()["seconds"]
    each: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for seed in range(options.seeds):
        for arm, rows in each.items():
            made = requests(experts, rate, WARM_S + seconds, seed)
            rows.append(played(arm, setting, step, experts, made, seed))
            made = requests(experts, rate, seconds, seed)
            filled = full(arm, setting, step, experts, made, seed).result()
            rows[-1]["full_tokens_s"] = filled["output_tokens_s"]
            print(f"{setting} seed {seed} {arm}: {rows[-1]}", file=sys.stderr, flush=True)
    means = {
        arm: {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}
        for arm, rows in each.items()
    }
    return {"rate": rate, "arms": means, "ratios": _ratios(each)}


def _ratios(each: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    ours = each[ARMS[0]]
    for arm in ARMS[1:]:
        found[arm] = {}
        for name in ours[0]:
            pairs = zip(ours, each[arm], strict=True)
            one, two = zip(*((a[name], b[name]) for a, b in pairs), strict=True)
            found[arm] |= paired_ratio(one, two).keys(name)
    return found


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--seeds", {"type": int, "default": 3}),
        ("--load", {"type": float, "default": 0.85, "help": "of what shortest queue carries"}),
        ("--seconds", {"type": float, "default": 40.0, "help": "of traffic that is looked at"}),
    )
    if options.quick:
        options.seeds, options.seconds = 2, 15.0
    result = Result()
    experts = SimulatedExperts.of_profile(profiles_dir() / "embedded")
    result.keys = {setting: compared(setting, experts, options) for setting in SETTINGS}
    result.emit(options.seeds * len(ARMS) * len(SETTINGS))


if __name__ == "__main__":
    main()
