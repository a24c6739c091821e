"""A draft against none on GPUs, simulated: NVIDIA's measured kernels, H200.

Per batch of one decode rank (of each of eight for DeepSeek-V3, whose ranks step together), with
requests of LENGTH KV tokens and experts used evenly: how much longer a step takes that verifies a
chain of `steps` drafted tokens and the last one. That is how many tokens such a step must give a
request to pay. A pass of the draft takes one layer's share (`toolkit.simulate.costs.drafted`).
Nothing of this ran; all-to-all of wide servers, CUDA graphs that are captured for other sizes, and
what a scheduler does between steps are not in it.

Then DeepSeek-V3 as its authors run it, one drafted token: of those, 85 to 90 % were right
(arXiv 2412.19437, section 5.4.3), which is ACCEPTED tokens a step. A closed loop of so many in
flight on 8 prefill and 8 decode ranks, the same requests with the draft and without.

`check`: the same arithmetic on the embedded model's profile beside the steps that
`tests.benchmarks.speculation` measured on a CPU.

keys: pays_M_K_B (model M, K drafted tokens, batch B); for N in flight a rank: tpot_ratio_N,
ttft_ratio_N, throughput_ratio_N, with the draft / without, with their 95 % intervals over seeds;
check: by number in flight `told` and `measured` ratio of steps, with the measured interval.
"""

import json
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from itertools import islice
from typing import Any

from tests.benchmarks.shared.common import RESULTS, Result, arguments, interval
from tests.benchmarks.systems import CASES
from toolkit.resources import profiles_dir
from toolkit.simulate.costs import load
from toolkit.simulate.costs.aic import Aic
from toolkit.simulate.costs.base import CostModel
from toolkit.simulate.costs.drafted import drafted
from toolkit.simulate.drafting import Drafting
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.fleet import DecodeFleet, Fleet, PrefillFleet, RouterFleet
from toolkit.simulate.simulation import Simulation
from toolkit.simulate.workloads.traffic import RequestKind, TrafficModel, generate

MEASURES = ("toolkit/simulate",)
MODELS = {
    "qwen3": ("Qwen3-30B-A3B on 8 x H200", 48),
    "gpt_oss": ("GPT-OSS-120B on 8 x H200", 36),
    "deepseek": ("DeepSeek-V3 on 2 x 8 x H200", 61),
}
"""Cases of `systems`, and layers."""
STEPS = (1, 3)
BATCHES = (1, 4, 16, 48, 128)
LENGTH = 1_350
ACCEPTED = 1.85
IN_FLIGHT = (4, 16, 48, 128)
RANKS = 8
ROUNDS = 5
"""How often every place is taken."""
KIND = RequestKind(name="", share=1, prompt=(1000.0, 1.0), answer=(350.0, 0.8))
LONGEST = (16_000, 2_000)
CHECKED = (1, 4, 16)


def chain(steps: int, accepted: float, layers: int) -> Drafting:
    """So many drafted tokens one after the other, one verified beside them."""
    return Drafting(accepted=accepted, verified=steps + 1, passes=steps, share=1 / layers)


def slower(
    cost: CostModel, draft: Drafting, batch: int, ranks: int, distinct: tuple[float, float]
) -> float:
    """How much longer a step takes with the draft. `distinct`: experts without and with it."""
    import numpy as np

    count = np.full(ranks, batch)
    without = cost.decode_s(count, count * LENGTH, distinct[0])
    return drafted(cost, draft).decode_s(count, count * LENGTH, distinct[1]) / without


def played(cost: CostModel, in_flight: int, draft: Drafting | None, seed: int) -> dict[str, Any]:
    """DeepSeek-V3, as many in flight a rank."""
    case = CASES[MODELS["deepseek"][0]]
    fleet = Fleet(
        prefill=PrefillFleet(replicas=RANKS, kv_tokens=case.kv_tokens),
        decode=DecodeFleet(dp=RANKS, dp_attention=True, slots=256, kv_tokens=case.kv_tokens),
        router=RouterFleet(decode_policy="level", first_token="prefill"),
        drafting=draft,
    )
    count = ROUNDS * RANKS * in_flight
    traffic = TrafficModel(rate=100.0, seconds=count / 25, kinds=(KIND,), longest=LONGEST)
    requests = islice(generate(traffic, seed), count)
    simulation = Simulation(fleet, cost, requests, seed=seed, in_flight=RANKS * in_flight)
    return simulation.run().result()


def check() -> dict[str, Any]:
    """The embedded model on a CPU."""
    import numpy as np

    folder = profiles_dir() / "embedded"
    cost, experts = load("embedded"), SimulatedExperts.of_profile(folder)
    absent = np.exp(experts.absent).mean(axis=0)
    line = (RESULTS / "speculation.jsonl").read_text().splitlines()[-1]
    measured = json.loads(line)["figures"]
    draft = chain(3, 2.0, experts.layers)
    found = {}
    for number in CHECKED:
        batch = round(measured[f"batch_{number}"])
        both = (batch, batch * draft.verified)
        one, many = (float((1 - absent**tokens).sum()) for tokens in both)
        name = f"step_ratio_{number}"
        found[str(number)] = {
            "told": slower(cost, draft, batch, 1, (one, many)),
            "measured": [measured[f"{name}{end}"] for end in ("", "_low", "_high")],
        }
    return found


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(__doc__, ("--seeds", {"type": int, "default": 5}))
    result = Result()
    models, in_flight = MODELS, list(IN_FLIGHT)
    if options.quick:
        options.seeds, models, in_flight = 2, {"qwen3": MODELS["qwen3"]}, []
    for model, (case, layers) in models.items():
        cost, ranks = Aic(CASES[case].spec), CASES[case].spec.dp
        for steps in STEPS:
            draft = chain(steps, 1.0, layers)
            for batch in BATCHES:
                ratio = slower(cost, draft, batch, ranks, (0.0, 0.0))
                result.keys[f"pays_{model}_{steps}_{batch}"] = ratio
    simulations = 0
    if in_flight:
        cost = Aic(CASES[MODELS["deepseek"][0]].spec)
        draft = chain(1, ACCEPTED, MODELS["deepseek"][1])
    for number in in_flight:
        runs = [
            [played(cost, number, which, seed) for which in (draft, None)]
            for seed in range(options.seeds)
        ]
        simulations += 2 * options.seeds
        for key, name in (
            ("tpot", "tpot_mean"), ("ttft", "ttft_mean"), ("throughput", "output_tokens_s")
        ):  # fmt: skip
            value, low, high = interval([ours[name] / without[name] for ours, without in runs])
            of = f"{key}_ratio_{number}"
            result.keys |= {of: value, f"{of}_low": low, f"{of}_high": high}
    result.keys |= {"check": check(), "seeds": options.seeds}
    result.emit(simulations)


if __name__ == "__main__":
    main()
