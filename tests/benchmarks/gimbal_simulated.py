"""Gimbal's ablation in the simulator: each part alone, and all of them.

Published (see `toolkit.policies.gimbal`): Qwen3-30B-A3B on two A100 of 80 GB, vLLM with two engines
under expert parallelism, chunked prefill, round robin and first come first served; 1,000 requests
of BurstGPT at 1.0 to 1.4 a second in five shapes of prompt lengths; no prefix cache and no users,
but for the count of prefix hits: 10,000 requests of ShareGPT. Played here: two ranks that step
together, mixed chunks of 2,048 tokens (vLLM's default on an A100), no overlap, theta_age 5 s.
Neither data set is here: lengths are lognormal (BurstGPT: prompt median 600, 97.6 % up to 3,000 as
the paper says; answers as its published first rows), or those of `--trace FILE` scaled to the same
means; a shape draws prompts from ten equal parts of 0 to 3,000 tokens.

Step times are sums from data sheets: weights that a step reads of the experts that its batch wakes,
on the GPU that has most of them; all-to-all by DeepEP's table, charged to the GPU that sends or
receives most; a prompt's work in experts on the GPU that has most pairs. Nothing else takes time
(no launches, no sampling): what placement changes is a larger share here than of a measured step.
Routing is synthetic, placements are fitted to other requests than those played
(`shared/gimbal_experts.py`). The baseline's experts lie in their order (vLLM's default).

Memory is in two settings:
- `hardware`: what 80 GB leave beside the weights.
- `at_its_p99`: the paper's only time, p99 TTFT of the baseline just below 4.9 s at 1.4 a second, is
  far from what the hardware gives. What explains it best in its own words (memory bounds the rate)
  is a small KV pool: the smallest one at which the baseline's p99 stays below 4.9 s in every shape.
  It is fitted to the baseline alone, never to what the policies gain.

Parts: `engine_selection` (the paper's DPLB), `shortest_first` (SJFS), `expert_placement` (EDR:
Algorithm 3), `all`. Beside them: `eplb` in place of Algorithm 3; `even`, no placement but what none
can be better than: every layer's woken experts half on each GPU and nothing sent; `worst`, the
busier half of each layer's experts on one GPU. Between the last two lies all that placement can do.
The paper has figures of `all` only: -13.34 % TPOT is that, not placement's share. Of the second
paper (arXiv 2606.15177) only figures are known here, its model and GPUs are not.

keys: `gimbal`, rows by setting and part: `ttft`, `tpot`, `tokens_s` divided by the baseline's (mean
of the shapes, geometric over seeds, 95 % interval over `pairs` seeds), the papers' values, and what
the numbers say of them in words; `loads`: the same by requests a second; `branches`, by which rule
engines were chosen; `gimbal_experts`, by placement, mean of seeds: (token, expert) pairs of the
busiest GPU / mean, share of pairs that leave their GPU; `skewed`: with three times the spread of
popularity (Zipf 1.8), `random` shape, all memory: TPOT ratios; `gimbal_prefix`, prefix hits alike.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from math import exp
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.gimbal_experts import EVEN, LINEAR, WORST, Laid, laid
from tests.benchmarks.shared.simulated import told
from tests.benchmarks.shared.verdicts import gimbal_reasons
from toolkit.bench.stats import paired_ratio
from toolkit.policies.gimbal import GimbalPolicy
from toolkit.simulate.fleet import Fleet, RouterFleet, WorkerFleet
from toolkit.simulate.request import Request
from toolkit.simulate.simulation import Simulation
from toolkit.simulate.workloads.patterns import with_rows
from toolkit.simulate.workloads.traffic import RequestKind, TrafficModel, generate

MEASURES = (
    "toolkit/policies/gimbal.py",
    "toolkit/policies/sjf.py",
    "toolkit/placement/gimbal.py",
    "toolkit/simulate",
)

POOL = 370_000
"""0.9 x 80 GB without 32 GB of weights and 4 GB of activations, 96 KiB a token."""
COUNT = 400
"""Requests of a run; the paper has 1,000."""
RATE, AGE_S, P99_S = 1.4, 5.0, 4.9
LONGEST = 3000
LARGEST = (16_000, 4_000)
PARTS = 10
PROMPT, ANSWER = (600.0, 0.81), (340.0, 0.7)
SHAPES: dict[str, tuple[int, ...] | None] = {
    "random": None,
    "central": (1, 2, 3, 4, 5, 5, 4, 3, 2, 1),
    "descending": (10, 9, 8, 7, 6, 5, 4, 3, 2, 1),
    "two-end": (5, 4, 3, 2, 1, 1, 2, 3, 4, 5),
    "average": (1,) * PARTS,
}


class Arm(NamedTuple):
    """Who chooses engines, theta_age (None: first come first served), where experts lie."""

    policy: str = "round_robin"
    age: float | None = None
    experts: str = LINEAR


ARMS = {
    "baseline": Arm(),
    "engine_selection": Arm("gimbal"),
    "shortest_first": Arm(age=AGE_S),
    "expert_placement": Arm(experts="gimbal"),
    "all": Arm("gimbal", AGE_S, "gimbal"),
    "eplb": Arm(experts="eplb"),
    "even": Arm(experts=EVEN),
    "worst": Arm(experts=WORST),
}
LOADS = (1.0, 1.2)
AT_LOADS = ("baseline", "expert_placement", "all")
SKEWED = 1.8
FIGURES = {"ttft": "ttft_mean", "tpot": "tpot_mean", "tokens_s": "output_tokens_s"}
PAPER: dict[str, dict[str, Any]] = {
    "engine_selection": {"said": "the majority of the TTFT reduction (a figure without numbers)"},
    "shortest_first": {"said": "smaller than engine selection (a figure without numbers)"},
    "expert_placement": {"said": "smaller than engine selection (a figure without numbers)"},
    "all": {"ttft": 0.8224, "tpot": 0.8666, "tokens_s": "comparable"},
}
SECOND = {"ttft": 0.571, "tpot": 0.667, "tokens_s": 1.03}
"""The second paper's, all its parts against vLLM."""
TURNS = (3.5, 1.05)
"""Of a conversation in the mean. The paper's hit rate of 4 % is that of single turns."""
PREFIX_PAPER = {"hits": 18_992 / 18_451, "rate": [0.0364, 0.0380]}


