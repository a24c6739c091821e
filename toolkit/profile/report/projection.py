"""Signatures of requests in two dimensions, and how far clusters agree with labels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST = 800  # requests drawn; more would hide each other and cost seconds


@dataclass(frozen=True)
class Flat:
    """`points` [n, 2] of the requests `rows` [n]; `shares` of the variance along each axis."""

    points: NDArray[Any]
    rows: list[int]
    shares: tuple[float, float]


def project(arrays: Mapping[str, NDArray[Any]], mask: Sequence[int]) -> Flat:
    """The first two principal components of the signatures (counts x IDF over `mask`, length 1).

    With more than MOST requests an even sample is taken. Each axis's sign is fixed (its largest
    point is positive), so that one profile always gives one picture.
    """
    import numpy as np

    n = len(arrays["prefill_counts"])
    rows = np.unique(np.linspace(0, n - 1, min(n, MOST)).astype(int)).tolist()
    layers = list(mask) or list(range(arrays["idf"].shape[0]))
    counts = arrays["prefill_counts"][np.ix_(rows, layers)].astype(np.float32)
    flat = (counts * arrays["idf"][layers]).reshape(len(rows), -1)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)
    flat -= flat.mean(0)
    # The SVD of X through that of X X' (n x n): X has up to 15,000 columns.
    left, values, _ = np.linalg.svd((flat @ flat.T).astype(np.float64), hermitian=True)
    points = left[:, :2] * np.sqrt(np.maximum(values[:2], 0.0))
    if points.shape[1] < 2:
        points = np.pad(points, ((0, 0), (0, 2 - points.shape[1])))
    flip = np.take_along_axis(points, np.abs(points).round(6).argmax(0)[None], 0)
    points = points * np.where(flip < 0, -1.0, 1.0)
    total = float(values.sum()) or 1.0
    shares = [float(v) / total for v in values[:2]] + [0.0, 0.0]
    return Flat(points, rows, (shares[0], shares[1]))


def mutual_information(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """Normalised mutual information of two labellings: 0 independent, 1 the same groups."""
    n = len(one)
    if not n:
        return 0.0

    def entropy(labels: Sequence[Hashable]) -> float:
        return -sum(c / n * math.log(c / n) for c in Counter(labels).values())

    first, second = entropy(one), entropy(other)
    both = entropy(list(zip(one, other, strict=True)))
    mean = (first + second) / 2
    return max(0.0, (first + second - both) / mean) if mean > 0 else 0.0
