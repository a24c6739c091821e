"""Policies for the DP ranks of one wide-EP server, where what crosses nodes takes time.

DeepSeek-V3's shape (256 experts, top 8, 32 redundant ones; 15 layers stand for its 58, each for as
many), one decode server with DP attention in a closed loop that fills it: at 32 and at 128 requests
a rank on 4 nodes x 8 GPUs, at 32 on 9 x 8. Prompts are lognormal (median 3,000 tokens), answers too
(150), so KV tokens differ between ranks; prefill is never short. Routing is synthetic
(`tests/synthetic_routing.py`), as specialised as ELDR reports; placements and maps are fitted
to one half of its requests, simulated ones follow the other half.

A step is the sum of kernels at their published speeds (`shared/node_step.py`): attention by the KV
tokens of the heaviest rank, experts by the pairs of the busiest GPU, all-to-all by DeepEP's table,
by copies of the GPU that sends or receives most; no overlap of batches. Copies and pairs are
expected ones: chance makes the slowest GPU of an actual step slower. Replicas are picked nearest
first (SGLang's `--ep-dispatch-algorithm static`), for all arms.

An arm is a policy and a placement: `eplb` (SGLang's), `lay` (ours, by who decodes where).
`eldr` and `composed` look at the placement's map. Ratios are to the best balancer without the pool
of finished prefills and to the best with it, each over both placements, by mean TPOT, on the same
requests. A rank has slots for half as many again as it has requests, so that none waits in the pool
and it changes nothing here: what is compared is the choice of ranks.

keys: by setting, `arms`: means over seeds of tpot_p50, tpot_p99, tpot_mean (s), tokens_s, ttft_p99,
kv_spread (max - min KV tokens); step (s) and crossing (the share of it in all-to-all and experts)
are of all steps, while the server fills and empties, too;
`ratios`: each arm of ours by column, with 95 % intervals over seeds
"""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.benchmarks.shared.balancers import BALANCERS, COLUMNS, POOLED, Rounds, mean, ratio
from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.wide_server import LAYERS, Wide, cost, wide
from toolkit.simulate.fleet import DecodeFleet, Fleet, PrefillFleet, RouterFleet
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation, Window
from toolkit.simulate.workloads.patterns import with_rows
from toolkit.simulate.workloads.traffic import RequestKind, TrafficModel, generate

MEASURES = ("toolkit/placement", "toolkit/policies", "toolkit/signatures", "toolkit/simulate")


class Setting(NamedTuple):
    """`rounds`: how often every place in the server is taken."""

    nodes: int
    per_rank: int
    rounds: float
    arms: tuple[tuple[str, str], ...]


FEW = (
    ("kv_shortest_queue", "eplb"),
    ("pooled@kv_shortest_queue", "eplb"),
    ("kv_shortest_queue", "lay"),
    ("pooled@kv_shortest_queue", "lay"),
    ("level", "lay"),
    ("eldr", "eplb"),
    ("eldr", "lay"),
    ("composed", "lay"),
)
LEAST = tuple(arm for arm in FEW if not arm[0].startswith("pooled@") and arm != ("eldr", "eplb"))
ALL = (
    ("round_robin", "eplb"),
    ("shortest_queue", "eplb"),
    *FEW[:3],
    ("shortest_queue", "lay"),
    FEW[3],
    ("br0", "lay"),
    ("brh", "lay"),
    *FEW[4:],
    ("composed", "eplb"),
)
SETTINGS = {
    "4x8, 32 a rank": Setting(4, 32, 3.0, ALL),
    "4x8, 128 a rank": Setting(4, 128, 2.0, FEW),
    "9x8, 32 a rank": Setting(9, 32, 2.0, LEAST),
}
KIND = RequestKind(name="", share=1, prompt=(3000.0, 0.6), answer=(150.0, 0.6))
LONGEST = (16_000, 1_000)
FIGURES = ("tpot_p50", "tpot_p99", "tpot_mean", "ttft_p99", "kv_spread")
LEAD = "tpot_mean"
SHOWN = {
    "TPOT p50 ms": ("tpot_p50", 1e3),
    "p99 ms": ("tpot_p99", 1e3),
    "step ms": ("step", 1e3),
    "of it experts and sending": ("crossing", 1.0),
    "max - min KV": ("kv_spread", 1.0),
    "tokens/s": ("tokens_s", 1.0),
}


def requests(count: int, known: Wide, seed: int) -> Iterator[Request]:
    made = TrafficModel(rate=1000.0, seconds=2 * count / 1000, kinds=(KIND,), longest=LONGEST)
    for number, request in enumerate(with_rows(generate(made, seed), known.experts["eplb"], seed)):
        if number == count:
            return
        yield request


