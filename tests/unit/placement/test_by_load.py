"""Placements by load alone, and what they are worth to traffic."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.placement import Topology, judge, linear
from toolkit.placement.base import Placement
from toolkit.placement.by_load import busiest, by_load


@given(
    st.integers(1, 3), st.sampled_from([1, 2, 4]), st.integers(1, 4), st.integers(0, 3),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_every_expert_has_a_slot_and_no_gpu_two_of_one(
    layers: int, gpus: int, each: int, more: int, seed: int
) -> None:
    experts, redundant = gpus * each, gpus * min(more, max(0, each * (gpus - 1)))
    load = np.random.default_rng(seed).integers(1, 100, (layers, experts)) ** 3
    found = by_load(load, Topology(gpus), redundant)
    assert found.redundant == redundant and found.gpus == gpus
    assert found.replicas().min() >= 1
    even = busiest(found, load[None].astype(float))[0]
    assert 1 - 1e-9 <= even <= gpus + 1e-9
    known = busiest(linear(layers, experts, Topology(gpus), redundant), load[None])[0]
    # Heaviest first is never worse than 4/3 of the best; the order of numbers may be lucky.
    assert even <= known * 4 / 3 + 1e-9


def test_the_busiest_experts_get_the_replicas() -> None:
    load = np.array([[90.0, 10, 5, 5], [1, 1, 1, 97]])
    found = by_load(load, Topology(2), 2)
    assert found.replicas().tolist()[0][0] == 2 and found.replicas().tolist()[1][3] == 2
    assert busiest(found, load[None])[0] < 1.12
    assert busiest(by_load(load, Topology(2)), load[None])[0] > 1.6


def test_busiest_is_what_judge_says() -> None:
    rng = np.random.default_rng(1)
    ids = np.stack([rng.permuted(np.arange(16))[:4] for _ in range(900)]).reshape(300, 3, 4)
    counts = np.stack([np.bincount(ids[:, layer].ravel(), minlength=16) for layer in range(3)])
    placed = by_load(counts, Topology(4), 8)
    wanted = judge(placed, Topology(4), ids).balance.mean()
    assert busiest(placed, np.stack([counts, 2 * counts])) == pytest.approx([wanted, wanted])


@pytest.mark.parametrize(
    ("load", "redundant", "said"),
    [
        ([1, 2], 0, r"\[layers, experts\]"),
        ([[1, -1]], 0, "negative"),
        ([[1, np.nan]], 0, "not finite"),
        ([[1, 1], [0, 0]], 0, "layer without any"),
        ([[1, 1]], 1, "do not divide"),
    ],
)
def test_other_loads_are_refused(load: Any, redundant: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        by_load(load, Topology(2), redundant)


def test_loads_of_another_model_are_refused() -> None:
    placed = Placement(np.array([[0, 1, 2, 3]]), 4, 2)
    with pytest.raises(ValueError, match="is needed"):
        busiest(placed, np.ones((1, 1, 5)))
    with pytest.raises(ValueError, match="without any"):
        busiest(placed, np.zeros((1, 1, 4)))
