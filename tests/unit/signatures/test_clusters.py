"""Balanced spherical k-means: its bound, its determinism, and that it finds what is there."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import examples
from toolkit.signatures import balanced_assignment, balanced_kmeans, nearest, vanilla_kmeans
from toolkit.signatures.space import normalise


@st.composite
def signature_sets(draw: st.DrawFn) -> np.ndarray:
    """Unit, repeated and zero signatures."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    points = draw(st.integers(1, 40))
    distinct = draw(st.integers(1, points))
    rows = rng.integers(0, 4, size=(distinct, draw(st.integers(1, 12)))).astype(np.float32)
    return normalise(rows[rng.integers(distinct, size=points)])


@settings(max_examples=examples(150), deadline=None)
@given(signature_sets(), st.integers(1, 12), st.integers(0, 5))
def test_balance_bound_full_clusters_and_unit_centroids(signatures: Any, k: int, seed: int) -> None:
    k = min(k, len(signatures))
    found = balanced_kmeans(signatures, k, seed, restarts=2)
    assert found.sizes.sum() == len(signatures)
    assert (found.sizes == np.bincount(found.labels, minlength=k)).all()
    assert found.sizes.max() <= -(-len(signatures) // k)
    assert found.sizes.min() >= 1
    lengths = np.linalg.norm(found.centroids, axis=1)
    assert ((np.abs(lengths - 1) < 1e-5) | (lengths == 0)).all()
    for cluster, centroid in enumerate(found.centroids):
        total = signatures[found.labels == cluster].astype(float).sum(axis=0)
        assert centroid == pytest.approx(total / (np.linalg.norm(total) or 1.0), abs=1e-4)
    own = (1 - signatures @ found.centroids.T)[np.arange(len(signatures)), found.labels]
    assert found.inertia == pytest.approx(own.sum(), abs=1e-4)
    assert found.zeros == (~signatures.any(axis=1)).sum()


@settings(max_examples=examples(60), deadline=None)
@given(signature_sets(), st.integers(1, 6), st.randoms(use_true_random=False))
def test_order_of_the_requests_does_not_change_the_cost(
    signatures: Any, k: int, random: Any
) -> None:
    k = min(k, len(signatures))
    order = list(range(len(signatures)))
    random.shuffle(order)
    found = balanced_kmeans(signatures, k, 1)
    again = balanced_kmeans(signatures[order], k, 1)
    assert again.inertia == found.inertia
    assert (np.sort(again.sizes) == np.sort(found.sizes)).all()


def blobs(sizes: list[int], dimensions: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centers = rng.random((len(sizes), dimensions)) ** 4
    labels = np.repeat(np.arange(len(sizes)), sizes)
    rows = centers[labels] + 0.05 * rng.random((len(labels), dimensions))
    return normalise(rows.astype(np.float32)), labels


def test_finds_equal_blobs_exactly() -> None:
    signatures, labels = blobs([25] * 6)
    found = balanced_kmeans(signatures, 6)
    for blob in range(6):
        assert len(set(found.labels[labels == blob])) == 1
    assert (nearest(signatures, found.centroids) == found.labels).all()


def test_final_labels_are_the_exact_assignment_to_the_final_centroids() -> None:
    signatures, _ = blobs([70, 10, 12, 9, 3])
    found = balanced_kmeans(signatures, 5, 2)
    costs = 1.0 - (signatures @ found.centroids.T).astype(np.float64)
    assert found.inertia == pytest.approx(balanced_assignment(costs).cost, abs=1e-4)


def test_vanilla_is_closer_and_unbalanced() -> None:
    signatures, _ = blobs([90, 10, 10, 10])
    free, bound = vanilla_kmeans(signatures, 4), balanced_kmeans(signatures, 4)
    assert free.sizes.max() == 90
    assert bound.sizes.max() == 30
    assert free.inertia < bound.inertia


def test_restarts_keep_the_best_and_a_seed_repeats() -> None:
    rng = np.random.default_rng(0)
    signatures = normalise(rng.random((150, 10), dtype=np.float32))
    runs = [balanced_kmeans(signatures, 8, 1, restarts=n) for n in range(1, 9)]
    inertia = [run.inertia for run in runs]
    assert inertia == sorted(inertia, reverse=True)
    assert inertia[-1] < inertia[0]
    again = balanced_kmeans(signatures, 8, 1, restarts=8)
    assert (again.labels == runs[-1].labels).all()
    assert (again.centroids == runs[-1].centroids).all()


@pytest.mark.slow
@pytest.mark.parametrize("distinct", [1, 5])
def test_repeated_signatures_make_balanced_clusters_in_a_few_rounds(distinct: int) -> None:
    """Equal points are equal in cost, and may not change places for ever."""
    rng = np.random.default_rng(1)
    rows = normalise(rng.random((distinct, 1280), dtype=np.float32))
    found = balanced_kmeans(rows[rng.integers(distinct, size=3000)], 16)
    assert found.sizes.max() <= 188
    assert found.sizes.min() >= 1
    assert found.iterations < 15


@pytest.mark.parametrize(
    ("k", "words"), [(0, "at least one decode worker"), (-3, "k = -3"), (7, "run at least 7")]
)
def test_bad_k(k: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        balanced_kmeans(normalise(np.ones((6, 3), dtype=np.float32)), k)


def test_rows_that_are_no_signatures() -> None:
    for rows in (np.full((4, 3), np.nan), np.full((4, 3), 2.0)):
        with pytest.raises(ValueError, match="length 1 or 0"):
            balanced_kmeans(rows.astype(np.float32), 2)
