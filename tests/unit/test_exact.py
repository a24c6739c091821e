"""Decisions are the same whatever the kernels, the order of summation, the last bits of inputs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from tests.synthetic_routing import Recipe, token_ids
from toolkit import exact
from toolkit.placement import Topology, Traffic, gimbal, judge, milp
from toolkit.placement.joint import Weights, joint
from toolkit.policies.base import RequestView
from toolkit.policies.brh import BrHPolicy, MarginAhead
from toolkit.policies.level import GapNow
from toolkit.policies.predictors import make_predictor
from toolkit.policies.predictors.outlook import Outlook
from toolkit.policies.support.expert_locality import Centroids
from toolkit.policies.support.inflight_lengths import InflightLengths
from toolkit.policies.support.inflight_signatures import InflightSignatures
from toolkit.setup.kernels import ASKED, Kernels, available, cpu_flags
from toolkit.signatures import nearest
from toolkit.signatures.nearness import nearness
from toolkit.signatures.pairs import PairSample
from toolkit.simulate.experts import Mixture, SimulatedExperts

ROOT = Path(__file__).resolve().parents[2]
SEEDS = st.integers(0, 2**32)


def unit_rows(rows: int, values: int, seed: int = 0) -> np.ndarray:
    """Unit vectors [rows, values], float32, none negative."""
    found = np.random.default_rng(seed).random((rows, values)) ** 4
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


@given(SEEDS)
def test_cosines_do_not_know_the_order_of_the_sum(seed: int) -> None:
    one, other = unit_rows(7, 300, seed), unit_rows(5, 300, seed + 1)
    shuffled = np.random.default_rng(seed).permutation(300)
    found = exact.cosines(one, other)
    assert (found == exact.cosines(one[:, shuffled], other[:, shuffled])).all()
    assert np.allclose(found, one.astype(float) @ other.T.astype(float), atol=1e-6)


def test_a_grid_holds_what_it_is_told_and_zeros() -> None:
    assert exact.grid(np.array([0.5, -1.0, 3.0]), 4).tolist() == [3, -5, 16]
    assert exact.grid(np.array([0.5, 1.0]), 4, 2.0).tolist() == [4, 8]
    assert exact.grid(np.zeros((2, 2)), 4).tolist() == [[0, 0], [0, 0]]
    assert exact.grid(np.zeros(0), 4).tolist() == []


@pytest.mark.parametrize("copies", [2, 3, 5, 7, 11])
def test_the_first_of_equal_centroids_is_the_nearest(copies: int) -> None:
    points, rows = unit_rows(67, 1536), np.tile(unit_rows(3, 1536, 1), (copies, 1))
    assert nearest(points, rows).max() < 3
    near = [Centroids(rows, {}).cosines(point).reshape(copies, 3) for point in points]
    assert all((each == each[0]).all() for each in near)
    assert nearness(points, rows) == nearness(points, rows[:3])


def test_pairs_do_not_know_the_order_of_the_sum() -> None:
    sample = PairSample.draw(np.arange(60), 0)
    vectors = unit_rows(60, 333) * 50
    shuffled = np.random.default_rng(0).permutation(333)
    for one, other in zip(
        sample.products(vectors), sample.products(vectors[:, shuffled]), strict=True
    ):
        assert (one == other).all()


@given(SEEDS)
def test_inflight_signatures_come_back_to_where_they_were(seed: int) -> None:
    points, worker = unit_rows(12, 200, seed), ("d0", None)
    fresh, used = InflightSignatures(200), InflightSignatures(200)
    for point in points[:4]:
        fresh.add(worker, point)
    for point in np.random.default_rng(seed).permutation(points):
        used.add(worker, point)
    for point in points[4:]:
        used.remove(worker, point)
    assert used.cosines(points[0]) == fresh.cosines(points[0])


@given(st.lists(st.integers(0, 100_000), min_size=2, max_size=24), st.integers(1, 1000))
def test_level_values_a_request_alike_where_it_fits_below_the_mean(
    loads: list[int], size: int
) -> None:
    """F is then its size, to the bit: a tie that the next part is asked about."""
    floats = [float(load) for load in loads]
    values = GapNow(floats, [False] * len(loads)).across(float(size))
    for load, value in zip(loads, values, strict=True):
        if (sum(loads) - load) / (len(loads) - 1) - load > size + 1:
            assert value == size


@settings(max_examples=examples(20))
@given(SEEDS, st.integers(1, 9))
def test_ranks_with_equal_loads_are_equal_to_brh(seed: int, copies: int) -> None:
    loads = np.random.default_rng(seed).integers(0, 90_000, (4, 81)).astype(float)
    discounts = BrHPolicy(gamma=0.93)._discounts(None)  # type: ignore[arg-type]
    margins = MarginAhead(np.tile(loads, (copies, 1)), discounts, 1.0, 48.0)
    alone = MarginAhead(loads.copy(), discounts, 1.0, 48.0)
    ranks = range(4 * copies)
    assert [margins.burden(g) for g in ranks] == [alone.burden(g % 4) for g in ranks]
    for size in (10.0, 7777.0, 90_000.0):
        assert margins.across(size) == alone.across(size) * copies
        assert [margins.values(g, [size])[0] for g in ranks] == margins.across(size)


@pytest.mark.parametrize("noise", [-1e-12, 0.0, 1e-12])
def test_half_a_step_is_rounded_the_same_way_on_either_side(noise: float) -> None:
    class Half:
        """Every request stays for 3.5 steps, give or take rounding."""

        def __getattr__(self, name: str) -> Any:
            return getattr(make_predictor("survival"), name)

        def outlook(self, flight: Any, horizon: int) -> Outlook:
            count = len(flight.age)
            return Outlook(np.ones(count), np.full(count, 3.5 + noise))

    lengths = InflightLengths(Half())
    lengths.sent("a", ("d", 0), RequestView(prompt_tokens=10))
    assert lengths.projections([("d", 0)], 8)[0].tolist() == [10, 11, 12, 13, 0, 0, 0, 0, 0]


def test_gimbal_links_nobody_where_all_pairs_are_equal() -> None:
    """The mean of equal numbers may round to less than they are."""
    load = np.arange(12.0, 0.0, -1.0)[None].repeat(2, axis=0)
    plain = gimbal(Traffic(load, np.zeros((1, 12, 12))), Topology(3))
    for weight in np.random.default_rng(0).random(50):
        pairs = np.full((1, 12, 12), weight)
        found = gimbal(Traffic(load, pairs), Topology(3), sigmas=0.5)
        assert (found.physical_to_logical == plain.physical_to_logical).all()


def test_an_objective_that_rounding_alone_makes_is_zero() -> None:
    """Nothing needs to be cut, all loads are equal: gap 0, though two sums differ by 4e-15."""
    rng, pairs = np.random.default_rng(6), np.zeros((3, 4, 4))
    pairs[:, :2, :2], pairs[:, 2:, 2:] = rng.random((3, 2, 2)), rng.random((3, 2, 2))
    solution = milp(Traffic(np.full((4, 4), 0.1), pairs), Topology(2))
    assert (solution.objective, solution.bound, solution.gap) == (0.0, 0.0, 0.0)


def turning(busy: float, idle: float, turns: int) -> np.ndarray:
    """Windows [turns, 3, 16] in which one half of the experts is busy, then the other."""
    half = np.repeat([0, 1], 8)
    windows = np.stack([np.where(half == turn % 2, busy, idle) for turn in range(turns)])
    return np.repeat(windows[:, None], 3, axis=1)


def placed(windows: np.ndarray, weights: Weights) -> tuple[np.ndarray, float]:
    """The placement, and how busy its busiest GPU is while one half of the experts is."""
    half = np.repeat([0, 1], 8)
    pairs = np.where(half[:, None] == half, 10.0, 1.0)
    traffic = Traffic(windows.sum(axis=0), np.stack([pairs, pairs]), windows)
    found = joint(traffic, Topology(2), 0, 0, weights)
    busiest = judge(found, Topology(2), Traffic(windows[0], traffic.affinity)).balance.max()
    return found.physical_to_logical, float(busiest)


@pytest.mark.parametrize("drift", [0.0, 0.01])
def test_a_start_that_does_not_sway_at_all_is_guarded(drift: float) -> None:
    """Two windows and 256 tokens a layer: the sway is exactly 0 on every CPU."""
    assert placed(turning(28.0, 4.0, 2), Weights(drift=drift))[1] < 1.01


@pytest.mark.parametrize("seed", range(2))
def test_the_guard_does_not_hang_on_the_last_bits(seed: int) -> None:
    windows, weights = turning(40.0, 4.0, 16), Weights()
    noise = np.random.default_rng(seed).choice([-1e-15, 0.0, 1e-15], windows.shape)
    table, busiest = placed(windows, weights)
    shaken, also = placed(windows * (1 + noise), weights)
    assert (table == shaken).all()
    assert max(busiest, also) < 1.01


def test_synthetic_experts_come_in_ascending_order() -> None:
    ids = token_ids(200, Recipe(3, 24, 4, document=16), 0)
    assert (np.diff(ids, axis=2) > 0).all()


def test_distinct_experts_do_not_carry_the_last_bits_of_exp() -> None:
    counts = np.random.default_rng(0).integers(0, 9, (4, 3, 16))
    mixture = Mixture(SimulatedExperts(counts, np.full(4, 9)))
    for row in range(4):
        mixture.add(row)
    before = mixture.distinct(), mixture.busiest()
    mixture.total *= 1 + 1e-12
    assert (mixture.distinct(), mixture.busiest()) == before


def decisions(kernels: Kernels) -> subprocess.Popen[str]:
    """A process that makes `tests.kernel_decisions` with these kernels."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.kernel_decisions"],
        cwd=ROOT, env=os.environ | kernels.environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(ASKED in os.environ, reason="compares all kernels itself")
def test_every_kernel_decides_the_same_to_the_last_bit() -> None:
    known = available(cpu_flags())
    assert len(known) >= 2, "Prescott and one more run on every CPU that SGLang runs on"
    running = [decisions(kernels) for kernels in known]
    found = [json.loads(process.communicate(timeout=600)[0]) for process in running]
    differing = {place for each in found for place in each if each[place] != found[0][place]}
    assert differing == set()
    assert len(found[0]) > 20
