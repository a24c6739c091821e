"""What a placement does to a centroid's requests, as the router estimates it."""

import numpy as np
import pytest

from toolkit.placement import Topology
from toolkit.placement.by_load import busiest, by_load
from toolkit.router.eldr.map_match import imbalance
from toolkit.signatures.space import SignatureSpace

LAYERS, EXPERTS, GPUS = 3, 16, 4


def test_a_centroid_tells_the_load_of_the_layers_that_are_kept() -> None:
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.5, 2, (LAYERS, EXPERTS)).astype(np.float32)
    counts = rng.zipf(1.5, (5, LAYERS, EXPERTS)).clip(0, 500)
    space = SignatureSpace(weights, (2, 0))
    rows = space.signatures(counts)
    placements = [by_load(each, Topology(GPUS), 4) for each in counts]
    found = imbalance(placements, rows, space)
    kept = [
        busiest(type(p)(p.physical_to_logical[[0, 2]], EXPERTS, GPUS), counts[:, [0, 2]])
        for p in placements
    ]
    assert found == pytest.approx(np.stack(kept), rel=1e-5)
    assert (found.argmin(axis=1) == np.arange(5)).all()


def test_layers_in_which_a_centroid_has_nothing_do_not_count() -> None:
    weights = np.ones((LAYERS, EXPERTS), np.float32)
    weights[1] = 0  # all requests use all of it
    space = SignatureSpace(weights, (0, 1))
    counts = np.ones((2, LAYERS, EXPERTS))
    counts[1, 0, :8] = 9
    placement = by_load(counts[1], Topology(GPUS))
    assert imbalance([placement], space.signatures(counts), space) == pytest.approx(np.ones((1, 2)))
    nothing = SignatureSpace(weights, (1,))
    rows = np.zeros((2, EXPERTS), np.float32)
    assert (imbalance([placement], rows, nothing) == 1).all()
