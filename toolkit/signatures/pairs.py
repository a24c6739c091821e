"""Pairs of requests, and their cosine distances per layer without forming every vector."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from toolkit.signatures.calibration import Floats, Indices

Doubles = NDArray[np.float64]

JUDGED = 50_000
"""Pairs on which rho is reported, at least, where there are so many."""
_SMALLEST_GROUP = 20
_GRID = 2.0**20


@dataclass(frozen=True, eq=False)
class PairSample:
    """All pairs inside random groups of requests: [G, g] members, P = G * g * (g - 1) / 2 pairs.

    `left`, `right`: [P] positions in `members.ravel()`, which has M = G * g entries.

    Why groups. Dot products inside a group are a small matrix product, twenty times faster than
    gathering the same number of pairs one by one; and every request occurs in the same number of
    pairs. What limits a pair statistic such as rho is the number of requests, not of pairs, once
    the pairs are many and use all requests alike (Blom, "Some properties of incomplete
    U-statistics", 1976): a few tens of thousands do nearly as well as all N * (N - 1) / 2.
    """

    members: Indices
    left: Indices
    right: Indices

    @classmethod
    def draw(cls, order: Indices, seed: int, pairs: int = JUDGED) -> PairSample:
        """Groups of the requests in `order` [N], all of them up to a remainder below G."""
        requests = len(order)
        wanted = max(_SMALLEST_GROUP, 2 * pairs / requests + 1)
        groups = max(1, round(requests / wanted))
        size = requests // groups
        shuffled = np.random.default_rng(seed).permutation(order)
        members = shuffled[: groups * size].reshape(groups, size)
        first, second = np.triu_indices(size, 1)
        base = np.arange(groups)[:, None] * size
        return cls(members, (base + first).ravel(), (base + second).ravel())

    def __len__(self) -> int:
        return len(self.left)

    def pick(self, which: Indices) -> PairSample:
        """The same members, only those pairs."""
        return replace(self, left=self.left[which], right=self.right[which])

    def products(self, vectors: Floats) -> tuple[Floats, Floats]:
        """Dot products [P] of all pairs, and squares [M] of the members' vectors [M, D].

        For a sample as drawn; a picked one takes its pairs out of the result. The same on every
        CPU: each vector is rounded to whole numbers of a power of two of its own, as few bits as
        sums of their products have room for (see `toolkit.exact`).
        """
        groups, size = self.members.shape
        whole, scale = _whole(vectors.reshape(groups, size, -1))
        gram = whole @ whole.transpose(0, 2, 1)
        first, second = np.triu_indices(size, 1)
        diagonal = np.arange(size)
        dots = gram[:, first, second] * (scale[:, first] * scale[:, second])
        squares = gram[:, diagonal, diagonal] * scale**2
        return dots.astype(np.float32).ravel(), squares.astype(np.float32).ravel()

    def distances(self, dots: NDArray[np.floating], squares: NDArray[np.floating]) -> Doubles:
        """Cosine distances [..., P] in units of 2^-20, from dots [..., P] and squares [..., M].

        Whole numbers: float32 dot products are not exact beyond that, and without rounding the
        distances of identical requests would be noise instead of ties. A zero vector is at
        distance 1 from all.
        """
        norms = np.sqrt(squares, dtype=np.float64)
        scale = norms[..., self.left] * norms[..., self.right]
        cosine = np.zeros(scale.shape)
        np.divide(dots, scale, out=cosine, where=scale > 0)
        np.subtract(1.0, cosine, out=cosine)
        cosine *= _GRID
        return np.rint(cosine, out=cosine)


def _whole(vectors: Floats) -> tuple[Doubles, Doubles]:
    """Each vector [..., D] as whole numbers, and the power of two [...] that they count."""
    bits = (53 - int(vectors.shape[-1]).bit_length()) // 2
    most = np.abs(vectors).max(axis=-1, initial=0.0)
    scale = np.ldexp(1.0, np.frexp(most)[1] - bits)
    return np.rint(vectors / scale[..., None]), scale
