"""Distinct experts that batches would load: what clustering is for, judged on unseen requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.signatures.calibration import Calibration, Indices

Doubles = NDArray[np.float64]

BATCHES = 400


@dataclass(frozen=True, eq=False)
class DistinctExperts:
    """Expected distinct experts a layer and a decode step, batches of one group against random.

    `per_layer`, `random_per_layer`: [L], experts. `mean`, `random_mean`: over the layers.
    `reduction` = 1 - mean / random_mean, with the standard error of the batches drawn in
    `reduction_error`. `skipped`: groups too small for a batch, in words; their requests are in
    neither side. `batches` were drawn on each side, of `batch` requests.
    """

    per_layer: Doubles
    random_per_layer: Doubles
    mean: float
    random_mean: float
    reduction: float
    reduction_error: float
    batch: int
    batches: int
    skipped: tuple[str, ...]


def expected_distinct(data: Calibration, batches: Indices) -> Doubles:
    """[B, L] from batches [B, b] of request numbers: `sum_e 1 - prod_i (1 - p_i[l, e])`.

    p_i[l, e] is the share of request i's decode tokens that activate e at l: each request of a
    batch decodes one token a step, independently of the others.
    """
    result = np.empty((len(batches), data.layers))
    used, places = np.unique(batches, return_inverse=True)
    places = places.reshape(batches.shape)
    for layer in range(data.layers):
        absent = 1.0 - data.probabilities(layer, used).astype(np.float64)
        for number, rows in enumerate(places):
            result[number, layer] = data.experts - absent[rows].prod(axis=0).sum()
    return result


def distinct_reduction(
    data: Calibration,
    groups: Sequence[Any] | NDArray[Any],
    batch: int,
    seed: int = 0,
    batches: int = BATCHES,
) -> DistinctExperts:
    """Batches of `batch` requests drawn from one group, against batches drawn at random.

    `groups` [N]: the cluster of each request (`CentroidFit.assign`), or its label. Requests
    without replacement; a group is drawn as often as it has requests. Both sides draw from the
    same requests, those of groups with at least `batch`, so a skipped group moves neither. Use
    requests that were not fitted, or the clusters flatter themselves.

    ValueError: a batch below 1, no group that large, one label for each request needed.
    """
    names, labels = np.unique(np.asarray(groups), return_inverse=True)
    if labels.shape != (data.requests,):
        raise ValueError(f"groups have shape {labels.shape}, expected ({data.requests},)")
    if batch < 1 or batches < 2:
        raise ValueError(f"batch = {batch}, batches = {batches}: at least 1 request, 2 batches")
    sizes = np.bincount(labels, minlength=len(names))
    large = sizes >= batch
    skipped = tuple(
        f"{name}: {size} requests, fewer than a batch of {batch}"
        for name, size in zip(names[~large].tolist(), sizes[~large].tolist(), strict=True)
    )
    if not large.any():
        raise ValueError(
            f"no group has {batch} requests (the largest: {sizes.max()}): judge smaller batches, "
            "or on more prompts"
        )
    rng = np.random.default_rng(seed)
    members = [np.flatnonzero(labels == group) for group in np.flatnonzero(large)]
    everyone = np.concatenate(members)
    shares = sizes[large] / len(everyone)
    drawn = rng.choice(len(members), size=batches, p=shares)
    own = np.stack([rng.choice(members[group], batch, replace=False) for group in drawn])
    mixed = np.stack([rng.choice(everyone, batch, replace=False) for _ in range(batches)])
    ours, random = expected_distinct(data, own), expected_distinct(data, mixed)
    mean, random_mean = float(ours.mean()), float(random.mean())
    ratio = mean / random_mean
    # Relative variances of two independent means add up for their quotient.
    spread = [
        side.mean(axis=1).std(ddof=1) / (side.mean() * np.sqrt(batches)) for side in (ours, random)
    ]
    return DistinctExperts(
        per_layer=ours.mean(axis=0),
        random_per_layer=random.mean(axis=0),
        mean=mean,
        random_mean=random_mean,
        reduction=1.0 - ratio,
        reduction_error=float(ratio * np.hypot(*spread)),
        batch=batch,
        batches=batches,
        skipped=skipped,
    )
