"""Gimbal's MILP against every placement there is, ours against the optimum it proves."""

from collections.abc import Iterator
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gimbal_objective import joint_for
from tests.kernels import examples
from tests.unit.placement.cases import counted
from toolkit.placement import Topology, Traffic, gimbal, milp, place
from toolkit.placement.milp import objective


def splits(experts: int, gpus: int) -> list[np.ndarray]:
    """Every way to put equally many experts on each GPU."""
    start = np.repeat(np.arange(gpus), experts // gpus)
    return [np.array(row) for row in sorted(set(permutations(start.tolist())))]


def written_out(traffic: Traffic, gpu: np.ndarray, gpus: int, alpha: float, beta: float) -> float:
    """Eq. 5 to 12 with loops; gpu [L, E]."""
    worst = cut = 0.0
    layers, experts = traffic.load.shape
    for i in range(layers):
        ideal = traffic.load[i].sum() / gpus
        for p in range(gpus):
            worst = max(worst, abs(traffic.load[i, gpu[i] == p].sum() - ideal))
    for i in range(layers - 1):
        for j in range(experts):
            for k in range(experts):
                cut += traffic.affinity[i, j, k] * (gpu[i, j] != gpu[i + 1, k])
    return alpha * worst + beta * cut


def everything(traffic: Traffic, gpus: int, tied: bool) -> Iterator[np.ndarray]:
    """Every placement [L, E]."""
    rows = splits(traffic.experts, gpus)
    if tied:
        return (np.tile(row, (traffic.layers, 1)) for row in rows)
    return (np.stack(choice) for choice in product(rows, repeat=traffic.layers))


@st.composite
def tiny(draw: st.DrawFn, layers: int, experts: int) -> Traffic:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    load = rng.integers(0, 9, (layers, experts)).astype(float)
    load[:, 0] += 1
    affinity = rng.integers(0, draw(st.sampled_from([2, 9])), (layers - 1, experts, experts))
    return Traffic(load, affinity)  # type: ignore[arg-type]


@settings(max_examples=examples(12), deadline=None)
@given(tiny(3, 6), st.sampled_from([2, 3]), st.sampled_from([0.5, 8.0]))
def test_tied_optimum_is_the_best_of_all_placements(
    traffic: Traffic, gpus: int, alpha: float
) -> None:
    solution = milp(traffic, Topology(gpus), alpha=alpha, beta=2.0)
    best = min(written_out(traffic, g, gpus, alpha, 2.0) for g in everything(traffic, gpus, True))
    assert solution.objective == pytest.approx(best, abs=1e-6)
    assert solution.bound == pytest.approx(best, abs=1e-3)
    rows = solution.placement.physical_to_logical
    assert (rows == rows[0]).all()


@settings(max_examples=examples(12), deadline=None)
@given(tiny(3, 4), st.sampled_from([0.5, 8.0]))
def test_untied_optimum_is_the_best_of_all_placements(traffic: Traffic, alpha: float) -> None:
    solution = milp(traffic, Topology(2), alpha=alpha, tied=False)
    best = min(written_out(traffic, g, 2, alpha, 1.0) for g in everything(traffic, 2, False))
    assert solution.objective == pytest.approx(best, abs=1e-6)
    assert solution.bound == pytest.approx(best, abs=1e-3)
    assert solution.gap == pytest.approx(0, abs=1e-4)


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None)
@given(tiny(2, 6))
def test_untied_on_three_gpus(traffic: Traffic) -> None:
    solution = milp(traffic, Topology(3), tied=False)
    best = min(written_out(traffic, g, 3, 1.0, 1.0) for g in everything(traffic, 3, False))
    assert solution.objective == pytest.approx(best, abs=1e-6)


# HiGHS takes up to half a minute for a proof; the numbers are the same in every run.
PROVEN = ([(3, 8, 2, 2), 1.0], [(3, 6, 3, 2), 20.0])
PROVEN_LATE = ([(3, 8, 2, 2), 20.0], [(3, 6, 3, 2), 1.0], [(3, 9, 3, 2), 1.0], [(3, 9, 3, 2), 20.0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "alpha"),
    [*PROVEN, *(pytest.param(*each, marks=pytest.mark.full) for each in PROVEN_LATE)],
)
def test_ours_is_within_three_percent_of_the_proven_optimum(
    size: tuple[int, int, int, int], alpha: float
) -> None:
    layers, experts, gpus, k = size
    traffic = counted(layers, experts, k, 3)
    solution = milp(traffic, Topology(gpus), alpha=alpha, tied=False, time_limit=120)
    if solution.gap is None or solution.gap > 1e-4:
        pytest.skip("HiGHS proved no optimum on this machine")
    placement, value = joint_for(traffic, Topology(gpus), alpha, 1.0)
    assert value == pytest.approx(objective(placement, traffic, alpha, 1.0))
    assert solution.bound * (1 - 1e-5) <= value <= 1.03 * solution.objective


def test_tied_is_never_better_than_untied() -> None:
    traffic = counted(3, 6, 2, 1)
    tied = milp(traffic, Topology(2))
    untied = milp(traffic, Topology(2), tied=False)
    heuristic = objective(gimbal(traffic, Topology(2)), traffic, 1.0, 1.0)
    assert untied.objective <= tied.objective + 1e-6
    assert tied.objective <= heuristic + 1e-6
    assert untied.objective < 0.95 * tied.objective


@pytest.mark.slow
def test_a_proof_that_was_not_finished_says_so() -> None:
    traffic = counted(5, 16, 3, 0)
    try:
        solution = milp(traffic, Topology(4), alpha=20.0, tied=False, time_limit=2)
    except TimeoutError as slow:
        assert "found no placement in 2" in str(slow)
        return
    assert solution.gap is None or solution.gap > 0.01
    assert solution.bound < solution.objective


@pytest.mark.parametrize("tied", [True, False])
def test_what_cannot_fit_is_refused_at_once(tied: bool) -> None:
    traffic = Traffic(np.ones((4, 256)), np.ones((3, 256, 256)))
    with pytest.raises(ValueError, match=r"256 experts on 64 GPUs need .* variables.*'joint'"):
        milp(traffic, Topology(64), tied=tied)


def test_bad_prices() -> None:
    with pytest.raises(ValueError, match="alpha -1"):
        milp(counted(2, 4, 2, 0), Topology(2), alpha=-1)
    with pytest.raises(ValueError, match="nor both zero"):
        milp(counted(2, 4, 2, 0), Topology(2), alpha=0, beta=0)


@pytest.mark.parametrize("name", ["gimbal", "milp"])
def test_the_paper_has_no_replicas(name: str) -> None:
    with pytest.raises(ValueError, match="the paper has no redundant experts"):
        place(name, counted(2, 4, 2, 0), Topology(2), 2)
