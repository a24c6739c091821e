"""From stored counts to one centroid for each decode worker."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.signatures.calibration import Calibration, Counts, Floats, Indices
from toolkit.signatures.clusters import (
    Clusters,
    balanced_kmeans,
    check_k,
    nearest,
)
from toolkit.signatures.mask import LayerMask, greedy_mask
from toolkit.signatures.space import SignatureSpace
from toolkit.signatures.variants import variant_space


@dataclass(frozen=True, eq=False)
class CentroidFit:
    """The signature space, how its mask was found, and the clusters of the fitted requests.

    `space_notes`: what a reader should know of how the space was found, see `notes`.
    """

    space: SignatureSpace
    mask: LayerMask
    clusters: Clusters
    space_notes: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know of the data, in words; empty when all is well."""
        zeros = self.clusters.zeros
        if not zeros:
            return self.space_notes
        return (
            *self.space_notes,
            f"{zeros} of {len(self.labels)} requests fire only experts that every request fires: "
            "their signature is zero, near no centroid, and load alone can route them.",
        )

    @property
    def k(self) -> int:
        """Decode workers fitted for."""
        return len(self.clusters.centroids)

    @property
    def centroids(self) -> Floats:
        """[K, D] float32, unit length; row k belongs to worker k."""
        return self.clusters.centroids

    @property
    def labels(self) -> Indices:
        """[N]: the cluster of each fitted request."""
        return self.clusters.labels

    def assign(self, counts: Counts) -> Indices:
        """[M]: the nearest centroid of each request with counts [M, L, E]; the lowest of equals."""
        return nearest(self.space.signatures(counts), self.centroids)


def fit(
    counts_prefill: Counts,
    counts_decode: Counts,
    tokens_decode: NDArray[Any],
    k: int,
    seed: int = 0,
    variant: str = "count_idf",
) -> CentroidFit:
    """IDF weights, greedy layer mask and K balanced clusters.

    Counts [N, L, E] of tokens whose top-k contains the expert, prefill and decode apart, and the
    decode tokens [N] of each request. The same data and seed give the same fit, in whichever
    order the requests come. `variant` is one of `VARIANTS`; where prompts are long and experts
    few, nearly all of them fire in every request, IDF removes the ones that matter, and "count"
    may have the higher rho (`compare_variants` tells).

    Degraded, each with a note: where every request fires every expert that fires at all (IDF is
    0 everywhere), weights are 1; where rho is undefined (all requests alike, or fewer than three),
    all layers are kept. ValueError: see `Calibration`; K below 1 or above N.
    Source: ELDR, "Decode Clustering and Routing"; the two fallbacks are ours.
    """
    data = Calibration(counts_prefill, counts_decode, tokens_decode)
    check_k(k, data.requests)
    space, mask, notes = fit_space(data, seed, variant)
    clusters = balanced_kmeans(space.signatures(data.prefill), k, seed)
    return CentroidFit(space, mask, clusters, notes)


def fit_space(
    data: Calibration, seed: int = 0, variant: str = "count_idf"
) -> tuple[SignatureSpace, LayerMask, tuple[str, ...]]:
    """Weights and mask without clusters, and the notes. See `fit`."""
    notes = []
    everything = variant_space(variant, data)
    if not (everything.weights[data.prefill.any(axis=0)] > 0).any():
        everything = replace(everything, weights=np.ones_like(everything.weights))
        notes.append(
            "every request fires the same experts, so IDF weights are all zero; plain counts are "
            "used instead. Prompts that are short or of more kinds would tell experts apart."
        )
    mask = greedy_mask(data, everything, seed)
    if math.isnan(mask.rho):
        notes.append(
            f"rho is undefined over {mask.pairs} pairs: all requests are alike in the prefill or "
            "in the decode, or there are fewer than three. All layers are kept; calibrate with "
            "prompts of several kinds."
        )
    curve = () if math.isnan(mask.rho) else mask.curve
    return replace(everything, layers=mask.layers, curve=curve), mask, tuple(notes)
