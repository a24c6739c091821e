"""Published results beside simulated ones, in one table.

BalanceRoute (arXiv 2605.06113), DeepSeek-V3 on 8 decode ranks: mean max - min KV tokens, p95 TPOT
and tokens/s of seven policies, and the throughput gain with 4, 8 and 16 ranks. Its traces are one
proprietary one and Azure-2024. In place of the first: the lengths of `shared.kinds`'
conversations (fitted to Mooncake's; `--trace FILE`: of another trace), scaled to a mean prompt of
`--prompt` tokens. In place of the second: `--azure FILE`, an Azure trace as it is (here that of
2023, code), which has no gain to compare. Every prompt comes three times in the mean, its answers
spread by `--repeat-spread` (lognormal), so that the predictor *exact match* has something to match
and no foresight. What the paper does not say was worked out from what it does:

- tokens/s times TPOT are 70 to 80 requests at a time. That must be of one rank: equal numbers of 9
  or 10 requests that differ by 215,000 tokens would need prompts of 46,000, and then no policy
  gets to a tenth of that.
- The baselines run 70 of them and BR-H 80. So KV pools bind: where the heaviest rank is full at
  `--kv-tokens`, all others are lighter by half the spread.
- A step grows by 35 ns for each token of the heaviest rank, and takes the published 83 ms when one
  is full. 2 prefill workers with 4 ranks, 5 with 16 (48 and 144 NPUs).

Two sizes of prefill workers (`--prefill-kv`, tokens of each). With as much as prefill needs, ranks
stay lighter because of what a policy does. With 64,000 the baselines' spreads are the published
ones, for another reason: they bind requests to full ranks, and the KV that waits for those fills
the prefill workers, which stand still (keys with `starved_`). So most of what is gained there is
the pool's, which the second column of balancers has too (`pooled@`).

Policies are the paper's (`br0@paper`, `brh@paper`: gamma 0.9), beside them ours (`br0`, `brh`,
`level`); `oracle` knows every answer's length, `exact_match` what the same prompt got before.

Gimbal's ablation: see `gimbal_simulated`. ELDR's pools of decode workers: see `eldr_simulated`.

keys: `gimbal`, `gimbal_prefix`, `eldr` (see there); `balance_route`, for each policy the means over
seeds and what the paper has; `against`, for each policy that is no balancer and each column the
ratios to the balancer with the most tokens/s, with 95 % intervals over seeds; spread_order_kept,
share of the pairs in the paper's order, of pairs of two balancers and of two of its own policies
(that those are more level than balancers is not counted); spread_error, the largest relative error
of the spread divided by shortest queue's; gain_4, gain_8, gain_16: tokens/s of `brh@paper:oracle`
over the best balancer of each column, ratios with intervals, and the paper's gain; with `--azure`
the same keys with `azure_` in front.
"""

import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks import eldr_simulated, gimbal_simulated
from tests.benchmarks.shared.balancers import (
    BALANCERS,
    COLUMNS,
    POOLED,
    Rounds,
    against,
    all_against,
    is_balancer,
    mean,
)
from tests.benchmarks.shared.common import Result, arguments
from toolkit.bench.stats import Ratio
from toolkit.simulate.costs.linear import Decode, Linear, Prefill, TransferCost
from toolkit.simulate.fleet import DecodeFleet, Fleet, PrefillFleet, RouterFleet
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation, Window

MEASURES = ("toolkit/policies", "toolkit/simulate")


class Row(NamedTuple):
    """max - min KV tokens, p95 TPOT ms, tokens/s of one rank."""

    spread: float
    tpot: float
    tokens: float


class Setting(NamedTuple):
    """A table of the paper and what stands in for its trace; lengths are means, None as they
    are."""

    title: str
    published: dict[str, Row]
    trace: str | None
    prompt: float | None
    answer: float | None
    in_flight: int
    requests: int


PROPRIETARY = {
    "random": Row(438225, 85.2, 811),
    "round_robin": Row(254798, 83.2, 847),
    "power_of_two": Row(262940, 84.0, 836),
    "shortest_queue": Row(215110, 83.2, 843),
    "br0@paper": Row(51927, 79.3, 943),
    "brh@paper:exact_match": Row(36277, 78.8, 977),
    "brh@paper:oracle": Row(23577, 78.0, 1029),
}
AZURE = {
    "random": Row(146564, 90.3, 706),
    "round_robin": Row(110049, 89.1, 771),
    "power_of_two": Row(109033, 89.3, 794),
    "shortest_queue": Row(104737, 89.3, 785),
    "br0@paper": Row(54051, 83.3, 854),
    "brh@paper:exact_match": Row(38496, 82.3, 909),
    "brh@paper:oracle": Row(35301, 77.3, 957),
}
OURS = ("br0", "brh", "level")
ORACLE = "brh@paper:oracle"
LEAD = "tokens"
AMPLE, STARVED = 4_000_000, 64_000
GAINS = {4: 0.134, 8: 0.215, 16: 0.345}
PREFILLS = {4: 2, 8: 3, 16: 5}
AZURE_IN_FLIGHT = 72
COST = Linear(
    decode=Decode(base=0.0567, per_kv_token=3.5e-8),
    prefill=Prefill(base=0.01, per_token=5e-6),
    transfer=TransferCost(base=0.01, per_token=1e-7),
)
LONGEST = (64_000, 4_000)
SLOTS = 128
"""Of each rank: never all taken."""


