"""The whole fit: determinism, refits, matching of old and new, degraded and refused input."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from tests.unit.signatures.synthetic import synthetic_counts
from toolkit.signatures import fit, match_centroids
from toolkit.signatures.space import normalise

SHAPE = {"layers": 6, "experts": 24, "top_k": 4, "domains": 4}


@pytest.fixture(scope="module")
def measured() -> Any:
    return synthetic_counts(120, **SHAPE)


def test_fit_finds_the_domains(measured: Any) -> None:
    prefill, decode, tokens, domains = measured
    fitted = fit(prefill, decode, tokens, 4)
    assert fitted.k == 4
    assert fitted.centroids.shape == (4, fitted.space.dimensions)
    assert fitted.clusters.sizes.max() <= 30
    assert fitted.notes == ()
    assert fitted.space.curve == fitted.mask.curve
    assert fitted.space.layers == fitted.mask.layers
    table = np.zeros((4, 4))
    np.add.at(table, (fitted.labels, domains), 1)
    assert table.max(axis=1).sum() / 120 > 0.6
    unseen = synthetic_counts(200, seed=9, **SHAPE)
    table = np.zeros((4, 4))
    np.add.at(table, (fitted.assign(unseen[0]), unseen[3]), 1)
    assert table.max(axis=1).sum() / 200 > 0.6


def test_the_order_of_the_requests_does_not_matter(measured: Any) -> None:
    prefill, decode, tokens, _ = measured
    order = np.random.default_rng(5).permutation(120)
    one, two = (
        fit(prefill[rows], decode[rows], tokens[rows], 5, 3) for rows in (np.arange(120), order)
    )
    assert one.mask == two.mask
    assert one.clusters.inertia == two.clusters.inertia
    assert (one.centroids == two.centroids).all()
    assert (one.labels[order] == two.labels).all()


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 10**6))
def test_matching_is_the_best_of_all(new: int, old: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    fresh, kept = (normalise(rng.random((k, 6)).astype(np.float32)) for k in (new, old))
    workers = match_centroids(fresh, kept)
    assert len(set(workers.tolist())) == new
    cosine = np.pad(np.round((fresh @ kept.T).astype(float), 6), ((0, 0), (0, max(0, new - old))))
    best = max(
        sum(cosine[i, j] for i, j in enumerate(choice))
        for choice in itertools.permutations(range(cosine.shape[1]), new)
    )
    assert cosine[np.arange(new), workers].sum() == pytest.approx(best, abs=1e-9)
    if new > old:
        assert set(workers.tolist()) == set(range(new))
        added = workers[workers >= old]
        assert (np.diff(added) > 0).all()


def test_a_worker_keeps_its_requests_over_a_refit(measured: Any) -> None:
    prefill, decode, tokens, _ = measured
    old = fit(prefill, decode, tokens, 4)
    shuffled = replace(old, clusters=replace(old.clusters, centroids=old.centroids[[1, 3, 0, 2]]))
    assert match_centroids(shuffled.centroids, old.centroids).tolist() == [1, 3, 0, 2]


def test_counts_of_another_model_are_refused(measured: Any) -> None:
    prefill, decode, tokens, _ = measured
    with pytest.raises(ValueError, match="another model"):
        fit(prefill, decode, tokens, 3).space.signatures(prefill[:, :3])


def test_matching_refuses_other_spaces() -> None:
    with pytest.raises(ValueError, match="different signature spaces"):
        match_centroids(np.eye(2, 3, dtype=np.float32), np.eye(2, 4, dtype=np.float32))
    with pytest.raises(ValueError, match="NaN"):
        match_centroids(np.full((1, 2), np.nan, np.float32), np.eye(2, dtype=np.float32))


def test_identical_prompts_keep_all_layers_and_balanced_clusters() -> None:
    prefill = np.tile(np.arange(1, 13).reshape(1, 3, 4), (50, 1, 1))
    fitted = fit(prefill, prefill, np.full(50, 12), 8)
    assert math.isnan(fitted.mask.rho)
    assert fitted.space.layers == (0, 1, 2)
    assert fitted.space.curve == ()
    assert "IDF weights are all zero" in fitted.notes[0]
    assert "rho is undefined" in fitted.notes[1]
    assert fitted.clusters.sizes.max() <= 7
    assert np.linalg.norm(fitted.centroids, axis=1) == pytest.approx(np.ones(8))


def test_alike_in_the_decode_only() -> None:
    prefill = np.random.default_rng(0).integers(0, 9, size=(30, 3, 5))
    fitted = fit(prefill, np.ones_like(prefill), np.full(30, 2), 4)
    assert len(fitted.space.layers) == 3
    assert len(fitted.notes) == 1
    assert "rho is undefined" in fitted.notes[0]


def test_requests_without_a_signature_are_told(measured: Any) -> None:
    prefill, decode, tokens, _ = (array.copy() for array in measured)
    prefill[:, :, 0] += 1
    prefill[:7] = 0
    prefill[:7, :, 0] = 5  # only the expert that every request fires
    fitted = fit(prefill, decode, tokens, 4)
    assert fitted.notes[-1].startswith("7 of 120 requests")
    assert fitted.clusters.zeros == 7


@pytest.mark.parametrize("requests", [1, 2, 3])
def test_tiny_sets(requests: int) -> None:
    prefill, decode, tokens, _ = synthetic_counts(requests, **SHAPE)
    fitted = fit(prefill, decode, tokens, requests, variant="count")
    assert sorted(fitted.labels.tolist()) == list(range(requests))
    assert ["rho is undefined" in note for note in fitted.notes] == [True] * (requests < 3)


def test_variants_are_fitted_by_name(measured: Any) -> None:
    prefill, decode, tokens, _ = measured
    plain, binary = (fit(prefill, decode, tokens, 4, variant=v) for v in ("count", "binary"))
    assert (plain.space.weights == 1).all()
    assert not plain.space.binary
    assert binary.space.binary
    assert not plain.space.same_as(binary.space)
    with pytest.raises(ValueError, match="known: count, binary, count_idf"):
        fit(prefill, decode, tokens, 4, variant="gate")


@pytest.mark.parametrize("k", [0, -1, 121])
def test_k_out_of_range(measured: Any, k: int) -> None:
    with pytest.raises(ValueError, match=r"at least (one|121)"):
        fit(*measured[:3], k)  # type: ignore[call-arg]


def test_unsigned_and_float_counts_fit_alike(measured: Any) -> None:
    prefill, decode, tokens, _ = measured
    small = fit(prefill.astype(np.uint16), decode.astype(np.uint8), tokens, 3)
    assert small.mask.rho == pytest.approx(
        fit(prefill.astype(float), decode.astype(float), tokens, 3).mask.rho, abs=0.02
    )
