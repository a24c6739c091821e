"""Partitions: the exact program against every partition there is, the heuristic against it."""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations
from statistics import median

import numpy as np
import pytest

from tests.cpu_time import cpu_s
from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.partition import (
    FREE,
    MoveCost,
    Partition,
    StageProblem,
    exact,
    heuristic,
)
from toolkit.policies.stages.population import of_answers, of_live
from toolkit.policies.stages.problem import NEVER
from toolkit.policies.stages.qoe import Qoe
from toolkit.policies.stages.staging import plan_stages


def _problem(seed: int, **more: object) -> StageProblem:
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
    population = of_answers(answers, source.uniform(4, 100))
    return StageProblem(population, source.randint(2, 6), qoe, move_s, **more)  # type: ignore[arg-type]


def _every(problem: StageProblem) -> Iterator[Partition]:
    for cuts, replicas in _ways(problem):
        yield problem.partition(cuts, replicas)


def _ways(problem: StageProblem) -> Iterator[tuple[list[int], list[int]]]:
    """All partitions at the buckets' bounds of which every stage holds somebody."""
    buckets, instances = len(problem.population.bounds), problem.instances
    for stages in range(1, problem.stages + 1):
        for inner in combinations(range(1, buckets), stages - 1):
            cuts = [*inner, buckets]
            edges = zip([0, *inner], cuts, strict=True)
            if not all(problem.population.requests[a:b].any() for a, b in edges):
                continue
            for ends in combinations(range(1, instances), stages - 1):
                steps = zip([0, *ends], [*ends, instances], strict=True)
                yield cuts, [b - a for a, b in steps]


@pytest.mark.parametrize("seed", range(12))
def test_the_exact_program_is_as_good_as_the_best_there_is(seed: int) -> None:
    problem = _problem(seed, most_stages=4)
    best = min(each.token_s for each in _every(problem))
    assert exact(problem).token_s == pytest.approx(best)
    assert heuristic(problem).token_s >= best * (1 - 1e-9)


def test_the_heuristic_is_within_one_percent_in_the_median() -> None:
    worse = []
    for seed in range(60):
        problem = _problem(seed)
        worse.append(heuristic(problem).token_s / exact(problem).token_s - 1)
    assert min(worse) > -1e-9
    assert median(worse) <= 0.01


def test_so_it_is_at_a_rate() -> None:
    worse = []
    for seed in range(40):
        problem = _at_a_rate(seed, 0.1 + 0.6 * (seed % 7) / 7)
        worse.append(heuristic(problem).token_s / exact(problem).token_s - 1)
    assert min(worse) > -1e-9
    assert median(worse) <= 0.01


def test_what_a_partition_costs_is_what_its_batches_cost() -> None:
    """By `Qoe` alone, without the tables."""
    problem = _problem(3)
    population = problem.population
    found = exact(problem)
    total, low = 0.0, 0
    for place, stage in enumerate(found.layout.stages):
        last = stage.upto is None
        high = len(population.bounds) if last else population.bounds.index(stage.upto or 0) + 1
        part = [
            np.asarray(column)[low:high]
            for column in (
                population.requests,
                population.prompt,
                population.prompt_squares,
                population.kv,
            )
        ]
        n, prompt, squares, kv = (float(each.sum()) for each in part)
        d, k = problem.qoe.coefficients, stage.replicas
        longest = float(population.longest[low:high].max())
        more = min(problem.qoe.mixed * (longest - kv / n), 1.1 * d[4] * kv / k)
        linear = (d[1] * n + d[2] * prompt + d[3] * squares + d[4] * kv) / k
        total += n * (d[0] + linear + more)
        if not last:
            total += population.crossing[high - 1] * problem.move_s(population.bounds[high - 1])
        low = high
        assert problem.population.requests[:high].any(), place
    assert found.token_s == pytest.approx(total / population.in_flight)
    assert sum(found.requests) == pytest.approx(population.in_flight)


def _at_a_rate(seed: int, use: float) -> StageProblem:
    """With so much of what one stage could take by itself."""
    problem = _problem(seed, most_stages=4)
    one = problem.population.sums()
    d = problem.qoe.coefficients
    slope = (d[1] * one[0] + d[2] * one[1] + d[3] * one[2] + d[4] * one[3]) / one[0]
    return replace(problem, tokens_per_s=use * problem.instances / slope)


