"""Rank correlation and the greedy layer mask."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.stats import rankdata, spearmanr

from tests.kernels import examples
from tests.unit.signatures.synthetic import synthetic_counts
from toolkit.signatures import (
    Calibration,
    SignatureSpace,
    compare_variants,
    greedy_mask,
    idf_weights,
    signature_rho,
)
from toolkit.signatures import mask as mask_module
from toolkit.signatures.correlation import ranks, spearman
from toolkit.signatures.pairs import PairSample

rows_of = arrays.arrays(
    np.float64,
    st.tuples(st.integers(1, 4), st.integers(1, 25)),
    elements=st.integers(0, 4).map(float) | st.floats(-5, 5),
)


@given(rows_of)
@settings(deadline=None)
def test_ranks_and_spearman_are_scipys(rows: Any) -> None:
    expected = rankdata(rows, axis=1)
    assert ranks(rows) == pytest.approx(expected - (rows.shape[1] + 1) / 2)
    found = spearman(rows, ranks(rows[0]))
    for row, rho in zip(rows, found, strict=True):
        if rows.shape[1] < 2 or np.ptp(row) == 0 or np.ptp(rows[0]) == 0:
            assert math.isnan(rho)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert rho == pytest.approx(spearmanr(row, rows[0]).statistic, abs=1e-9)


@given(st.integers(1, 1200), st.integers(0, 3))
@settings(deadline=None, max_examples=examples(60))
def test_a_pair_sample_uses_all_requests_alike_and_no_pair_twice(requests: int, seed: int) -> None:
    sample = PairSample.draw(np.arange(requests), seed, pairs=2000)
    groups, size = sample.members.shape
    assert requests - groups < groups * size <= requests
    assert len(np.unique(sample.members)) == groups * size
    assert len(sample) == groups * size * (size - 1) // 2
    assert (sample.left < sample.right).all()
    pairs = sample.left.astype(np.int64) * requests + sample.right
    assert len(np.unique(pairs)) == len(pairs)
    if requests * (requests - 1) // 2 <= 2000:
        assert len(sample) == requests * (requests - 1) // 2


def brute_force_rho(space: SignatureSpace, data: Calibration) -> float:
    """The definition, over every pair, in float64."""
    signatures = space.signatures(data.prefill).astype(np.float64)
    use = (data.decode / data.tokens[:, None, None]).reshape(data.requests, -1)
    use = use / np.linalg.norm(use, axis=1, keepdims=True)
    upper = np.triu_indices(data.requests, 1)
    left, right = 1 - signatures @ signatures.T, 1 - use @ use.T
    return float(spearmanr(left[upper], right[upper]).statistic)


def small(requests: int = 60, seed: int = 0, **shape: int) -> Calibration:
    shape = {"layers": 6, "experts": 24, "top_k": 4, "domains": 4, **shape}
    prefill, decode, tokens, _ = synthetic_counts(requests, seed=seed, **shape)
    return Calibration(prefill, decode, tokens)


def space_of(data: Calibration, layers: tuple[int, ...] | None = None) -> SignatureSpace:
    every = tuple(range(data.layers))
    return SignatureSpace(idf_weights(data.prefill), layers or every)


def test_rho_is_the_definition() -> None:
    data = small()
    mask = greedy_mask(data, space_of(data))
    assert mask.pairs == 60 * 59 // 2
    for layers, rho in [
        (mask.layers, mask.rho),
        (mask.order, mask.rho_all_layers),
        (mask.order[:2], mask.curve[1]),
        ((3,), mask.singles[3]),
    ]:
        assert rho == pytest.approx(brute_force_rho(space_of(data, layers), data), abs=2e-4)
        assert rho == pytest.approx(signature_rho(space_of(data, layers), data), abs=2e-4)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(3, 25), st.integers(1, 5), st.integers(2, 6), st.integers(0, 10**6), st.booleans()
)
def test_mask_is_never_below_the_best_single_layer_nor_no_mask(
    n: int, layers: int, experts: int, seed: int, binary: bool
) -> None:
    rng = np.random.default_rng(seed)
    prefill = rng.integers(0, 4, size=(n, layers, experts))
    decode = rng.integers(0, 4, size=(n, layers, experts))
    prefill[0] = decode[0] = 1  # no silent layer
    data = Calibration(prefill, decode, np.full(n, 3))
    space = SignatureSpace(rng.random((layers, experts)), tuple(range(layers)), binary=binary)  # type: ignore[arg-type]
    mask = greedy_mask(data, space, seed)
    assert sorted(mask.order) == list(range(layers))
    assert mask.layers == mask.order[: len(mask.layers)]
    if math.isnan(mask.rho):
        assert len(mask.layers) == layers
        return
    assert mask.rho == np.nanmax(mask.curve)
    assert mask.rho >= np.nanmax(mask.singles)
    assert not mask.rho < mask.rho_all_layers
    assert signature_rho(SignatureSpace(space.weights, mask.layers, binary=binary), data) == (
        pytest.approx(mask.rho, abs=0.02)  # the same pairs, other roundings: ties may split
    )


def test_a_layer_of_noise_is_left_out_and_the_search_is_greedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = small(120)
    rng = np.random.default_rng(1)
    noisy = data.prefill.copy()
    noisy[:, 2] = rng.permutation(noisy[:, 2]) * 20
    data = Calibration(noisy, data.decode, data.tokens)
    mask = greedy_mask(data, space_of(data))
    assert 2 not in mask.layers
    assert mask.rho > mask.rho_all_layers + 0.05
    # Each layer added is the best of those left, by the definition.
    monkeypatch.setattr(mask_module, "SEARCHED", 10**9)
    exact = greedy_mask(data, space_of(data))
    for place in range(data.layers):
        chosen, left = exact.order[:place], exact.order[place:]
        rhos = [brute_force_rho(space_of(data, (*chosen, layer)), data) for layer in left]
        assert rhos[0] >= max(rhos) - 2e-4


def test_equal_layers_are_taken_in_order() -> None:
    data = small(40, layers=1)
    twice = Calibration(
        np.repeat(data.prefill, 3, axis=1), np.repeat(data.decode, 3, axis=1), data.tokens
    )
    assert greedy_mask(twice, space_of(twice)).order == (0, 1, 2)


@pytest.mark.slow
def test_the_sample_finds_nearly_what_all_pairs_find(monkeypatch: pytest.MonkeyPatch) -> None:
    data = small(400, layers=12)
    sampled = greedy_mask(data, space_of(data))
    monkeypatch.setattr(mask_module, "SEARCHED", 10**9)
    assert sampled.rho > greedy_mask(data, space_of(data)).rho - 0.003


@pytest.mark.slow
def test_variants_on_requests_that_were_not_fitted() -> None:
    fitted, judged = small(150, seed=1), small(150, seed=2)
    found = {variant.name: variant for variant in compare_variants(fitted, judged)}
    assert list(found) == ["count", "binary", "count_idf"]
    assert all(variant.held_out for variant in found.values())
    assert found["count_idf"].rho > found["binary"].rho
    own = {variant.name: variant for variant in compare_variants(fitted)}
    for variant in own.values():
        assert variant.rho >= variant.rho_all_layers
        assert variant.layers == found[variant.name].layers