def requests(
    setting: Setting, count: int, seed: int, told: bool, spread: float
) -> Iterator[Request]:
    """Lengths of a trace or made ones; every prompt comes three times on average, with answers that
    differ by a lognormal of that `spread`."""
    from tests.benchmarks.shared.kinds import draw, of_trace, scaled
    from toolkit.bench.traces import load

    if setting.trace:
        drawn = of_trace(load(Path(setting.trace)), count, seed)
    else:
        drawn = [one for one in draw(3 * count, seed) if one.user.startswith("conversation")]
    lengths = drawn[:count]
    if setting.prompt is not None and setting.answer is not None:
        lengths = scaled(lengths, setting.prompt, setting.answer, LONGEST)
    answers = random.Random(f"repeats-{seed}")
    for number in range(count):
        prompt = (number * 7919 + seed) % max(1, len(lengths) // 3)
        one = lengths[prompt]
        answer = max(1, round(one.answer * answers.lognormvariate(-(spread**2) / 2, spread)))
        yield Request(number, 0.0, one.prompt, answer, prompt_id=prompt, told=told)


def played(
    policy: str, ranks: int, seed: int, setting: Setting, options: Any, prefill_kv: int
) -> dict[str, float]:
    """One policy in a closed loop, while it is full: the figures of a `Row`."""
    fleet = Fleet(
        prefill=PrefillFleet(replicas=PREFILLS[ranks], chunk=16_384, kv_tokens=prefill_kv),
        decode=DecodeFleet(dp=ranks, dp_attention=True, slots=SLOTS, kv_tokens=options.kv_tokens),
        router=RouterFleet(decode_policy=policy, parked_per_prefill=64),
    )
    made = requests(
        setting, setting.requests * ranks, seed, "oracle" in policy, options.repeat_spread
    )
    simulation = Simulation(
        fleet,
        COST,
        made,
        seed=seed,
        in_flight=setting.in_flight * ranks,
        window=Window(full=True),
        sample_s=0.5,
    )
    found = simulation.run()
    figures = found.result()
    tpot = found.all.tpot.percentile(95) * 1e3
    row = Row(figures["kv_spread"], tpot, figures["output_tokens_s"] / ranks)
    return row._asdict() | {"ttft_p99": figures["ttft_p99"]}


def rounds_of(
    policies: Sequence[str], ranks: int, setting: Setting, options: Any, prefill_kv: int
) -> Rounds:
    """Every policy on every seed."""
    return {
        policy: [
            played(policy, ranks, seed, setting, options, prefill_kv)
            for seed in range(options.seeds)
        ]
        for policy in policies
    }


def add(result: Result, setting: Setting, options: Any, prefill_kv: int, prefix: str = "") -> int:
    """One of the paper's tables on 8 ranks, its keys with `prefix`; simulations."""
    published = setting.published
    policies = list(dict.fromkeys((*published, *OURS, *BALANCERS, *POOLED)))
    rounds = rounds_of(policies, 8, setting, options, prefill_kv)
    keys = {}
    for policy in policies:
        paper = published.get(policy)
        means = {figure: mean(rounds, policy, figure) for figure in (*Row._fields, "ttft_p99")}
        keys[policy] = {"ours": means, "paper": None if paper is None else paper._asdict()}
    result.keys[f"{prefix}balance_route"] = keys
    result.keys[f"{prefix}against"] = {
        arm: {column: one.keys() for column, one in found.items()}
        for arm, found in all_against(rounds, LEAD, ("spread", "tpot"), most=True).items()
    }

    def spread(policy: str) -> float:
        return mean(rounds, policy, "spread")

    # Whether ours beats a balancer is no finding of the order: only pairs within one kind are.
    pairs = [
        pair for pair in combinations(published, 2) if is_balancer(pair[0]) == is_balancer(pair[1])
    ]
    result.keys[f"{prefix}spread_order_kept"] = statistics.fmean(
        (spread(a) > spread(b)) == (published[a].spread > published[b].spread) for a, b in pairs
    )
    relative = {
        policy: (spread(policy) / spread("shortest_queue"))
        / (published[policy].spread / published["shortest_queue"].spread)
        for policy in published
    }
    result.keys[f"{prefix}spread_ratio_to_paper"] = relative
    result.keys[f"{prefix}spread_error"] = max(abs(value - 1) for value in relative.values())
    _show(setting, rounds, prefill_kv)
    return int(len(policies) * options.seeds)


def add_gains(result: Result, setting: Setting, options: Any) -> int:
    """Tokens/s of BR-H (oracle) over the best balancer of each column, as ranks grow."""
    runs = 0
    for ranks, gain in GAINS.items():
        policies = (ORACLE, *BALANCERS, *POOLED)
        rounds = rounds_of(policies, ranks, setting, options, AMPLE)
        runs += len(policies) * options.seeds
        result.keys[f"gain_{ranks}"] = {
            column: one.keys()
            for column, one in against(rounds, ORACLE, LEAD, (), most=True).items()
        }
        result.keys[f"paper_gain_{ranks}"] = gain
    return runs


def main() -> None:
    """Run the benchmark, print its tables and its line."""
    options = arguments(
        __doc__,
        ("--trace", {"help": "Azure CSV, Mooncake JSONL or lengths"}),
        ("--azure", {"help": "an Azure CSV, for the paper's second table"}),
        ("--prompt", {"type": float, "default": 8_000.0, "help": "mean tokens"}),
        ("--answer", {"type": float, "default": 350.0, "help": "mean tokens"}),
        ("--kv-tokens", {"type": int, "default": 757_000, "help": "of each rank"}),
        ("--in-flight", {"type": int, "default": 100, "help": "for each rank"}),
        ("--requests", {"type": int, "default": 800, "help": "for each rank"}),
        ("--repeat-spread", {"type": float, "default": 0.3, "help": "of a prompt's answers"}),
        ("--seeds", {"type": int, "default": 3}),
        ("--gimbal-trace", {"help": "lengths for Gimbal's ablation"}),
        ("--prompts", {"help": "of ELDR's pools, see eldr_simulated"}),
        ("--rows", {"help": "where what those prompts used is kept, see eldr_simulated"}),
        ("--only", {"choices": ("balance",), "help": "leave Gimbal and ELDR out"}),
    )
    if options.quick:
        options.seeds, options.requests = 1, 250
    result, runs = Result(), 0
    if not options.only:
        gimbal_simulated.add(result, options.gimbal_trace, options.seeds, options.quick)
        runs += eldr_simulated.add(result, options.seeds, options.quick, options)
    setting = Setting(
        *("proprietary", PROPRIETARY, options.trace, options.prompt, options.answer),
        *(options.in_flight, options.requests),
    )
    runs += add(result, setting, options, AMPLE)
    runs += add(result, setting, options, STARVED, "starved_")
    runs += add_gains(result, setting, options)
    if options.azure:
        answers = 5 * options.requests  # short ones
        azure = Setting("Azure", AZURE, options.azure, None, None, AZURE_IN_FLIGHT, answers)
        runs += add(result, azure, options, AMPLE, "azure_")
    result.emit(runs)


def _show(setting: Setting, rounds: Rounds, prefill_kv: int) -> None:
    from rich.console import Console
    from rich.table import Table

    title = (
        f"BalanceRoute, {setting.title}, 8 ranks, prefill workers of {prefill_kv:,} KV tokens: "
        "simulated (paper)"
    )
    table = Table(title=title, title_justify="left")
    names = ("policy", "max - min", "to shortest queue", "p95 TPOT ms", "tokens/s a rank")
    for name in (*names, *(f"to best {column}" for column in COLUMNS)):
        table.add_column(name, justify="left" if name == "policy" else "right")
    base = mean(rounds, "shortest_queue", "spread")
    queue = setting.published["shortest_queue"].spread
    for policy in rounds:
        row = Row(*(mean(rounds, policy, figure) for figure in Row._fields))
        paper = setting.published.get(policy)
        ours = {} if is_balancer(policy) else against(rounds, policy, LEAD, (), most=True)
        table.add_row(
            policy,
            f"{row.spread:,.0f}" + (f" ({paper.spread:,.0f})" if paper else ""),
            f"{row.spread / base:.2f}" + (f" ({paper.spread / queue:.2f})" if paper else ""),
            f"{row.tpot:.1f}" + (f" ({paper.tpot})" if paper else ""),
            f"{row.tokens:.0f}" + (f" ({paper.tokens:.0f})" if paper else ""),
            *(_interval(ours[column].ratios[LEAD]) if column in ours else "" for column in COLUMNS),
        )
    Console(stderr=True, width=None if sys.stderr.isatty() else 200).print(table)


def _interval(ratio: Ratio) -> str:
    if ratio.pairs < 2:
        return f"{ratio.value:.3f}"
    return f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


if __name__ == "__main__":
    main()
