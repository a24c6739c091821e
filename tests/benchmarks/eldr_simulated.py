"""ELDR's published decode pools beside simulated ones: 8P16D, and 8 to 24 decode workers.

ELDR (arXiv 2607.00466) on MI300X, each worker a GPU with the whole model. Two tables: Qwen3-30B-A3B
with 8, 16 and 24 decode workers, TPOT against round robin in the mean over rates and against the
best load balancer (random, round robin, power of two, shortest queue), as in the paper; and 8P16D
against the rows that the authors' artifact measured, model by model and rate by rate. Arms: `eldr`
(ours), `eldr@paper` and `eldr@artifact` (the published rules; the last one refits its centroids
every second on the traffic of the last five, the others never).

Its activations are not public. Which experts a request uses is taken from the embedded model (6
layers of 48 experts, 4 a token), thinned to the share of experts that a token of the published
model uses. Where that is more specialised than published, every request's chances are blended with
the mean of all until batches of 24 of one domain (`task`) or language activate as many fewer
experts than mixed ones as the paper measured (17 to 21 %, 3 to 10 %: the middle of each). `task`:
the four published domains in equal shares, English. `language`: English and Chinese three quarters,
as in WildChat, all domains.

Centroids, IDF weights and layer mask are fitted to calibration prompts; requests follow other ones
(of a file: such that the embedded model was not trained on). Signatures are counted in the blended
model. A pool with fewer than ten distinct calibration prompts a centroid is refused: the project's
own prompts give only the smallest, `--prompts FILE` (JSON lines of text, domain, language, and
maybe source) gives them all. Which prompts there were is said of each workload.

Step times are data sheets' (`shared/simulated.py`). Prompts (median 300 tokens) and answers (350)
have long tails, Poisson; the artifact's answers have 512 tokens each. `label_oracle` is no arm: it
has one worker for each label, the published one divides the pool among them.

keys: for each workload `prompts` (fitted to, served), `blend` (the share of the mean), `fewer`; by
pool (8, 16, 24) and arm: `p50`, `p99`, `distinct` (experts of a step) divided by round robin's,
`p50_best`, `p99_best`, `best`: by the load balancer with the lowest p50; `ours_to_paper`: p50 of
`eldr` divided by that of `eldr@paper`; each the mean over rates, with its 95 % interval over
`pairs` seeds; `paper`: published. `artifact`: by model, workload and rate, each arm's `p50` and
`p99` to shortest queue's, the measured ones, and `reason`, in words from the numbers.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.conditions import of_conditions
from tests.benchmarks.shared.eldr_artifact import ANSWER, ARTIFACT, Measured, reason
from tests.benchmarks.shared.eldr_blend import Blend
from tests.benchmarks.shared.eldr_rows import LEAST, MOST, Rows, of_file, of_profile
from tests.benchmarks.shared.eldr_tables import show_artifact, show_pools
from tests.benchmarks.shared.simulated import BASE, MI300X, MODELS, QWEN3_30B, Model, cost, told
from toolkit.bench.stats import Ratio
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.fleet import DecodeFleet, Fleet, PrefillFleet, RouterFleet
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation, Window
from toolkit.simulate.workloads.patterns import with_rows
from toolkit.simulate.workloads.traffic import RequestKind, TrafficModel, generate, mixed

MEASURES = (
    "toolkit/policies/eldr.py",
    "toolkit/policies/published",
    "toolkit/signatures",
    "toolkit/simulate",
)

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
ARMS = ("eldr", "eldr@paper", "eldr@artifact")
BASELINES = ("random", "round_robin", "power_of_two", "shortest_queue")
RATES = (20.0, 60.0, 100.0)
EMBEDDED_USED = 4 / 48
WARM_S = 30.0
SLOTS = 256
"""Of a decode worker: more than there are requests."""
"""Before that the fleet fills."""
Figures = dict[str, float]


def enough(prompts: int, decoders: int) -> str:
    """Empty, or why this pool's centroids would say nothing."""
    if prompts >= LEAST * decoders:
        return ""
    return (
        f"{prompts} distinct calibration prompts are {prompts / decoders:.1f} for each of "
        f"{decoders} centroids, fewer than {LEAST}: give more with --prompts"
    )


