"""QLLM's published setting in the simulator: preemption at GPU step times and Mixtral's shape.

One worker that prefills and decodes, Mixtral-8x7B at 4 bits on an A100 of 80 GB (32 layers),
lengths like ShareGPT's (`--prompt`: longer BE prompts), 20 % latency-sensitive (LS) and 80 %
best-effort (BE) requests, Poisson arrivals of 1 to 7 requests a second, LS SLO 3 s to the first
token. `--requests` arrive, the run ends with the last answer, and all are counted: where the rate
is more than the worker can take, the mean TTFT of arms that make LS requests wait grows with that
number.

Step times (`--steps`), by data sheets and the paper, sources in `tests.benchmarks.shared.mixtral`.
`published`: a single decode step takes 0.3 s, as the paper says of its Hugging Face engine.
`roofline`: what an engine with CUDA graphs could reach, 22 ms for 32 requests.

Arms, all without an overlap scheduler, at most 32 requests at a time as the paper's, or 256
(`@256`: KV for 374,000 tokens fits, which is hardly a limit here):

- `static`: run to completion: up to 32 of those that wait make a batch, in order of arrival, which
  is prefilled in one pass and decoded until its last answer has ended; then the next 32. Who has
  ended leaves the batch (a real static batch goes on computing for it), so this is its best case.
- `fcfs`: continuous batching in order of arrival, prompts first and whole: what the paper says of
  TGI, its baseline.
- `priorities`: LS first in the queue, prompts in chunks of 512: what SGLang offers.
- `ours`: preemption, strict, one layer a slice, a GPU's slice under way at each look. A look costs
  nothing here (`Steps.per_slice`): it has not been measured on a GPU.

QLLM's own limit of 32 is of a batch, which it chooses anew at every step (Algorithm 1); requests
beyond that keep their KV. Ours take no turns: a LS request waits for a slot, so that `ours` is what
32 slots allow, and `ours@256` is nearer to the paper's. What of it the slots alone do is seen in
`fcfs@256`.

keys: `rates`; for each of the steps: `arms`: by arm, for each rate, means over seeds (`ls_ttft`,
`be_e2e` and so on: mean seconds; `ls_p99`: TTFT; `ls_good`: share of LS requests within the SLO;
`tokens_s`).
`ratios`: of `ours@256` against every other arm, and of `ours` against those with as many slots; of
LS mean TTFT and turnaround (`ls_ttft`, `ls_e2e`: the other one divided by ours), BE mean turnaround
and throughput (`be_e2e`, `tokens_s`: ours divided by the other one); `value`, `low`, `high`: over
all rates (geometric mean, 95 % interval over seeds), `most` and `least` at one rate. `held`: by arm
the highest rate up to which the mean LS TTFT is within the SLO, `attained`: up to which 90 % of LS
requests are.
"""

import statistics
from typing import Any

from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.conditions import of_conditions
from tests.benchmarks.shared.mixtral import (
    KV_TOKENS,
    LAYERS,
    PROMPT,
    PUBLISHED,
    ROOFLINE,
    Steps,
    requests,
)
from toolkit.bench.stats import paired_ratio
from toolkit.contract.preempting import Preempting
from toolkit.simulate.fleet import Fleet, RouterFleet, Stopping, WorkerFleet
from toolkit.simulate.simulation import Simulation

MEASURES = ("toolkit/policies/preemption", "toolkit/simulate")

SLO_S = 3.0
ATTAINMENT = 0.9
SLOTS = 32
WHOLE = 1 << 16
"""Prompt tokens of a pass: all that 32 requests have."""
STEPS = {"published": PUBLISHED, "roofline": ROOFLINE}
ARMS: dict[str, dict[str, Any]] = {
    "static": {"chunk": WHOLE, "static": True},
    "fcfs": {"chunk": WHOLE},
    "priorities": {"chunk": 512, "priorities": True},
    "ours": {"chunk": WHOLE, "preempt": Stopping(rules=Preempting(), layers=LAYERS, ahead=True)},
}
NAMES = ("static", "fcfs", "priorities", "ours", "fcfs@256", "priorities@256", "ours@256")
AGAINST = {
    "ours@256": tuple(name for name in NAMES if name != "ours@256"),
    "ours": ("static", "fcfs", "priorities"),
}
CLAIMS = """published, against TGI (continuous batching of 32, in order of arrival):
  LS mean TTFT 65.5 times less (abstract; 65.2 in V), 101.6 at best; SLO held up to 7 requests/s
  LS turnaround up to 12.8 times less; BE turnaround 1.38 times, 2.04 at worst; throughput alike"""
FIGURES = {
    "ls_ttft": "latency_sensitive.ttft_mean",
    "ls_p99": "latency_sensitive.ttft_p99",
    "ls_e2e": "latency_sensitive.e2e_mean",
    "ls_good": "latency_sensitive.good_share",
    "be_ttft": "best_effort.ttft_mean",
    "be_e2e": "best_effort.e2e_mean",
    "tokens_s": "output_tokens_s",
}
Runs = dict[str, list[list[dict[str, float]]]]
"""By arm, figures[rate][seed]."""


def fleet(name: str) -> Fleet:
    """An arm; `@N`: with so many requests at a time."""
    arm, _, slots = name.partition("@")
    worker = WorkerFleet(slots=int(slots or SLOTS), kv_tokens=KV_TOKENS, loop="plain", **ARMS[arm])
    router = RouterFleet(decode_policy="round_robin", classes=arm == "ours")
    return Fleet(worker=worker, router=router)


