"""ELDR's published decode pools beside simulated ones: 8P16D, and 8 to 24 decode workers.

ELDR (arXiv 2607.00466), Qwen3-30B-A3B on MI300X, each worker a GPU with the whole model: TPOT p50
and p99 against round robin, mean over 20 to 100 requests a second, and p50 against the best load
balancer (random, round robin, power of two, shortest queue), on its `task` and `language` traffic.

Its activations are not public. Which experts a request uses is taken from the embedded model's
profile (`profiles/embedded`: 6 layers of 48 experts, 4 a token, where Qwen3 has 48 of 128 and 8).
Where that is more specialised than published, each row's chances are blended with the mean of all
rows until batches of 24 of one domain (`task`) or language activate as many fewer experts than
mixed ones as the paper measured (17 to 21 %, 3 to 10 %: the middle of each); what follows from that
is what is compared. `task`: the four published domains in equal shares, English. `language`:
English and Chinese three quarters, as in WildChat, all domains. Signatures are the profile's own,
centroids are fitted to a sample of the same traffic.
Step times are those of `composed_simulated`, with MI300X's data sheet. Prompts (median
300 tokens) and answers (350) with long tails, Poisson; the paper's lengths are not in our text.

keys: for each workload and pool (8, 16, 24): `p50`, `p99`: ELDR's TPOT divided by round robin's,
`p50_best`: by the best load balancer's, `distinct`: experts of a step against round robin's, each
the geometric mean over rates with its 95 % interval over rates and seeds; `paper`: published.
`blend`: the share of the mean in each row; `fewer`: experts that batches of one kind activate below
mixed ones with it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.common import Result, arguments
from tests.benchmarks.composed_simulated import cost
from tests.benchmarks.gimbal_simulated import told
from toolkit.bench.stats import paired_ratio
from toolkit.profile_folder import store
from toolkit.resources import profiles_dir
from toolkit.signatures.space import SignatureSpace
from toolkit.simulate.experts import Experts, Mixture
from toolkit.simulate.fleet import DecodeFleet, Fleet, PrefillFleet, RouterFleet
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation, Window
from toolkit.simulate.workloads.patterns import with_rows
from toolkit.simulate.workloads.traffic import Kind, Traffic, generate, mixed

LANGUAGES = {"en": 0.5, "zh": 0.25, "ru": 0.13, "fr": 0.12}
TASKS = {f"{domain}/en": 0.25 for domain in ("code", "math", "medical", "legal")}
WORKLOADS = {"task": TASKS, "language": LANGUAGES}
FEWER = {"task": 0.19, "language": 0.065}
"""Experts of a batch of one kind below those of a mixed one (Fig. 4)."""
POOLS = (8, 16, 24)
PAPER: dict[tuple[str, int], dict[str, Any]] = {
    ("language", 8): {"p50": 0.920, "p99": 0.975},
    ("language", 16): {"p50": 0.902, "p99": 0.992, "p50_best": (0.900, 0.941)},
    ("language", 24): {"p50": 0.898, "p99": 0.989},
    ("task", 16): {"p50_best": (0.861, 0.930), "distinct": 0.78},
}
BASELINES = ("random", "round_robin", "power_of_two", "shortest_queue")
RATES = (20.0, 60.0, 100.0)
BATCH, BATCHES = 24, 200
SAMPLE = 400
"""Requests to which centroids are fitted."""
WARM_S = 30.0
"""Before that the fleet fills."""
BASE = Kind(name="", share=1, prompt=(300.0, 1.0), answer=(350.0, 0.8))
MI300X = (5.3e12, 1300e12)
"""Bytes and operations a second."""


def blended(share: float, kinds: dict[str, float]) -> Experts:
    """A sample of this traffic, by the profile's requests, to which centroids are fitted too; so
    much of each one's chances replaced by the mean of all."""
    profile, arrays = store.read(profiles_dir() / "embedded")
    known = [(r.domain, r.language, f"{r.domain}/{r.language}") for r in profile.requests]
    source = random.Random(0)
    rows: list[int] = []
    for kind, part in kinds.items():
        mine = [row for row, labels in enumerate(known) if kind in labels]
        rows += source.choices(mine, k=round(part * SAMPLE))
    tokens = arrays["output_tokens"][rows]
    chances = arrays["decode_counts"][rows] / tokens.clip(1).reshape(-1, 1, 1)
    counts = ((1 - share) * chances + share * chances.mean(axis=0)) * tokens.reshape(-1, 1, 1)
    space = SignatureSpace(arrays["idf"], profile.rho.mask)
    labels = [known[row] for row in rows]
    return Experts(counts, tokens, arrays["prefill_counts"][rows], space, labels)


def activated(experts: Experts, kinds: dict[str, float], alike: bool) -> float:
    """Mean distinct experts of batches of one kind, or of all kinds mixed."""
    source = random.Random(0)
    rows = {
        kind: [row for row, labels in enumerate(experts.labels) if kind in labels] for kind in kinds
    }
    total = 0.0
    for _ in range(BATCHES):
        batch, names = Mixture(experts), list(kinds)
        kept = source.choices(names, list(kinds.values()))[0]
        for _ in range(BATCH):
            kind = kept if alike else source.choices(names, list(kinds.values()))[0]
            batch.add(source.choice(rows[kind]))
        total += batch.distinct()
    return total / BATCHES