def played(
    policy: str,
    decoders: int,
    experts: SimulatedExperts,
    made: Iterator[Request],
    seed: int,
    model: Model,
    slots: int = SLOTS,
) -> Figures:
    """One run's figures; `share`: of a decode step that loading experts takes; `ttft_p99` is
    that of the decode worker's own first token where there are fewer than SLOTS: it has waited for
    a slot."""
    router = RouterFleet(decode_policy=policy, parked_per_prefill=64)
    if slots < SLOTS:
        router = router.model_copy(update={"first_token": "decode"})
    fleet = Fleet(
        prefill=PrefillFleet(replicas=8),
        decode=DecodeFleet(replicas=decoders, slots=slots, kv_tokens=1_000_000),
        router=router,
    )
    step = cost(1, experts.layers * experts.experts, *MI300X, model)
    run = Simulation(fleet, step, made, experts, seed, window=Window(since=WARM_S))
    found = run.run().result()
    steps = sum(group.steps for group in run.groups)
    distinct = sum(group.distinct_steps for group in run.groups) / steps
    tpot = found["tpot_p50"]
    share = step.decode.per_distinct * distinct / tpot
    return {
        "p50": tpot,
        "p99": found["tpot_p99"],
        "ttft_p99": found["ttft_p99"],
        "distinct": distinct,
        "share": share,
    }


Runs = dict[str, list[list[Figures]]]
"""By arm, rate and seed."""


def runs(
    arms: Sequence[str],
    rates: Sequence[float],
    decoders: int,
    experts: SimulatedExperts,
    kinds: tuple[RequestKind, ...],
    seeds: int,
    seconds: float,
    model: Model,
    slots: int = SLOTS,
) -> Runs:
    """Every arm on the same requests. `slots` of each decode worker."""
    found: Runs = {arm: [[] for _ in rates] for arm in arms}
    for place, rate in enumerate(rates):
        traffic = TrafficModel(rate=rate, seconds=seconds, kinds=kinds, longest=(8_000, 2_000))
        for seed in range(seeds):
            for arm in arms:
                made = with_rows(generate(traffic, seed), experts, seed)
                found[arm][place].append(played(arm, decoders, experts, made, seed, model, slots))
    return found


def ratio(found: Runs, figure: str, ours: str, other: str) -> Ratio:
    """Over rates and seeds; only seeds are independent of each other."""
    one, two = ([[run[figure] for run in row] for row in found[arm]] for arm in (ours, other))
    return of_conditions(one, two)


def against(found: Runs, arm: str, best: str) -> dict[str, Any]:
    """An arm's keys."""
    keys = {key: told(ratio(found, key, arm, "round_robin")) for key in ("p50", "p99", "distinct")}
    keys |= {f"{key}_best": told(ratio(found, key, arm, best)) for key in ("p50", "p99")}
    return keys


def best_of(found: Runs) -> str:
    """The load balancer with the lowest TPOT p50 over all runs."""
    first = BASELINES[0]
    return min(BASELINES, key=lambda arm: ratio(found, "p50", arm, first).value)


def pool(
    workload: str, decoders: int, blend: Blend, experts: SimulatedExperts, given: Any
) -> dict[str, Any]:
    """One line of the first table; `refused` with the reason where there are too few prompts."""
    paper = PAPER.get((workload, decoders))
    refused = enough(blend.prompts, decoders)
    if refused:
        print(f"{workload} 8P{decoders}D: {refused}", file=sys.stderr, flush=True)
        return {"refused": refused, "paper": paper}
    rates = RATES[1:2] if given.quick else RATES
    seconds = WARM_S + (15.0 if given.quick else 40.0)
    kinds = mixed(WORKLOADS[workload], BASE)
    arms = (*ARMS, *BASELINES)
    found = runs(arms, rates, decoders, experts, kinds, given.seeds, seconds, QWEN3_30B)
    best = best_of(found)
    keys: dict[str, Any] = {arm: against(found, arm, best) for arm in ARMS}
    keys |= {"best": best, "prompts_a_centroid": blend.prompts / decoders, "pairs": given.seeds}
    keys["ours_to_paper"] = told(ratio(found, "p50", "eldr", "eldr@paper"))
    print(f"{workload} 8P{decoders}D: {keys}", file=sys.stderr, flush=True)
    return keys | {"paper": paper}