def played(
    name: str, steps: Steps, rate: float, seed: int, count: int, prompt: float = PROMPT.mean
) -> dict[str, float]:
    """One run's figures."""
    made = requests(count, rate, seed, prompt=prompt)
    slo = (float("inf"), float("inf"), SLO_S)
    found = Simulation(fleet(name), steps, made, seed=seed, slo=slo, sample_s=1e9).run().result()
    return {key: float(found[figure]) for key, figure in FIGURES.items()}


def mean(runs: Runs, arm: str, rate: int, key: str) -> float:
    return statistics.fmean(each[key] for each in runs[arm][rate])


def ratio(runs: Runs, ours: str, other: str, key: str) -> dict[str, float]:
    """The geometric mean over rates with its interval over seeds, the greatest and the least of a
    rate (over seeds)."""
    both = [[[each[key] for each in rate] for rate in runs[arm]] for arm in (ours, other)]
    whole = of_conditions(*both)
    rates = [paired_ratio(a, b).value for a, b in zip(*both, strict=True)]
    return {"value": whole.value, "low": whole.low, "high": whole.high} | {
        "most": max(rates),
        "least": min(rates),
    }


def held(runs: Runs, arm: str, rates: list[float], key: str) -> float:
    """The highest rate up to which every one keeps the SLO; 0 where the first does not."""
    best = 0.0
    for place, rate in enumerate(rates):
        found = mean(runs, arm, place, key)
        if not (found <= SLO_S if key == "ls_ttft" else found >= ATTAINMENT):
            break
        best = rate
    return best


def compared(runs: Runs, rates: list[float]) -> dict[str, Any]:
    """The keys of one kind of steps."""
    return {
        "arms": {
            arm: {key: [mean(runs, arm, n, key) for n in range(len(rates))] for key in FIGURES}
            for arm in runs
        },
        "ratios": {
            ours: {
                key: {
                    arm: ratio(runs, *((arm, ours) if less else (ours, arm)), key) for arm in others
                }
                for key, (_, less) in COMPARED.items()
            }
            for ours, others in AGAINST.items()
        },
        "held": {arm: held(runs, arm, rates, "ls_ttft") for arm in runs},
        "attained": {arm: held(runs, arm, rates, "ls_good") for arm in runs},
    }


SHOWN = (
    ("ls_ttft", "LS mean TTFT, s", 1, 2),
    ("ls_good", f"LS within {SLO_S:g} s, %", 100, 1),
    ("be_e2e", "BE mean turnaround, s", 1, 1),
    ("tokens_s", "tokens/s", 1, 0),
)
COMPARED = {
    "ls_ttft": ("LS mean TTFT, how many times less than", True),
    "ls_e2e": ("LS mean turnaround, how many times less than", True),
    "be_e2e": ("BE mean turnaround, how many times that of", False),
    "tokens_s": ("tokens/s, how many times that of", False),
}
"""In words, and whether it is the other one that is divided by ours."""


def show(title: str, runs: Runs, found: dict[str, Any], rates: list[float]) -> None:
    """The tables: each figure by rate, then ratios."""
    print(f"\n{title}")
    for key, words, by, digits in SHOWN:
        print(f"{words:24}" + "".join(f"{rate:>9g}" for rate in rates) + "  requests/s")
        for arm in runs:
            cells = [f"{mean(runs, arm, n, key) * by:9.{digits}f}" for n in range(len(rates))]
            print(f"  {arm:22}" + "".join(cells))
    for ours, ratios in found["ratios"].items():
        for key, (words, _) in COMPARED.items():
            print(f"{ours}: {words} (95 % interval over seeds; at one rate)")
            for arm, one in ratios[key].items():
                interval = f"{one['low']:.2f} to {one['high']:.2f}"
                ends = f"{one['least']:.2f} to {one['most']:.2f}"
                print(f"  {arm:22}{one['value']:9.2f}  ({interval}; {ends})")
    print("highest rate with the mean LS TTFT within the SLO / with 90 % of LS requests within it")
    for arm in runs:
        print(f"  {arm:22}{found['held'][arm]:8g} / {found['attained'][arm]:g}")


def main() -> None:
    """Run the benchmark, print its tables and its line."""
    options = arguments(
        __doc__,
        ("--steps", {"choices": [*STEPS, "both"], "default": "both"}),
        ("--rates", {"default": "1,2,3,4,5,6,7", "help": "requests a second"}),
        ("--seeds", {"type": int, "default": 5}),
        ("--requests", {"type": int, "default": 400, "help": "of each run"}),
        ("--prompt", {"type": float, "default": PROMPT.mean, "help": "mean tokens, BE"}),
    )
    if options.quick:
        options.seeds, options.requests, options.rates = 2, 100, "1,4,7"
    rates = [float(rate) for rate in options.rates.split(",")]
    result, samples, count = Result(), 0, options.requests
    result.keys["rates"] = rates
    for kind in STEPS if options.steps == "both" else (options.steps,):
        runs: Runs = {
            arm: [
                [
                    played(arm, STEPS[kind], rate, seed, count, options.prompt)
                    for seed in range(options.seeds)
                ]
                for rate in rates
            ]
            for arm in NAMES
        }
        found = compared(runs, rates)
        result.keys[kind] = found
        samples += len(NAMES) * len(rates) * options.seeds * count
        show(
            f"{kind} steps, {options.seeds} seeds, {options.requests} requests", runs, found, rates
        )
    print("\n" + "\n".join(CLAIMS))
    result.emit(samples)


if __name__ == "__main__":
    main()
