"""Experts and clusters laid together: planted structure, legality, load bounds, bad input."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from tests.synthetic_routing import Recipe, families, token_ids
from toolkit.placement import Topology, from_gpus, nodes, sent
from toolkit.placement.alltoall import ACROSS
from toolkit.placement.clusters import lay
from toolkit.placement.inside import settle
from toolkit.placement.nodes import Nodes
from toolkit.placement.replicas import items, pack, replicate

TOPOLOGY = Topology(8, 2)


def load_of(ids: np.ndarray, cluster: np.ndarray, experts: int) -> np.ndarray:
    """[C, L, E] of ids [T, L, k] whose tokens belong to clusters [T]."""
    found = np.zeros((cluster.max() + 1, ids.shape[1], experts))
    for layer in range(ids.shape[1]):
        np.add.at(found, (cluster[:, None], layer, ids[:, layer].astype(int)), 1)  # type: ignore[arg-type]
    return found


def test_planted_clusters_never_cross() -> None:
    # Cluster c uses experts 4c..4c+3 (in another order in each layer), so nothing need cross.
    rng = np.random.default_rng(0)
    load = np.zeros((4, 3, 16))
    for layer in range(3):
        for cluster, own in enumerate(rng.permutation(16).reshape(4, 4)):
            load[cluster, layer, own] = 5
    laid = lay(load, TOPOLOGY)
    assert sorted(laid.nodes.tolist()) == [0, 1, 2, 3]
    node = laid.placement.held().reshape(3, 16, 4, 2).sum(axis=3)
    for cluster, home in enumerate(laid.nodes):
        assert (node[..., home][load[cluster] > 0] == 1).all()


def test_clusters_alike_share_a_node() -> None:
    load = np.ones((8, 2, 16))
    for cluster in range(8):
        load[cluster, :, 4 * (cluster % 4) : 4 * (cluster % 4) + 4] = 50
    laid = lay(load, TOPOLOGY)
    assert (laid.nodes[:4] == laid.nodes[4:]).all()
    assert sorted(laid.home.tolist()) == list(range(8))


def test_a_cluster_s_rank_holds_what_it_uses_most() -> None:
    # Clusters 2n and 2n + 1 share node n's experts, and each prefers two of them.
    load = np.ones((8, 1, 16))
    for cluster in range(8):
        load[cluster, 0, 4 * (cluster // 2) : 4 * (cluster // 2) + 4] = 20
        load[cluster, 0, 2 * cluster : 2 * cluster + 2] = 40
    laid = lay(load, TOPOLOGY)
    held = laid.placement.held()[0]
    for cluster, rank in enumerate(laid.home):
        assert held[2 * cluster : 2 * cluster + 2, rank].all()


def test_popular_experts_are_replicated_where_they_are_used() -> None:
    load = np.full((4, 1, 28), 4.0)
    for cluster in range(4):
        load[cluster, 0, 4 + 6 * cluster : 10 + 6 * cluster] = 30
    load[:, 0, 0] = 20  # used by all clusters alike
    laid = lay(load, TOPOLOGY, redundant=4)
    assert laid.placement.replicas()[0].argmax() == 0
    assert laid.placement.replicas()[0, 0] == 4


def test_traffic_and_balance_against_load_only() -> None:
    recipe = Recipe(layers=3, experts=64, top_k=4, affinity=0.8, families=4, document=8)
    ids, family = token_ids(8000, recipe, 0), families(8000, recipe, 0)
    topology = Topology(16, 4)
    load = load_of(ids, family, 64)
    laid = lay(load, topology, 16)
    start = items(load.sum(axis=0), replicate(load.sum(axis=0), 16, 16), 16)
    gpu = pack(start, 64, 16)
    limit = max(np.bincount(row, w, 16).max() for row, w in zip(gpu, start.weight, strict=True))
    # Each family at home on its node, its tokens on all of the node's ranks in turn.
    home = laid.nodes[family] * 4 + np.arange(len(ids)) % 4
    found = sent(laid.placement, topology, ids, home)
    assert found.shares[2] < 0.5 * 12 / 16
    assert (found.load.max(axis=1) / found.load.mean(axis=1)).max() < limit * 1.1


@st.composite
def problems(draw: st.DrawFn) -> Any:
    nodes, per_node, slots = (
        draw(st.integers(2, 4)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
    )
    physical = nodes * per_node * slots
    experts = draw(st.integers(max(2, -(-physical // nodes)), physical))
    clusters, layers = draw(st.integers(nodes, 9)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    load = rng.integers(0, draw(st.sampled_from([2, 30])), (clusters, layers, experts)) + 0.0
    load[:, :, 0] += 1
    return load, Topology(nodes * per_node, per_node), physical - experts


@settings(max_examples=examples(40))
@given(problems())
def test_any_problem_gets_a_legal_answer(problem: Any) -> None:
    load, topology, redundant = problem
    laid = lay(load, topology, redundant)
    held = laid.placement.held().reshape(*load.shape[1:], topology.nodes, -1).sum(axis=3)
    assert held.max() == 1
    clusters = np.bincount(laid.nodes, minlength=topology.nodes)
    assert clusters.max() <= -(-len(load) // topology.nodes)
    assert 0 <= laid.home.min() <= laid.home.max() < topology.gpus
    again = lay(load, topology, redundant)
    assert (again.placement.physical_to_logical == laid.placement.physical_to_logical).all()
    assert (again.home == laid.home).all()


def test_what_replicas_serve_is_what_is_sent() -> None:
    rng = np.random.default_rng(1)
    topology = Topology(3, 1)
    ids = np.stack([rng.permutation(12)[:3] for _ in range(900)])[:, None]
    home = rng.integers(0, 3, 900)
    saved = np.zeros((12, 3))
    np.add.at(saved, (ids[:, 0], home[:, None]), 1)
    layer = Nodes(saved / saved.sum() * 3, topology, 6)
    expert, node = layer.levelled(1.1)
    placement = from_gpus(node[None], expert[None], 12, 3)
    found = sent(placement, topology, ids, home)
    load = np.bincount(node, layer.busy(expert, node), 3)
    np.testing.assert_allclose(load, found.load[0] / 900, atol=1e-6)


def test_settle_lowers_load_before_it_gains() -> None:
    weight = np.array([[0.9, 0.8, 0.2, 0.1]])
    gain = np.zeros((1, 4, 2))
    gain[0, :2, 0] = 1  # both heavy ones would rather be together
    none = np.zeros((1, 4))
    gpu = settle(weight, none, gain, np.array([[0, 0, 1, 1]]), np.array([1.05]), 1e4)
    assert gpu[0, 0] != gpu[0, 1]
    free = settle(weight, none, gain, np.array([[0, 1, 0, 1]]), np.array([9.0]), 1e4)
    assert free.tolist() == [[0, 0, 1, 1]]


def test_settle_levels_what_comes_from_other_nodes() -> None:
    weight = np.full((1, 4), 0.5)
    remote = np.array([[0.4, 0.4, 0.1, 0.1]])
    gpu = settle(weight, remote, np.zeros((1, 4, 2)), np.array([[0, 0, 1, 1]]), np.ones(1), 1e4)
    assert gpu[0, 0] != gpu[0, 1]


def test_a_node_that_serves_others_most_has_less_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three families on four nodes: the fourth has what the others leave."""
    recipe = Recipe(layers=4, experts=64, top_k=4, families=3, topics=4, document=8)
    ids, family = token_ids(24000, recipe, 0), families(24000, recipe, 0)
    cluster = 8 * family + np.arange(24000) // 8 % 8  # eight clusters of each family
    load, topology = load_of(ids, cluster, 64), Topology(16, 4)

    def most() -> tuple[float, float]:
        """The busiest node's pairs from other nodes, and in all; of the mean, mean of layers."""
        laid = lay(load, topology, 16)
        into = sent(laid.placement, topology, ids, laid.home[cluster]).received
        by_node = into.reshape(4, 4, 4, 3).sum(axis=2)
        both = by_node[..., ACROSS], by_node.sum(axis=2)
        return tuple(float((part.max(1) / part.mean(1)).mean()) for part in both)  # type: ignore[return-value]

    remote, load_ = most()
    monkeypatch.setattr(nodes, "SPARED", 0.0)
    as_much, even = most()
    assert remote < 0.95 * as_much
    assert load_ < even + 0.1 / 3 + 0.01


@pytest.mark.parametrize(
    ("load", "topology", "redundant", "message"),
    [
        (np.ones((4, 16)), TOPOLOGY, 0, "is needed"),
        (np.ones((4, 1, 15)), TOPOLOGY, 0, "do not divide"),
        (-np.ones((4, 1, 16)), TOPOLOGY, 0, "negative"),
        (np.full((4, 1, 16), np.nan), TOPOLOGY, 0, "not finite"),
        (np.ones((4, 1, 16)), Topology(8), 0, "on one node"),
        (np.ones((3, 1, 16)), TOPOLOGY, 0, "fit 4 or more"),
        (np.ones((4, 1, 8)), TOPOLOGY, 32, "at most 24"),
        (np.ones((4, 1, 16)) * (np.arange(4) > 0)[:, None, None], TOPOLOGY, 0, "in cluster 0"),
        (np.ones((4, 2, 16)) * (np.arange(2) > 0)[:, None], TOPOLOGY, 0, "in layer 0"),
    ],
)
def test_bad_input_is_named(load: Any, topology: Any, redundant: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lay(load, topology, redundant)