def beside(
    experts: SimulatedExperts, workload: str, measured: Measured, model: Model, given: Any
) -> Any:
    """One row of the artifact's table."""
    base = BASE.model_copy(update={"answer": (float(ANSWER), 0.0)})
    kinds = mixed(WORKLOADS[workload], base)
    seconds = WARM_S + (10.0 if given.quick else 20.0)
    arms = (*ARMS, "shortest_queue")
    found = runs(arms, (measured.rate,), 16, experts, kinds, given.seeds, seconds, model)
    keys: dict[str, Any] = {
        arm: {key: told(ratio(found, key, arm, "shortest_queue")) for key in ("p50", "p99")}
        for arm in ARMS
    }
    queue = found["shortest_queue"][0]
    p50 = ratio(found, "p50", "eldr@artifact", "shortest_queue")
    ours = p50.keys("p50") | {
        "distinct": ratio(found, "distinct", "eldr@artifact", "shortest_queue").value,
        "share": sum(run["share"] for run in queue) / len(queue),
        "queue_ms": 1e3 * sum(run["p50"] for run in queue) / len(queue),
    }
    keys |= {"measured": {"p50": measured.p50, "p99": measured.p99}, "ours": ours}
    keys["reason"] = reason(ours, measured)
    print(f"{workload} at {measured.rate:g}/s: {keys}", file=sys.stderr, flush=True)
    return keys


def artifact(rows: Rows, given: Any) -> dict[str, Any]:
    """The second table. Of a model without measured rows there is nothing to hold it against."""
    found: dict[str, Any] = {}
    for (name, workload), measured in ARTIFACT.items():
        model = MODELS[name]
        blend = Blend(rows, WORKLOADS[workload], MOST, model.used / EMBEDDED_USED)
        refused = enough(blend.prompts, 16)
        share = 0.0 if refused else blend.as_special(FEWER[workload])
        entries = measured[1:2] if given.quick else measured
        found[f"{name}, {workload}"] = (
            {"refused": refused}
            if refused
            else {
                "blend": share,
                **{
                    f"{entry.rate:g}": beside(blend.experts(share), workload, entry, model, given)
                    for entry in entries
                },
            }
        )
    missing = sorted(set(MODELS) - {name for name, _ in ARTIFACT})
    return found | {name: {"refused": "the artifact has no measured row"} for name in missing}


def add(result: Result, seeds: int, quick: bool, given: Any = None) -> int:
    """The keys of this benchmark, and its tables; how many runs."""
    from argparse import Namespace

    asked = {"seeds": seeds, "quick": quick, "prompts": None, "rows": None}
    given = Namespace(**(asked | (vars(given) if given else {})))
    rows = (
        of_file(Path(given.prompts), tuple(WORKLOADS.values()), MOST, given.rows)
        if given.prompts
        else of_profile()
    )
    found: dict[str, Any] = {}
    pools = POOLS[:2] if quick else POOLS
    for workload, kinds in WORKLOADS.items():
        blend = Blend(rows, kinds, MOST, QWEN3_30B.used / EMBEDDED_USED)
        share = blend.as_special(FEWER[workload])
        experts = blend.experts(share)
        found[workload] = {
            "prompts": {"fitted": blend.prompts, "served": len(blend.served)},
            "blend": share,
            "fewer": blend.fewer(share),
        } | {
            f"8P{decoders}D": pool(workload, decoders, blend, experts, given) for decoders in pools
        }
    result.keys["eldr"] = found
    result.keys["eldr_artifact"] = artifact(rows, given)
    show_pools(found, ARMS)
    show_artifact(result.keys["eldr_artifact"], ARMS)
    pools_played, rows_played = (
        _count(found, "best"),
        _count(result.keys["eldr_artifact"], "reason"),
    )
    of_pool = (1 if quick else len(RATES)) * (len(ARMS) + len(BASELINES))
    return seeds * (pools_played * of_pool + rows_played * (len(ARMS) + 1))


def _count(tree: Any, key: str) -> int:
    """In how many of nested mappings the key is."""
    if not isinstance(tree, dict):
        return 0
    return (key in tree) + sum(_count(each, key) for each in tree.values())


def main() -> None:
    """Run the benchmark, print its tables and its line."""
    options = arguments(
        __doc__,
        ("--seeds", {"type": int, "default": 3}),
        ("--prompts", {"help": "JSON lines of text, domain, language, maybe source; gzip or not"}),
        ("--rows", {"type": Path, "help": "file (.npz) that keeps what was captured of them"}),
    )
    if options.quick:
        options.seeds = 1
    result = Result()
    result.emit(add(result, options.seeds, options.quick, options))


if __name__ == "__main__":
    main()