class Pair(NamedTuple):
    prompt: int
    answer: int


def rows(trace: str | None, seed: int) -> list[Pair]:
    """What shapes draw from."""
    if trace:
        from tests.benchmarks.shared.kinds import Lengths, scaled
        from toolkit.bench.traces import load

        read = [Lengths(row.input_tokens, row.output_tokens) for row in load(Path(trace))]
        prompt, answer = (median * exp(spread**2 / 2) for median, spread in (PROMPT, ANSWER))
        return [Pair(x.prompt, x.answer) for x in scaled(read, prompt, answer, LARGEST)]
    source = random.Random(f"burst-{seed}")

    def drawn(median: float, spread: float) -> int:
        return max(1, round(median * source.lognormvariate(0.0, spread)))

    return [
        Pair(min(drawn(*PROMPT), LARGEST[0]), min(drawn(*ANSWER), LARGEST[1]))
        for _ in range(20_000)
    ]


def requests(
    pairs: Sequence[Pair], shape: str, count: int, seed: int, rate: float = RATE
) -> Iterator[Request]:
    """Poisson arrivals; prompts by the shape, answers as those rows have them."""
    source = random.Random(f"{shape}-{seed}")
    weights = SHAPES[shape]
    binned: list[list[Pair]] = [[] for _ in range(PARTS)]
    for pair in pairs:
        if pair.prompt <= LONGEST:
            binned[min(pair.prompt * PARTS // (LONGEST + 1), PARTS - 1)].append(pair)
    now = 0.0
    for number in range(count):
        now += source.expovariate(rate)
        among = pairs if weights is None else source.choices(binned, weights)[0]
        one = source.choice(among)
        yield Request(number, now, one.prompt, one.answer)


def simulated(
    arm: Arm, known: dict[str, Laid], pool: int, made: Iterator[Request], seed: int
) -> Simulation:
    """One run to its end."""
    worker = WorkerFleet(
        dp=2,
        dp_attention=True,
        slots=256,
        kv_tokens=pool,
        chunk=2048,
        mixed=True,
        waiting_age_s=arm.age,
        loop="plain",
    )
    fleet = Fleet(worker=worker, router=RouterFleet(decode_policy=arm.policy))
    found = known[arm.experts]
    played = with_rows(made, found.experts, seed)
    simulation = Simulation(fleet, found.cost, played, found.experts, seed)
    simulation.run()
    return simulation


def fitted_pool(pairs: Sequence[Pair], known: dict[str, Laid], count: int) -> int:
    """The smallest pool at which the baseline's p99 TTFT stays below P99_S in every shape."""

    def slowest(pool: int) -> float:
        made = (requests(pairs, shape, count, 0) for shape in SHAPES)
        runs = (simulated(ARMS["baseline"], known, pool, each, 0) for each in made)
        return float(max(run.recorder.result()["ttft_p99"] for run in runs))

    low, high = max(pair.prompt + pair.answer for pair in pairs) + 2, POOL
    while high > 1.02 * low:
        middle = round((low * high) ** 0.5)
        low, high = (low, middle) if slowest(middle) < P99_S else (middle, high)
    return high


class Rounds(NamedTuple):
    """Figures of each arm, seed by seed (mean of the shapes), and engine selection's choices."""

    each: dict[str, dict[str, list[float]]]
    branches: Counter[str]

    def ratios(self) -> dict[str, dict[str, dict[str, float]]]:
        """Each part's figures divided by the baseline's."""
        base = self.each["baseline"]
        return {
            arm: {
                key: told(paired_ratio(series[figure], base[figure]))
                for key, figure in FIGURES.items()
            }
            for arm, series in self.each.items()
            if arm != "baseline"
        }


def played(
    arms: Sequence[str],
    known: Sequence[dict[str, Laid]],
    trace: str | None,
    pool: int,
    count: int,
    rate: float = RATE,
    shapes: Sequence[str] = tuple(SHAPES),
) -> Rounds:
    """Arms on the same requests, a seed for each of `known`."""
    rounds = Rounds({arm: {} for arm in arms}, Counter())
    for seed, experts in enumerate(known):
        pairs = rows(trace, seed)
        for arm, series in rounds.each.items():
            results = []
            for shape in shapes:
                made = requests(pairs, shape, count, seed, rate)
                run = simulated(ARMS[arm], experts, pool, made, seed)
                results.append(run.recorder.result())
                policy = run.router.decode_policy
                if arm == "engine_selection" and isinstance(policy, GimbalPolicy):
                    rounds.branches.update(policy.counters.decisions)
            for figure in (*FIGURES.values(), "ttft_p99"):
                mean = sum(result[figure] for result in results) / len(results)
                series.setdefault(figure, []).append(mean)
    return rounds


def ablation(trace: str | None, known: Sequence[dict[str, Laid]], count: int) -> dict[str, Any]:
    """All rows of all settings."""
    pools = {"hardware": POOL, "at_its_p99": fitted_pool(rows(trace, 0), known[0], count)}
    found: dict[str, Any] = {}
    for setting, pool in pools.items():
        rounds = played(tuple(ARMS), known, trace, pool, count)
        parts, branches = rounds.ratios(), dict(rounds.branches)
        base = {key: sum(x) / len(x) for key, x in rounds.each["baseline"].items()}
        found[setting] = {"kv_tokens": pool, "baseline": base, "branches": branches}
        ttft = {arm: series[FIGURES["ttft"]] for arm, series in rounds.each.items()}
        reasons = gimbal_reasons(parts, ttft, branches, PAPER["all"] | {"second": SECOND["tpot"]})
        for part, figures in parts.items():
            found[setting][part] = {**figures, "paper": PAPER.get(part)}
            found[setting][part]["reason"] = reasons[part]
        found[setting]["all"]["second_paper"] = SECOND
    # With all the memory nothing waits at any of these loads.
    found["at_its_p99"]["loads"] = {
        f"{rate:g}": played(AT_LOADS, known, trace, pool, count, rate).ratios() for rate in LOADS
    }
    return found


def laid_out(known: Sequence[dict[str, Laid]]) -> dict[str, Any]:
    """Of each placement, means of seeds."""
    return {
        kind: {
            "pairs": sum(each[kind].pairs for each in known) / len(known),
            "across": sum(each[kind].across for each in known) / len(known),
        }
        for kind in known[0]
    }


def prefix(known: Sequence[dict[str, Laid]], count: int) -> dict[str, Any]:
    """Prefix hits of conversations, engine selection against round robin, with the whole pool."""
    found: dict[str, Any] = {"paper": PREFIX_PAPER}
    for turns in TURNS:
        kind = RequestKind(
            name="chat", share=1, prompt=(100.0, 1.0), answer=(200.0, 0.8), turns=turns
        )
        traffic = TrafficModel(
            rate=RATE, seconds=count / RATE, kinds=(kind,), longest=(LONGEST, 2000)
        )
        hits: dict[str, list[float]] = {}
        shares: dict[str, list[float]] = {}
        for seed, experts in enumerate(known):
            for arm in ("baseline", "engine_selection"):
                run = simulated(ARMS[arm], experts, POOL, generate(traffic, seed), seed)
                hit, asked = run.prompt_tokens
                hits.setdefault(arm, []).append(float(hit))
                shares.setdefault(arm, []).append(hit / asked)
        found[f"turns_{turns:g}"] = {
            "hits": told(paired_ratio(hits["engine_selection"], hits["baseline"])),
            "rate": [sum(each) / len(known) for each in shares.values()],
        }
    found["reason"] = (
        "ShareGPT and its users are not here: made conversations, 256-token blocks. Round robin "
        "over two engines finds half of the turns where the one before was, so what affinity gains "
        "is set by how many turns conversations have"
    )
    return found


def show(found: dict[str, Any], hits: dict[str, Any]) -> None:
    """A table for people."""
    from rich.table import Table

    from toolkit.report.terminal import console
    from toolkit.report.terminal import show as printed

    title = "Gimbal, divided by the baseline: simulated [95 % over seeds] (paper; second paper)"
    table = Table(title=title, title_justify="left")
    for name in ("setting, part", "TTFT", "TPOT", "tokens/s", "prefix hits", "what it says"):
        table.add_column(name, justify="left" if name[0] in "sw" else "right")
    cell = "{0[value]:.3f} [{0[low]:.3f}, {0[high]:.3f}]".format
    for setting, entries in found.items():
        for part in ARMS:
            if part == "baseline":
                continue
            cells = []
            for key in FIGURES:
                paper = [str(x[key]) for x in (PAPER.get(part, {}), SECOND) if key in x]
                said = f" ({'; '.join(paper)})" if len(paper) > 1 else ""
                cells.append(cell(entries[part][key]) + said)
            table.add_row(f"{setting}, {part}", *cells, "", entries[part]["reason"])
        for rate, parts in entries.get("loads", {}).items():
            for part, figures in parts.items():
                cells = [cell(figures[key]) for key in FIGURES]
                table.add_row(f"{setting}, {part}, {rate} a second", *cells)
    for turns in TURNS:
        ratio = hits[f"turns_{turns:g}"]["hits"]["value"]
        hit = f"{ratio:.3f} ({PREFIX_PAPER['hits']:.3f})"
        table.add_row(f"engine_selection, {turns:g} turns", "", "", "", hit)
    printed(console(stderr=True), table)


def add(result: Result, trace: str | None, seeds: int, quick: bool) -> None:
    """The keys of this benchmark, and its table."""
    count = 100 if quick else COUNT
    known = [laid(seed) for seed in range(seeds)]
    found = ablation(trace, known, count)
    hits = prefix(known, 5 * count)
    show(found, hits)
    skewed = [laid(seed, SKEWED) for seed in range(seeds)]
    arms = [arm for arm, its in ARMS.items() if its.policy == "round_robin" and its.age is None]
    unlike = played(arms, skewed, trace, POOL, count, shapes=("random",)).ratios()
    result.keys |= {
        "gimbal": found,
        "gimbal_experts": laid_out(known) | {"skewed": laid_out(skewed)},
        "skewed": {arm: figures["tpot"] for arm, figures in unlike.items()},
        "gimbal_prefix": hits,
    }


def main() -> None:
    """Run the benchmark, print its table and its line."""
    options = arguments(
        __doc__,
        ("--trace", {"help": "lengths of a trace, scaled to BurstGPT's means"}),
        ("--seeds", {"type": int, "default": 5}),
    )
    if options.quick:
        options.seeds = 2
    result = Result()
    add(result, options.trace, options.seeds, options.quick)
    runs = 2 * len(ARMS) + len(LOADS) * len(AT_LOADS)
    result.emit(options.seeds * len(SHAPES) * runs)


if __name__ == "__main__":
    main()