def played(arm: tuple[str, str], setting: Setting, known: Wide, seed: int) -> dict[str, float]:
    """One run's figures, while the server is full."""
    policy, placement = arm
    ranks = setting.nodes * 8
    fleet = Fleet(
        prefill=PrefillFleet(replicas=ranks),
        decode=DecodeFleet(dp=ranks, dp_attention=True, slots=setting.per_rank * 3 // 2),
        router=RouterFleet(decode_policy=policy, parked_per_prefill=64),
    )
    flying = ranks * setting.per_rank
    run = Simulation(
        fleet,
        cost(ranks),
        requests(round(flying * setting.rounds), known, seed),
        known.experts[placement],
        seed,
        in_flight=flying,
        window=Window(full=True),
        sample_s=0.5,
    )
    result = run.run().result()
    group = run.groups[0]
    steps = group.busy_s / group.steps
    found = {name: float(result[name]) for name in FIGURES}
    return found | {
        "tokens_s": float(result["output_tokens_s"]),
        "step": steps,
        "crossing": group.crossing_steps_s / group.busy_s,
    }


def compared(name: str, setting: Setting, seeds: int) -> dict[str, Any]:
    """All arms on the same requests."""
    rounds: dict[str, list[dict[str, float]]] = {}
    for seed in range(seeds):
        known = wide(setting.nodes, seed)
        for arm in setting.arms:
            found = played(arm, setting, known, seed)
            rounds.setdefault("/".join(arm), []).append(found)
            tpot = found["tpot_mean"] * 1e3
            print(f"{name} seed {seed} {'/'.join(arm)}: {tpot:.2f} ms", file=sys.stderr, flush=True)
    ratios = {
        arm: {
            column: {"best": other} | _ratios(rounds, arm, other)
            for column, other in bests(rounds).items()
        }
        for arm in rounds
        if arm.partition("/")[0] not in (*BALANCERS, *POOLED)
    }
    show(name, rounds, ratios)
    arms = {
        arm: {key: statistics.fmean(row[key] for row in rows) for key in rows[0]}
        for arm, rows in rounds.items()
    }
    return {"arms": arms, "ratios": ratios}


def bests(rounds: Rounds) -> dict[str, str]:
    """The balancer, on whichever placement, with the least mean TPOT of each column."""
    found = {}
    for column, names in COLUMNS.items():
        run = [arm for arm in rounds if arm.partition("/")[0] in names]
        if run:
            found[column] = min(run, key=lambda arm: mean(rounds, arm, LEAD))
    return found


def _ratios(rounds: Rounds, arm: str, other: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for figure in (LEAD, "tpot_p50", "tpot_p99", "step", "tokens_s"):
        found |= ratio(rounds, arm, other, figure).keys(figure)
    return found


def show(name: str, rounds: Rounds, ratios: dict[str, Any]) -> None:
    """A table for people."""
    from rich.table import Table

    from toolkit.report.terminal import console
    from toolkit.report.terminal import show as printed

    title = f"{name}: policy/placement; ratios of mean TPOT and its p99 to the best balancer's"
    table = Table(title=title, title_justify="left")
    table.add_column("arm")
    for heading in (*SHOWN, "to best unpooled", "p99", "to best pooled", "p99"):
        table.add_column(heading, justify="right")
    for arm in rounds:
        cells = [f"{mean(rounds, arm, key) * by:,.4g}" for key, by in SHOWN.values()]
        for column in ("unpooled", "pooled"):
            one = ratios.get(arm, {}).get(column)
            cells += [_cell(one, figure) if one else "" for figure in (LEAD, "tpot_p99")]
        table.add_row(arm, *cells)
    printed(console(stderr=True), table)


def _cell(one: dict[str, float], figure: str) -> str:
    low, high = one[f"{figure}_low"], one[f"{figure}_high"]
    return f"{one[figure]:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    """Run the benchmark, print its tables and its line."""
    options = arguments(
        __doc__,
        ("--seeds", {"type": int, "default": 5}),
        ("--only", {"choices": tuple(SETTINGS), "help": "one setting"}),
    )
    settings = {n: each for n, each in SETTINGS.items() if options.only in (None, n)}
    if options.quick:
        options.seeds = 2
        settings = {"2x8, 8 a rank": Setting(2, 8, 2.0, FEW)}
    result = Result()
    result.keys = {n: compared(n, each, options.seeds) for n, each in settings.items()}
    result.keys["layers"] = LAYERS
    result.emit(options.seeds * sum(len(each.arms) for each in settings.values()))


if __name__ == "__main__":
    main()
