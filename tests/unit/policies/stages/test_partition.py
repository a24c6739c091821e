"""Partitions: the exact program against every partition there is, the heuristic against it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations
from statistics import median
from time import perf_counter

import numpy as np
import pytest

from toolkit.policies.stages.crowd import of_answers
from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.partition import (
    FREE,
    MoveCost,
    Partition,
    Problem,
    exact,
    heuristic,
)
from toolkit.policies.stages.qoe import Qoe
from toolkit.policies.stages.staging import plan_live, plan_stages, stages_for


def _problem(seed: int, **more: object) -> Problem:
    source = random.Random(seed)
    answers = [
        (
            max(1, round(source.lognormvariate(6, 1.3))),
            max(1, round(source.lognormvariate(5, 1.1))),
        )
        for _ in range(source.randint(5, 60))
    ]
    qoe = Qoe(
        (
            10 ** source.uniform(-3, -1.5),
            10 ** source.uniform(-6, -3.5),
            source.choice([0.0, 10 ** source.uniform(-9, -7)]),
            0.0,
            10 ** source.uniform(-9, -5.5),
        ),
        source.choice([0.0, 1e-7, 1e-6]),
    )
    move_s = MoveCost(source.choice([0.0, 0.03, 0.3]), 1e-6)
    crowd = of_answers(answers, source.uniform(4, 100))
    return Problem(crowd, source.randint(2, 6), qoe, move_s, **more)  # type: ignore[arg-type]


def _every(problem: Problem) -> Iterator[Partition]:
    """All partitions at the buckets' bounds of which every stage holds somebody."""
    buckets, instances = len(problem.crowd.bounds), problem.instances
    for stages in range(1, problem.stages + 1):
        for inner in combinations(range(1, buckets), stages - 1):
            cuts = [*inner, buckets]
            edges = zip([0, *inner], cuts, strict=True)
            if not all(problem.crowd.requests[a:b].any() for a, b in edges):
                continue
            for ends in combinations(range(1, instances), stages - 1):
                steps = zip([0, *ends], [*ends, instances], strict=True)
                yield problem.partition(cuts, [b - a for a, b in steps])


@pytest.mark.parametrize("seed", range(12))
def test_the_exact_program_is_as_good_as_the_best_there_is(seed: int) -> None:
    problem = _problem(seed, most_stages=4)
    best = min(each.quality for each in _every(problem))
    assert exact(problem).quality == pytest.approx(best)
    assert heuristic(problem).quality >= best * (1 - 1e-9)


def test_the_heuristic_is_within_one_percent_in_the_median() -> None:
    worse = []
    for seed in range(60):
        problem = _problem(seed)
        worse.append(heuristic(problem).quality / exact(problem).quality - 1)
    assert min(worse) > -1e-9
    assert median(worse) <= 0.01


def test_what_a_partition_costs_is_what_its_batches_cost() -> None:
    """By `Qoe` alone, without the tables."""
    problem = _problem(3)
    crowd = problem.crowd
    found = exact(problem)
    total, low = 0.0, 0
    for place, stage in enumerate(found.layout.stages):
        last = stage.upto is None
        high = len(crowd.bounds) if last else crowd.bounds.index(stage.upto or 0) + 1
        part = [
            np.asarray(column)[low:high]
            for column in (crowd.requests, crowd.prompt, crowd.prompt_squares, crowd.kv)
        ]
        n, prompt, squares, kv = (float(each.sum()) for each in part)
        d, k = problem.qoe.coefficients, stage.replicas
        longest = float(crowd.longest[low:high].max())
        more = min(problem.qoe.mixed * (longest - kv / n), 1.1 * d[4] * kv / k)
        linear = (d[1] * n + d[2] * prompt + d[3] * squares + d[4] * kv) / k
        total += n * (d[0] + linear + more)
        if not last:
            total += crowd.crossing[high - 1] * problem.move_s(crowd.bounds[high - 1])
        low = high
        assert problem.crowd.requests[:high].any(), place
    assert found.quality == pytest.approx(total)


def test_every_instance_is_used_and_the_limit_of_stages_is_kept() -> None:
    for seed in range(20):
        for most in (1, 2, 3):
            problem = _problem(seed, most_stages=most)
            for found in (exact(problem), heuristic(problem)):
                assert found.layout.ranks == problem.instances
                assert len(found.layout.stages) <= most


LONG = [(100, 200)] * 90 + [(20_000, 300)] * 10


def test_two_kinds_of_requests_are_two_stages() -> None:
    qoe = Qoe((0.005, 1e-5, 0, 0, 1e-7))
    found = plan_stages(LONG, 4, qoe, 100.0)
    assert len(found.layout.stages) == 2
    assert 300 < found.layout.bounds[0] < 20_000
    assert found.gain > 0.2


def test_where_lengths_do_not_matter_one_stage_is_best() -> None:
    found = plan_stages(LONG, 4, Qoe((0.01, 0, 0, 0, 0)), 100.0, MoveCost(0.01))
    assert found.layout == Layout.of([(None, 4)])
    assert found.gain == 0


def test_dear_moves_leave_fewer_stages() -> None:
    answers = [(50, 4000)] * 50
    qoe = Qoe((0.005, 1e-5, 0, 0, 1e-7))
    free, dear = (plan_stages(answers, 6, qoe, 100.0, move_s) for move_s in (FREE, MoveCost(100.0)))
    assert len(free.layout.stages) > len(dear.layout.stages) == 1


def test_a_penalty_for_mixed_lengths_makes_stages_worth_more() -> None:
    qoe = Qoe((0.005, 1e-5, 0, 0, 1e-8))
    plain, mixed = (plan_stages(LONG, 4, qoe, 100.0, mixed=m) for m in (0.0, 1e-7))
    assert mixed.gain > plain.gain
    same = plan_stages(LONG, 4, qoe.with_mixed(1e-7), 100.0)
    assert same == mixed


def test_both_ways_and_live_lengths_agree_on_two_kinds() -> None:
    qoe = Qoe((0.005, 1e-5, 0, 0, 1e-7))
    layout = stages_for(LONG, 4, qoe, 100.0)
    assert plan_stages(LONG, 4, qoe, 100.0, method="heuristic").layout == layout
    live = [(i, i + o // 2) for i, o in LONG]
    assert plan_live(live, 4, qoe).layout.stages[-1].replicas == layout.stages[-1].replicas


def test_sixteen_instances_and_128k_are_planned_in_no_time() -> None:
    """The benchmark says how fast; this holds that it is not another order of magnitude."""
    source = random.Random(1)
    answers = [
        (min(120_000, max(1, round(source.lognormvariate(7, 1.8)))), source.randint(1, 2000))
        for _ in range(2000)
    ]
    crowd = of_answers(answers, 1000.0)
    qoe = Qoe((0.01, 1e-5, 0, 0, 2e-8), 1e-7)
    for plan in (exact, heuristic):
        start = perf_counter()
        plan(Problem(crowd, 16, qoe, MoveCost(0.03, 1e-6)))
        assert perf_counter() - start < 0.6


def test_what_cannot_be_planned() -> None:
    crowd = of_answers([(1, 1)], 1.0)
    with pytest.raises(ValueError, match="at least one instance"):
        Problem(crowd, 0, Qoe((1, 0, 0, 0, 0)))
    with pytest.raises(ValueError, match="at least one stage"):
        Problem(crowd, 1, Qoe((1, 0, 0, 0, 0)), most_stages=0)
