"""The wide-EP server of `locality_simulated`: its steps, and what is fitted to what."""

import numpy as np
import pytest

from tests.benchmarks.locality_simulated import bests
from tests.benchmarks.shared import wide_server
from tests.benchmarks.shared.node_step import KV_TOKENS, step_s
from tests.benchmarks.shared.wide_server import cost, wide
from tests.present import present
from toolkit.placement import Topology, linear
from toolkit.simulate.crossing import Crossing
from toolkit.simulate.experts import SimulatedExperts


def test_a_step_is_that_of_locality_nodes() -> None:
    layers, gpus = wide_server.LAYERS, 16
    rng = np.random.default_rng(0)
    row = np.argsort(rng.random((layers, 256)), axis=1)[:, :8]
    counts = np.zeros((1, layers, 256))
    np.put_along_axis(counts[0], row, 10, axis=1)
    topology = Topology(gpus, 8)
    placement = linear(layers, 256, topology, 32)
    model = cost(gpus)
    crossing = Crossing(
        SimulatedExperts(counts, np.full(1, 10)).placed(placement), present(model.links), gpus
    )
    per_rank = 16
    for rank in range(gpus):
        for _ in range(per_rank):
            crossing.add(rank, 0)
    attention = np.full(gpus, per_rank * KV_TOKENS)
    ours = model.decode_s(np.full(gpus, per_rank), attention, 0.0) + crossing.seconds()
    home = np.repeat(np.arange(gpus), per_rank)
    ids = np.broadcast_to(row, (len(home), *row.shape))
    theirs = step_s(placement, topology, ids, home, overlap=False)
    assert ours == pytest.approx(theirs * wide_server.WHOLE / layers, rel=0.01)


@pytest.mark.slow
def test_placements_are_judged_on_requests_that_they_were_not_fitted_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wide_server, "LAYERS", 3)
    monkeypatch.setattr(wide_server, "REQUESTS", 96)
    found = wide(2, 0).experts
    assert list(found) == ["eplb", "lay"]
    for experts in found.values():
        assert experts.gpus == 16
        assert len(experts) == 96
        assert experts.signatures is not None
        assert present(experts.pairs).sum(axis=2) == pytest.approx(np.full((96, 3), 8.0), rel=1e-3)


def test_the_best_balancer_is_taken_over_both_placements() -> None:
    rounds = {
        arm: [{"tpot_mean": tpot}]
        for arm, tpot in {
            "shortest_queue/eplb": 3.0,
            "shortest_queue/lay": 2.0,
            "pooled@shortest_queue/eplb": 1.0,
            "eldr/lay": 0.5,
        }.items()
    }
    assert bests(rounds) == {
        "unpooled": "shortest_queue/lay",
        "pooled": "pooled@shortest_queue/eplb",
    }
