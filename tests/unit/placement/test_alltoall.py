"""Copies that travel against tokens followed one by one."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from tests.unit.placement.cases import Case, cases, routed
from toolkit.placement import Placement, Topology, joint, linear
from toolkit.placement.alltoall import ACROSS, NODE, OWN, Wire, sent

TOPOLOGY = Topology(4, 2)


def followed(gpu: np.ndarray, home: np.ndarray, unit: str, per_node: int, gpus: int) -> np.ndarray:
    """[G, 3] copies that leave each home, for experts of one layer on `gpu` [T, k]."""
    out = np.zeros((gpus, 3))

    def kind(one: int, other: int) -> int:
        if one == other:
            return OWN
        return NODE if one // per_node == other // per_node else ACROSS

    for places, rank in zip(gpu.tolist(), home.tolist(), strict=True):
        for place in places if unit == "pair" else sorted(set(places)):
            if unit != "node":
                out[rank, kind(rank, place)] += 1
                continue
            entry = place // per_node * per_node + rank % per_node
            if place == rank:
                out[rank, OWN] += 1
            elif place != entry:
                out[entry, NODE] += 1
        if unit == "node":
            nodes = {place // per_node for place in places} - {rank // per_node}
            out[rank, ACROSS] += len(nodes)
    return out


@pytest.mark.parametrize("unit", ["pair", "gpu", "node"])
def test_without_replicas_it_is_counting(unit: str) -> None:
    ids = routed(3, 8, 2, 0, 300)
    home = np.random.default_rng(0).integers(0, 4, len(ids))
    found = sent(linear(3, 8, TOPOLOGY), TOPOLOGY, ids, home, unit=unit)  # type: ignore[arg-type]
    for layer in range(3):
        expected = followed(ids[:, layer] // 2, home, unit, 2, 4)
        np.testing.assert_allclose(found.sent[layer], expected, atol=1e-6)
    if unit == "pair":
        assert found.nodes is None
        return
    distinct = [[len(set((row // 4).tolist())) for row in token] for token in ids]
    np.testing.assert_allclose(found.nodes, np.mean(distinct, axis=0), atol=1e-6)  # type: ignore[arg-type]


def test_nearest_goes_to_the_replica_in_the_node() -> None:
    placement = Placement(np.array([[0, 1, 2, 3, 0, 1, 4, 5]]), 6, 4)
    ids = np.array([[[0, 5]]] * 4)
    found = sent(placement, TOPOLOGY, ids, np.arange(4))
    # Expert 0 lies on GPUs 0 and 2, expert 5 on GPU 3.
    np.testing.assert_allclose(
        found.sent[0], [[1, 0, 1], [0, 1, 1], [1, 1, 0], [1, 1, 0]], atol=1e-6
    )
    dynamic = sent(placement, TOPOLOGY, ids, np.arange(4), dispatch="random")
    np.testing.assert_allclose(dynamic.copies[0], [2, 2, 4], atol=1e-6)


@pytest.mark.parametrize("unit", ["gpu", "node"])
def test_replicas_that_are_picked_by_chance_are_an_expectation(unit: str) -> None:
    placement = Placement(np.array([[0, 0, 1, 2, 0, 3, 1, 4]]), 5, 4)
    ids = np.array([[[0, 1]], [[0, 3]], [[1, 2]]])
    home = np.array([0, 3, 1])
    expected = np.zeros((4, 3))
    gpu = np.arange(8) // 2
    where = [gpu[placement.physical_to_logical[0] == expert] for expert in range(5)]
    for token, rank in zip(ids[:, 0], home, strict=True):
        choices = list(product(*(where[expert] for expert in token)))
        for picked in choices:
            one = followed(np.array([picked]), np.array([rank]), unit, 2, 4)
            expected += one / len(choices)
    found = sent(placement, TOPOLOGY, ids, home, unit=unit, dispatch="random")  # type: ignore[arg-type]
    np.testing.assert_allclose(found.sent[0], expected, atol=1e-6)


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(cases(), st.integers(0, 2**32), st.sampled_from(["random", "nearest"]))
def test_what_is_sent_arrives(case: Case, seed: int, dispatch: str) -> None:
    placement = joint(case.traffic, case.topology, case.redundant)
    rng = np.random.default_rng(seed)
    shape = (20, placement.layers)
    k = min(2, placement.experts)
    ids = np.stack([rng.permutation(placement.experts)[:k] for _ in range(20 * shape[1])])
    ids = ids.reshape(*shape, k)
    home = rng.integers(0, case.topology.gpus, 20)
    before = np.inf
    for unit in ("pair", "gpu", "node"):
        found = sent(placement, case.topology, ids, home, unit=unit, dispatch=dispatch)  # type: ignore[arg-type]
        np.testing.assert_allclose(found.copies, found.received.sum(axis=1), atol=1e-4)
        assert found.copies[:, ACROSS].sum() <= before + 1e-4
        before = found.copies[:, ACROSS].sum()
        assert found.shares.sum() == pytest.approx(1)
        if unit == "pair":
            np.testing.assert_allclose(found.load.sum(axis=1), 20 * k, atol=1e-4)


def test_bytes_are_copies_times_elements() -> None:
    ids = routed(2, 8, 2, 0, 10)
    found = sent(linear(2, 8, TOPOLOGY), TOPOLOGY, ids, np.zeros(10, int))
    out, back = found.bytes(Wire(hidden=100, dispatch=1, combine=2))
    assert out.sum() == 10 * 2 * 2 * 100
    np.testing.assert_allclose(back, 2 * out)
    assert Wire().dispatch * 128 == 132


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unit": "rank"}, "unknown unit"),
        ({"dispatch": "row"}, "no home ranks"),
        ({"home": np.array([0, 4])}, "it must lie in 0 .. 3"),
        ({"home": np.array([0])}, "for 2 tokens"),
        ({"home": np.array([0.0, 1.0])}, "whole numbers"),
        ({"ids": np.array([[[0, 8]]] * 2)}, "it must lie in 0 .. 7"),
        ({"ids": np.zeros((2, 2, 2), int)}, "the placement needs"),
        ({"ids": np.zeros((0, 1, 2), int), "home": np.zeros(0, int)}, "at least one token"),
    ],
)
def test_bad_input_is_named(change: Any, message: str) -> None:
    good = {"ids": np.array([[[0, 1]]] * 2), "home": np.array([0, 1])}
    with pytest.raises(ValueError, match=message):
        sent(linear(1, 8, TOPOLOGY), TOPOLOGY, **(good | change))


def test_a_wire_without_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Wire(hidden=0)
