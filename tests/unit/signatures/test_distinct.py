"""Expected distinct experts: against a simulation, against chance, and what is skipped."""

from typing import Any

import numpy as np
import pytest

from tests.unit.signatures.synthetic import synthetic_counts
from toolkit.signatures import Calibration, distinct_reduction, expected_distinct, fit

SHAPE = {"layers": 5, "experts": 24, "top_k": 4, "domains": 4}


def measured(requests: int, seed: int = 0) -> tuple[Calibration, np.ndarray]:
    prefill, decode, tokens, domains = synthetic_counts(requests, seed=seed, **SHAPE)
    return Calibration(prefill, decode, tokens), domains


def test_formula_equals_drawing_the_experts() -> None:
    data, _ = measured(12)
    batches = np.array([[0, 3, 5], [7, 8, 11]])
    found = expected_distinct(data, batches)
    rng = np.random.default_rng(1)
    use = data.decode / data.tokens[:, None, None]
    for batch, row in zip(batches, found, strict=True):
        drawn = rng.random((4000, 3, *use.shape[1:])) < use[batch]
        assert row == pytest.approx(drawn.any(axis=1).sum(axis=2).mean(axis=0), abs=0.15)


def test_a_batch_of_one_loads_its_own_experts() -> None:
    data, _ = measured(6)
    found = expected_distinct(data, np.arange(6)[:, None])
    share = data.decode.sum(axis=2) / data.tokens[:, None]
    assert found == pytest.approx(share, rel=1e-5)


def test_clusters_of_unseen_requests_share_experts() -> None:
    seen, _ = measured(300)
    unseen, domains = measured(400, seed=8)
    fitted = fit(seen.prefill, seen.decode, seen.tokens, 4)
    clusters = distinct_reduction(unseen, fitted.assign(unseen.prefill), batch=8)
    labels = distinct_reduction(unseen, domains, batch=8)
    chance = np.random.default_rng(0).permutation(domains)
    none = distinct_reduction(unseen, chance, batch=8)
    assert clusters.reduction > 5 * clusters.reduction_error
    assert labels.reduction > 5 * labels.reduction_error
    assert abs(none.reduction) < 4 * none.reduction_error
    assert clusters.mean < clusters.random_mean <= SHAPE["experts"]
    assert clusters.per_layer.shape == (5,)
    assert clusters.per_layer.mean() == pytest.approx(clusters.mean)
    assert clusters.skipped == ()


def test_small_groups_are_skipped_and_said_so() -> None:
    data, _ = measured(40)
    groups = np.array(["code"] * 20 + ["law"] * 17 + ["rare"] * 3)
    found = distinct_reduction(data, groups, batch=8, batches=50)
    assert found.skipped == ("rare: 3 requests, fewer than a batch of 8",)
    # The skipped group's requests are in neither side: poison them and nothing changes.
    decode = data.decode.copy()
    decode[37:] = data.tokens[37:, None, None]
    poisoned = Calibration(data.prefill, decode, data.tokens)
    again = distinct_reduction(poisoned, groups, batch=8, batches=50)
    assert again.mean == found.mean
    assert again.random_mean == found.random_mean


@pytest.mark.parametrize(
    ("groups", "batch", "words"),
    [
        (np.zeros(9, dtype=int), 2, "expected"),
        (np.arange(10), 2, "no group has 2 requests"),
        (np.zeros(10, dtype=int), 0, "at least 1 request"),
    ],
)
def test_bad_input(groups: Any, batch: int, words: str) -> None:
    data, _ = measured(10)
    with pytest.raises(ValueError, match=words):
        distinct_reduction(data, groups, batch)
