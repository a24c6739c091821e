"""Where Gimbal's ablation lays experts, and what that costs."""

import numpy as np
import pytest

from tests.benchmarks.shared import gimbal_experts
from tests.benchmarks.shared.gimbal_experts import EVEN, LINEAR, WORST, laid, worst
from toolkit.placement import Traffic
from toolkit.simulate.experts import Mixture


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LAYERS", 6), ("EXPERTS", 32), ("TOP", 4), ("REQUESTS", 40)):
        monkeypatch.setattr(gimbal_experts, name, value)


def step_s(one: gimbal_experts.Laid, batch: int) -> float:
    """A decode step of the first requests, what crosses aside."""
    mixture = Mixture(one.experts)
    for row in range(batch):
        mixture.add(row)
    distinct = mixture.distinct() if one.cost.links is None else mixture.busiest()
    base = one.cost.decode.base
    if one.cost.links is not None:
        base += gimbal_experts._bases(one.cost.links)
    return base + one.cost.decode.per_distinct * distinct


def test_the_busier_half_of_each_layer_is_together() -> None:
    load = np.array([[4.0, 1, 3, 2], [1, 2, 3, 4]])
    table = worst(Traffic(load, np.ones((1, 4, 4)))).physical_to_logical
    assert [set(row[:2].tolist()) for row in table] == [{0, 2}, {2, 3}]


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_no_placement_is_better_than_even_or_worse_than_worst() -> None:
    found = laid(0)
    others = [one for kind, one in found.items() if kind not in (EVEN, WORST)]
    assert len(others) == 3
    for batch in (2, 12, 40):
        for one in others:
            assert step_s(found[EVEN], batch) < step_s(one, batch) < step_s(found[WORST], batch)
    prefill = {kind: one.cost.prefill.per_token for kind, one in found.items()}
    assert min(prefill, key=prefill.__getitem__) == EVEN
    assert max(prefill, key=prefill.__getitem__) == WORST


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_no_placement_changes_what_leaves_its_gpu() -> None:
    found = laid(1)
    shares = [one.across for kind, one in found.items() if kind != EVEN]
    assert shares == pytest.approx([0.5] * len(shares), abs=0.02)
    assert found[LINEAR].pairs > 1
    # Judged on requests that placements were not fitted to.
    assert found[LINEAR].experts.traffic == tuple(range(gimbal_experts.REQUESTS))
