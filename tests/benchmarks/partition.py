"""CascadeInfer's stage partition: the heuristic against the exact program, and what planning takes.

200 random small cases (2 to 8 instances, 20 to 200 requests with lognormal lengths, coefficients
over two to three decades, a third with a penalty for mixed lengths, moves free to dear). Each is
planned by the exact dynamic program and by the two-phase heuristic as published (merges alone,
`published_`) and as it is here (single instances and cuts go over to neighbours as well); gaps are
in mean seconds by output token, moves included.

`plan_s`: 16 instances and contexts of 128K, 10,000 requests of a trace, buckets included, both
methods; the slowest of 20. The paper has 0.06 s. `look_ms`: one look of the `Mover` over 16
instances with 64 requests each, loads uneven; `decide` alone.

keys: heuristic_gap_percent (median), heuristic_gap_p90_percent, heuristic_gap_worst_percent,
`worst` (that case: its seed and both layouts), published_gap_percent, published_gap_worst_percent,
`staged`: cases of which the exact program makes more than one stage, and the medians over these
alone, staged_gap_percent and staged_published_gap_percent; plan_s, exact_s, gain_percent (over one
stage, median), look_ms.
"""

import random
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from tests.benchmarks.shared.common import Result, arguments, percentile
from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.moving import Instance, Mover, RunningRequest
from toolkit.policies.stages.partition import MoveCost, Partition, StageProblem, exact, heuristic
from toolkit.policies.stages.population import of_answers
from toolkit.policies.stages.qoe import Qoe

MEASURES = ("toolkit/policies/stages", "toolkit/plan")

CASES, QUICK_CASES = 200, 40
LONGEST = 131_072


def case(seed: int) -> StageProblem:
    """A small problem drawn at random."""
    source = random.Random(f"partition-{seed}")
    answers = [
        (
            min(60_000, max(1, round(source.lognormvariate(6, 1.3)))),
            max(1, round(source.lognormvariate(5, 1.1))),
        )
        for _ in range(source.randint(20, 200))
    ]
    terms = (
        10 ** source.uniform(-3, -1.5),
        10 ** source.uniform(-6, -3.5),
        source.choice([0.0, 10 ** source.uniform(-9, -7)]),
        0.0,
        10 ** source.uniform(-9, -5.5),
    )
    qoe = Qoe(terms, source.choice([0.0, 0.0, 10 ** source.uniform(-7, -6)]))
    move_s = MoveCost(source.choice([0.0, 0.03, 0.3]), 1e-6)
    population = of_answers(answers, source.uniform(4, 100))
    return StageProblem(population, source.randint(2, 8), qoe, move_s)


def long_answers() -> list[tuple[int, int]]:
    """Contexts up to 128K."""
    source = random.Random("partition-large")
    return [
        (
            min(LONGEST - 4000, max(1, round(source.lognormvariate(7, 1.8)))),
            min(4000, max(1, round(source.lognormvariate(6, 1.1)))),
        )
        for _ in range(10_000)
    ]


def large(answers: list[tuple[int, int]]) -> StageProblem:
    """16 instances."""
    qoe = Qoe((0.01, 1e-5, 0.0, 0.0, 2e-8), 1e-7)
    return StageProblem(of_answers(answers, 1000.0), 16, qoe, MoveCost(0.03, 1e-6))


def shown(found: Partition) -> str:
    layout = found.layout
    return ", ".join(
        f"{layout.shown(place)} x {stage.replicas}" for place, stage in enumerate(layout.stages)
    )


class Row(NamedTuple):
    """One case: percents by which the two heuristics are worse, and what the exact program wins."""

    ours: float
    published: float
    gain: float
    seed: int
    best: Partition
    found: Partition


def gaps(count: int, result: Result) -> None:
    """Percent by which the heuristics are worse than the exact program."""
    rows = []
    for seed in range(count):
        problem = case(seed)
        best, found = exact(problem), heuristic(problem)
        theirs = heuristic(problem, shifts=False)
        ours, published = (100 * (x.token_s / best.token_s - 1) for x in (found, theirs))
        rows.append(Row(ours, published, 100 * best.gain, seed, best, found))
    worst = max(rows, key=lambda row: row.ours)
    staged = [row for row in rows if len(row.best.layout.stages) > 1]
    result.keys |= {
        "heuristic_gap_percent": statistics.median(row.ours for row in rows),
        "heuristic_gap_p90_percent": percentile([row.ours for row in rows], 90),
        "heuristic_gap_worst_percent": worst.ours,
        "worst": {"seed": worst.seed, "exact": shown(worst.best), "heuristic": shown(worst.found)},
        "staged": len(staged),
        "staged_gap_percent": statistics.median(row.ours for row in staged),
        "staged_published_gap_percent": statistics.median(row.published for row in staged),
        "published_gap_percent": statistics.median(row.published for row in rows),
        "published_gap_worst_percent": max(row.published for row in rows),
        "gain_percent": statistics.median(row.gain for row in rows),
    }


def slowest(plan: Callable[[StageProblem], Partition], times: int = 20) -> float:
    found = []
    answers = long_answers()
    for _ in range(times):
        begin = time.perf_counter()
        plan(large(answers))
        found.append(time.perf_counter() - begin)
    return max(found)


def look_ms(times: int) -> float:
    """The median of one look."""
    source = random.Random("partition-look")
    layout = Layout.of([(512, 8), (2048, 5), (None, 3)])
    found = []
    for _ in range(times):
        floor = [
            Instance(
                rank,
                layout.stage_of_rank(rank),
                tuple(
                    RunningRequest((rank, i), source.randint(1, 3000))
                    for i in range(source.randint(32, 96))
                ),
                free_tokens=500_000,
                slots_free=64,
                tokens_per_s=1e6,
            )
            for rank in range(16)
        ]
        mover = Mover(layout)
        begin = time.perf_counter()
        mover.decide(floor)
        found.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(found)


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(__doc__)
    result = Result()
    count = QUICK_CASES if options.quick else CASES
    gaps(count, result)
    result.keys["exact_s"] = slowest(exact)
    result.keys["plan_s"] = max(result.keys["exact_s"], slowest(heuristic))
    result.keys["look_ms"] = look_ms(20 if options.quick else 100)
    result.emit(count)


if __name__ == "__main__":
    main()
