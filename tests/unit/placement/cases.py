"""Small placement problems for the tests."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from tests.synthetic_routing import Recipe, token_ids
from toolkit.placement import Topology, Traffic, count


@dataclass(frozen=True)
class Case:
    """A problem whose sizes fit together."""

    traffic: Traffic
    topology: Topology
    redundant: int


def routed(layers: int, experts: int, k: int, seed: int, tokens: int = 1500) -> np.ndarray:
    """Ids with strong affinity for few experts."""
    recipe = Recipe(layers, experts, k, 1.0, families=3, topics=2, classes=3, document=16)
    return token_ids(tokens, recipe, seed)


@st.composite
def cases(draw: st.DrawFn, most_layers: int = 4, replicas: bool = True) -> Case:
    """Random counts, ties and zeros included; every size that divides."""
    nodes, per_node = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    gpus, slots = nodes * per_node, draw(st.integers(1, 4))
    physical = gpus * slots
    fewest = max(2, -(-physical // gpus))
    if physical < fewest:
        gpus, nodes, per_node, physical = 2, 1, 2, 2 * slots
        fewest = 2
    experts = draw(st.integers(fewest, physical)) if replicas else physical
    layers = draw(st.integers(1, most_layers))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    load = rng.integers(0, draw(st.sampled_from([2, 50])), (layers, experts)).astype(float)
    load[:, 0] += 1
    affinity = rng.integers(0, draw(st.sampled_from([1, 3, 100])), (layers - 1, experts, experts))
    windows = rng.poisson(load, (4, *load.shape)) if draw(st.booleans()) else None
    traffic = Traffic(load, affinity, windows)  # type: ignore[arg-type]
    return Case(traffic, Topology(gpus, per_node), physical - experts)


def counted(layers: int, experts: int, k: int, seed: int) -> Traffic:
    """`count` of `routed`."""
    return count(routed(layers, experts, k, seed), experts)


# README of github.com/deepseek-ai/EPLB: 2 layers x 12 experts, 16 replicas, 4 groups, 2 nodes of 4.
WEIGHT = [
    [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
    [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
]