@pytest.mark.parametrize("use", [0.05, 0.6])
@pytest.mark.parametrize("seed", range(6))
def test_at_a_rate_it_is_as_good_too_and_littles_law_holds(seed: int, use: float) -> None:
    problem = _at_a_rate(seed, use)
    ways = []
    for cuts, replicas in _ways(problem):
        if problem.quality(cuts, replicas) < NEVER:
            ways.append(problem.partition(cuts, replicas).token_s)
    found = exact(problem)
    assert found.token_s == pytest.approx(min(ways))
    assert heuristic(problem).token_s >= min(ways) * (1 - 1e-9)
    low = 0
    for stage, requests in zip(found.layout.stages, found.requests, strict=True):
        last = stage.upto is None
        high = (
            len(problem.population.bounds)
            if last
            else problem.population.bounds.index(stage.upto) + 1
        )
        there = problem.population.sums(low, high)
        each = there.times(requests / there.requests).over(stage.replicas)
        share = there.requests / problem.population.in_flight
        come = problem.tokens_per_s * share * problem.qoe.token_s(each)
        assert requests == pytest.approx(come)
        low = high


def test_a_rate_that_nobody_can_take_is_an_error_and_mixed_lengths_use_up_what_there_is() -> None:
    problem = _at_a_rate(2, 1000.0)
    for plan in (exact, heuristic):
        with pytest.raises(ValueError, match="cannot keep up with"):
            plan(problem)
    qoe = Qoe((0.005, 0.0, 0, 0, 1e-6))
    rates = (500.0, 1500.0, 2000.0)
    made = [exact(StageProblem(of_answers(LONG, 1.0), 8, qoe, tokens_per_s=rate)) for rate in rates]
    assert [each.layout.stages[-1].replicas for each in made] == [5, 6, 7]
    assert 0.1 < made[0].gain < made[1].gain < made[2].gain
    mixed = exact(StageProblem(of_answers(LONG, 1.0), 8, qoe.with_mixed(1e-6), tokens_per_s=1400.0))
    assert mixed.gain > 0.8


def test_a_plan_at_a_rate_does_not_overload_a_stage_that_one_for_a_crowd_would() -> None:
    """Of a crowd the last stage's few requests get one instance; but they come all the time."""
    answers = [(100, 200)] * 200 + [(20_000, 300)] * 4
    qoe = Qoe((0.005, 1e-4, 0, 0, 1e-6))
    tokens = 8000.0
    even = plan_stages(answers, 8, qoe, most_stages=1, tokens_per_s=tokens)
    population = plan_stages(answers, 8, qoe, sum(even.requests))
    steady = plan_stages(answers, 8, qoe, tokens_per_s=tokens)
    assert steady.layout.stages[-1].replicas >= population.layout.stages[-1].replicas
    assert steady.token_s <= even.token_s


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
    layout = plan_stages(LONG, 4, qoe, 100.0).layout
    assert plan_stages(LONG, 4, qoe, 100.0, method="heuristic").layout == layout
    live = [(i, i + o // 2) for i, o in LONG]
    assert (
        exact(StageProblem(of_live(live), 4, qoe)).layout.stages[-1].replicas
        == layout.stages[-1].replicas
    )


MOST_S = 0.6


def test_sixteen_instances_and_128k_are_planned_in_no_time() -> None:
    """The benchmark says how fast; this holds that it is not another order of magnitude."""
    source = random.Random(1)
    answers = [
        (min(120_000, max(1, round(source.lognormvariate(7, 1.8)))), source.randint(1, 2000))
        for _ in range(2000)
    ]
    population = of_answers(answers, 1000.0)
    qoe = Qoe((0.01, 1e-5, 0, 0, 2e-8), 1e-7)
    for plan in (exact, heuristic):
        problem = StageProblem(population, 16, qoe, MoveCost(0.03, 1e-6))
        assert cpu_s(partial(plan, problem), MOST_S) < MOST_S


def test_what_cannot_be_planned() -> None:
    population = of_answers([(1, 1)], 1.0)
    with pytest.raises(ValueError, match="at least one instance"):
        StageProblem(population, 0, Qoe((1, 0, 0, 0, 0)))
    with pytest.raises(ValueError, match="at least one stage"):
        StageProblem(population, 1, Qoe((1, 0, 0, 0, 0)), most_stages=0)


def test_at_least_one_stage_must_be_allowed() -> None:
    with pytest.raises(ValueError, match="at least one stage must be allowed, not 0"):
        _problem(1, most_stages=0)
