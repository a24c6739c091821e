"""Published results beside simulated ones, in one table.

BalanceRoute (arXiv 2605.06113), DeepSeek-V3 on 8 decode ranks: mean max - min KV tokens, p95 TPOT
and tokens/s of seven policies, and the throughput gain with 4, 8 and 16 ranks. Its traces are
not public (one is proprietary) or not here: `--trace FILE` plays the lengths of another one, by
default those of `toolkit.bench.lengths`' conversations (fitted to Mooncake's), all prompts scaled
to a mean of `--prompt` tokens. What the paper does not say was worked out from what it does:
tokens/s times TPOT are 69 to 80 requests at a time, 9 to 10 a rank; with shortest queue equal
numbers of them differ by 215,000 tokens, so prompts are about 46,000 tokens; a step grows by 35 ns
for each token of the heaviest rank above 64 ms. Throughput rises by more than steps get shorter, so
ranks are full: a pool of `--kv-tokens` and `--slots` requests, and more in flight than fit.

Gimbal's ablation: see `gimbal_simulated`. ELDR's pools of decode workers: see `eldr_simulated`.

keys: `gimbal`, `gimbal_prefix`, `eldr` (see there); `balance_route`, for each policy ours and the
paper's; spread_order_kept, share of the pairs of policies in the paper's order; spread_error, the
largest relative error of the spread divided by shortest queue's; gain_4, gain_8, gain_16, the
tokens/s of BR-H (oracle) over the best baseline.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks import eldr_simulated, gimbal_simulated
from tests.benchmarks.common import Result, arguments
from toolkit.simulate.costs.linear import Decode, Linear, Prefill, Transfer
from toolkit.simulate.fleet import DecodeFleet, Fleet, PrefillFleet, RouterFleet
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation, Window


class Row(NamedTuple):
    """max - min KV tokens, p95 TPOT ms, tokens/s."""

    spread: float
    tpot: float
    tokens: float


BALANCE_ROUTE = {
    "random": Row(438225, 85.2, 811),
    "round_robin": Row(254798, 83.2, 847),
    "power_of_two": Row(262940, 84.0, 836),
    "shortest_queue": Row(215110, 83.2, 843),
    "br0": Row(51927, 79.3, 943),
    "brh@exact_match": Row(36277, 78.8, 977),
    "brh@oracle": Row(23577, 78.0, 1029),
}
BASELINES = ("random", "round_robin", "power_of_two", "shortest_queue")
GAINS = {4: 0.134, 8: 0.215, 16: 0.345}
COST = Linear(
    decode=Decode(base=0.064, per_kv_token=3.5e-8),
    prefill=Prefill(base=0.02, per_token=2e-5),
    transfer=Transfer(base=0.01, per_token=1e-6),
)
LONGEST = (128_000, 4_000)


def requests(options: Any, count: int, seed: int, told: bool) -> Iterator[Request]:
    """Lengths of a trace or made ones; every prompt comes three times on average, as an exact match
    needs something to match."""
    from toolkit.bench.lengths import draw, of_trace, scaled
    from toolkit.bench.traces import load

    if options.trace:
        drawn = of_trace(load(Path(options.trace)), count, seed)
    else:
        drawn = [one for one in draw(3 * count, seed) if one.user.startswith("conversation")]
    lengths = scaled(drawn[:count], options.prompt, options.answer, LONGEST)
    for number in range(count):
        one = lengths[(number * 7919 + seed) % max(1, len(lengths) // 3)]
        yield Request(
            number, 0.0, one.prompt, one.answer, prompt_id=hash((one.prompt, one.answer)), told=told
        )


def played(policy: str, ranks: int, seed: int, options: Any) -> Row:
    """One policy in a closed loop, while it is full."""
    fleet = Fleet(
        prefill=PrefillFleet(replicas=4 * ranks, chunk=16_384),
        decode=DecodeFleet(
            dp=ranks, dp_attention=True, slots=options.slots, kv_tokens=options.kv_tokens
        ),
        router=RouterFleet(decode_policy=policy, parked_per_prefill=1),
    )
    simulation = Simulation(
        fleet,
        COST,
        requests(options, options.requests * ranks, seed, "oracle" in policy),
        seed=seed,
        in_flight=options.in_flight * ranks,
        window=Window(full=True),
        sample_s=0.5,
    )
    found = simulation.run()
    figures = found.result()
    return Row(
        figures["kv_spread"], found.all.tpot.percentile(95) * 1e3, figures["output_tokens_s"]
    )


def median(policy: str, ranks: int, options: Any) -> Row:
    rows = [played(policy, ranks, seed, options) for seed in range(options.seeds)]
    return Row(*(statistics.median(values) for values in zip(*rows, strict=True)))


def main() -> None:
    """Run the benchmark, print its tables and its line."""
    options = arguments(
        __doc__,
        ("--trace", {"help": "Azure CSV, Mooncake JSONL or lengths"}),
        ("--prompt", {"type": float, "default": 46_000.0, "help": "mean tokens"}),
        ("--answer", {"type": float, "default": 350.0, "help": "mean tokens"}),
        ("--slots", {"type": int, "default": 12, "help": "of each rank"}),
        ("--kv-tokens", {"type": int, "default": 550_000, "help": "of each rank"}),
        ("--in-flight", {"type": int, "default": 18, "help": "for each rank"}),
        ("--requests", {"type": int, "default": 250, "help": "for each rank"}),
        ("--seeds", {"type": int, "default": 3}),
        ("--gimbal-trace", {"help": "lengths for Gimbal's ablation"}),
    )
    if options.quick:
        options.seeds, options.requests = 1, 100
    result = Result()
    gimbal_simulated.add(result, options.gimbal_trace, options.seeds, options.quick)
    runs = eldr_simulated.add(result, options.seeds, options.quick)
    ours = {policy: median(policy, 8, options) for policy in BALANCE_ROUTE}
    result.keys["balance_route"] = {
        policy: {"ours": row._asdict(), "paper": BALANCE_ROUTE[policy]._asdict()}
        for policy, row in ours.items()
    }
    pairs = list(combinations(BALANCE_ROUTE, 2))
    result.keys["spread_order_kept"] = statistics.fmean(
        (ours[a].spread > ours[b].spread) == (BALANCE_ROUTE[a].spread > BALANCE_ROUTE[b].spread)
        for a, b in pairs
    )
    relative = {
        policy: (row.spread / ours["shortest_queue"].spread)
        / (BALANCE_ROUTE[policy].spread / BALANCE_ROUTE["shortest_queue"].spread)
        for policy, row in ours.items()
    }
    result.keys["spread_ratio_to_paper"] = relative
    result.keys["spread_error"] = max(abs(value - 1) for value in relative.values())
    for ranks, gain in GAINS.items():
        rows = {p: median(p, ranks, options).tokens for p in (*BASELINES, "brh@oracle")}
        best = max(rows[policy] for policy in BASELINES)
        result.keys[f"gain_{ranks}"] = rows["brh@oracle"] / best - 1
        result.keys[f"paper_gain_{ranks}"] = gain
    _show(ours)
    result.emit(runs + options.seeds * (len(BALANCE_ROUTE) + len(GAINS) * 5))


def _show(ours: dict[str, Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="BalanceRoute, 8 ranks: simulated (paper)", title_justify="left")
    for name in ("policy", "max - min", "to shortest queue", "p95 TPOT ms", "tokens/s"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for policy, row in ours.items():
        paper = BALANCE_ROUTE[policy]
        base, published = ours["shortest_queue"].spread, BALANCE_ROUTE["shortest_queue"].spread
        table.add_row(
            policy,
            f"{row.spread:,.0f} ({paper.spread:,.0f})",
            f"{row.spread / base:.2f} ({paper.spread / published:.2f})",
            f"{row.tpot:.1f} ({paper.tpot})",
            f"{row.tokens:.0f} ({paper.tokens:.0f})",
        )
    Console(stderr=True).print(table)


if __name__ == "__main__":
    main()
