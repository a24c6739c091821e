"""Maps between two placements: each legal, few writes each, and the last one is the target."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.placement import Placement, Topology, from_gpus
from toolkit.placement.relocation import Copies, aligned, arranged, copies, steps


@st.composite
def pairs(draw: Any) -> Any:
    """Two placements of one size, their topology, and how many slots a step may write."""
    nodes, per = draw(st.sampled_from([(1, 1), (1, 3), (2, 2), (3, 2)]))
    gpus, slots, layers = nodes * per, draw(st.integers(1, 4)), draw(st.integers(1, 3))
    physical = gpus * slots
    experts = draw(st.integers(max(2, (physical + gpus - 1) // gpus), max(2, physical)))
    if experts > physical or physical - experts > experts * (gpus - 1):
        experts = max(2, physical)
        if experts > physical:
            slots, physical = 2, gpus * 2
            experts = physical
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))

    def one() -> Placement:
        rows = [
            rng.permutation(np.r_[np.arange(experts), rng.integers(0, experts, physical - experts)])
            for _ in range(layers)
        ]
        return Placement(np.array(rows), experts, gpus)

    return one(), one(), Topology(gpus, per), draw(st.integers(2, 6))


def written(before: Any, after: Any) -> int:
    return sum(a != b for a, b in zip(before, after, strict=True))


@given(pairs())
def test_every_map_is_legal_small_and_the_last_is_the_target(case: Any) -> None:
    current, target, topology, most = case
    rows = {layer: tuple(row) for layer, row in enumerate(current.physical_to_logical.tolist())}
    for step in steps(current, target, topology, most):
        total = 0
        told = Copies()
        for layer, row in step.rows.items():
            assert set(row) == set(range(current.experts))
            total += written(rows[layer], row)
            told += copies(rows[layer], row, topology)
            rows[layer] = row
        assert 0 < total <= most
        assert told == step.copies and told.written == total
    final = arranged(current, target)
    assert [list(rows[layer]) for layer in sorted(rows)] == final.physical_to_logical.tolist()


@given(pairs())
def test_arranging_changes_the_order_within_gpus_only_and_writes_the_least(case: Any) -> None:
    current, target, _, _ = case
    final = arranged(current, target)
    assert (final.held() == target.held()).all()
    least = sum(
        (Counter(want) - Counter(have)).total()
        for have, want in zip(
            current.physical_to_logical.reshape(-1, current.slots).tolist(),
            target.physical_to_logical.reshape(-1, current.slots).tolist(),
            strict=True,
        )
    )
    assert int((final.physical_to_logical != current.physical_to_logical).sum()) == least


@given(pairs())
def test_aligning_renames_gpus_and_nodes_only(case: Any) -> None:
    current, target, topology, _ = case
    other = aligned(current, target, topology)
    parts = [
        sorted(sorted(tuple(sorted(row.ravel())) for row in part) for part in _nodes(p, topology))
        for p in (target, other)
    ]
    assert parts[0] == parts[1]


@pytest.mark.slow
def test_deepseek_s_size_is_split_in_seconds() -> None:
    rng = np.random.default_rng(0)

    def one() -> Placement:
        rows = [rng.permutation(np.r_[:256, rng.integers(0, 256, 32)]) for _ in range(58)]
        return Placement(np.array(rows), 256, 72)

    current, topology = one(), Topology(72, 8)
    target = aligned(current, one(), topology)
    found = steps(current, target, topology, 8)
    least = int(
        (arranged(current, target).physical_to_logical != current.physical_to_logical).sum()
    )
    told = sum(step.copies.written for step in found)
    assert least <= told <= 1.15 * least  # a cycle's pieces write a slot twice


def _nodes(placement: Placement, topology: Topology) -> Any:
    """By node, by GPU: what it holds in all layers."""
    table = placement.physical_to_logical.reshape(placement.layers, topology.gpus, -1)
    keyed = np.sort(table, axis=2) + placement.experts * np.arange(placement.layers)[:, None, None]
    return keyed.transpose(1, 0, 2).reshape(topology.nodes, topology.gpus_per_node, -1)


def test_the_same_placement_under_other_names_moves_nothing() -> None:
    rng = np.random.default_rng(3)
    gpu = np.stack([rng.permutation(np.repeat(np.arange(8), 4)) for _ in range(3)])
    expert = np.tile(np.arange(32), (3, 1))
    one = from_gpus(gpu, expert, 32, 8)
    node, inner = rng.permutation(2), [rng.permutation(4) for _ in range(2)]
    renamed = np.array([node[g // 4] * 4 + inner[g // 4][g % 4] for g in range(8)])
    other = from_gpus(renamed[gpu], expert, 32, 8)
    topology = Topology(8, 4)
    assert steps(one, other, topology, 4)
    assert steps(one, aligned(one, other, topology), topology, 4) == []


def test_a_copy_on_the_gpu_goes_before_one_from_the_node_before_one_across() -> None:
    current = Placement(np.array([[0, 1, 2, 0, 3, 0, 4, 0]] * 3), 5, 4)
    wanted = [
        [0, 1, 2, 0, 3, 0, 4, 1],  # from another node
        [0, 1, 2, 1, 3, 0, 4, 0],  # from the node
        [0, 1, 2, 2, 3, 0, 4, 0],  # on the GPU
    ]
    found = steps(current, Placement(np.array(wanted), 5, 4), Topology(4, 2), 2)
    assert [step.copies for step in found] == [Copies(gpu=1, node=1), Copies(across=1)]
    assert [sorted(step.rows) for step in found] == [[1, 2], [0]]


def test_a_long_cycle_is_turned_piece_by_piece() -> None:
    current = Placement(np.arange(9)[None], 9, 3)
    target = Placement(np.roll(np.arange(9), 1)[None], 9, 3)
    found = steps(current, target, Topology(3), 3)
    assert sum(step.copies.written for step in found) <= 9 + len(found)
    assert all(step.copies.written <= 3 for step in found)


def test_what_cannot_be_done_is_said() -> None:
    one = Placement(np.arange(8)[None], 8, 4)
    other = Placement(np.arange(8)[None], 8, 2)
    with pytest.raises(ValueError, match="all must agree"):
        steps(one, other, Topology(4), 4)
    with pytest.raises(ValueError, match="change places"):
        steps(one, one, Topology(4), 1)