def as_special(kinds: dict[str, float], wanted: float) -> tuple[Experts, dict[str, float]]:
    """Experts whose batches of one kind activate at most that share fewer; `blend` and `fewer`."""

    def fewer(share: float) -> float:
        experts = blended(share, kinds)
        return 1 - activated(experts, kinds, True) / activated(experts, kinds, False)

    low, high = 0.0, 0.0 if fewer(0.0) <= wanted else 1.0
    while high - low > 0.005:
        middle = (low + high) / 2
        low, high = (middle, high) if fewer(middle) > wanted else (low, middle)
    return blended(high, kinds), {"blend": high, "fewer": fewer(high)}


def played(
    policy: str, decoders: int, experts: Experts, made: Iterator[Request], seed: int
) -> dict[str, float]:
    fleet = Fleet(
        prefill=PrefillFleet(replicas=8),
        decode=DecodeFleet(replicas=decoders, slots=256, kv_tokens=1_000_000),
        router=RouterFleet(decode_policy=policy, parked_per_prefill=64),
    )
    step = cost(1, experts.layers * experts.experts, *MI300X)
    run = Simulation(fleet, step, made, experts, seed, window=Window(since=WARM_S))
    found = run.run().result()
    steps = sum(group.steps for group in run.groups)
    distinct = sum(group.distinct_steps for group in run.groups) / steps
    return {"p50": found["tpot_p50"], "p99": found["tpot_p99"], "distinct": distinct}


def compared(
    workload: str, decoders: int, experts: Experts, seeds: int, quick: bool
) -> dict[str, Any]:
    """ELDR against the others on the same requests."""
    kinds = mixed(WORKLOADS[workload], BASE)
    seconds = WARM_S + (20.0 if quick else 60.0)
    rows: dict[str, list[dict[str, float]]] = {arm: [] for arm in ("eldr", *BASELINES)}
    for rate in RATES[1:2] if quick else RATES:
        traffic = Traffic(rate=rate, seconds=seconds, kinds=kinds, longest=(8_000, 2_000))
        for seed in range(seeds):
            for arm, found in rows.items():
                made = with_rows(generate(traffic, seed), experts, seed)
                found.append(played(arm, decoders, experts, made, seed))
    ours = rows["eldr"]

    def against(figure: str, others: list[dict[str, float]]) -> dict[str, float]:
        return told(paired_ratio([r[figure] for r in ours], [r[figure] for r in others]))

    best = [
        min(each, key=lambda row: row["p50"])
        for each in zip(*(rows[arm] for arm in BASELINES), strict=True)
    ]
    ratios = {key: against(key, rows["round_robin"]) for key in ("p50", "p99", "distinct")}
    ratios["p50_best"] = against("p50", best)
    print(f"{workload} 8P{decoders}D: {ratios}", file=sys.stderr, flush=True)
    return ratios | {"paper": PAPER.get((workload, decoders))}


def add(result: Result, seeds: int, quick: bool) -> int:
    """The keys of this benchmark, and its table; how many runs."""
    found: dict[str, Any] = {}
    pools = POOLS[:2] if quick else POOLS
    for workload, kinds in WORKLOADS.items():
        experts, calibrated = as_special(kinds, FEWER[workload])
        found[workload] = calibrated | {
            f"8P{decoders}D": compared(workload, decoders, experts, seeds, quick)
            for decoders in pools
        }
    result.keys["eldr"] = found
    show(found)
    rates = 1 if quick else len(RATES)
    return len(found) * len(pools) * rates * seeds * (1 + len(BASELINES))


def show(found: dict[str, Any]) -> None:
    """A table for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="ELDR, divided by round robin: simulated (paper)", title_justify="left")
    columns = {"p50": "TPOT p50", "p99": "p99", "distinct": "experts", "p50_best": "p50, to best"}
    for name in ("workload, pool", *columns.values()):
        table.add_column(name, justify="left" if name.startswith("w") else "right")
    for workload, pools in found.items():
        for pool, figures in pools.items():
            if pool.startswith("8P"):
                paper = figures["paper"] or {}
                cells = (f"{figures[k]['value']:.3f} ({_said(paper.get(k))})" for k in columns)
                table.add_row(f"{workload}, {pool}", *cells)
    Console(stderr=True).print(table)


def _said(value: float | tuple[float, float] | None) -> str:
    if isinstance(value, tuple):
        return " to ".join(f"{each:.3f}" for each in value)
    return "-" if value is None else f"{value:.3f}"


def main() -> None:
    """Run the benchmark, print its table and its line."""
    options = arguments(__doc__, ("--seeds", {"type": int, "default": 2}))
    if options.quick:
        options.seeds = 1
    result = Result()
    result.emit(add(result, options.seeds, options.quick))


if __name__ == "__main__":
    main()
