"""Reduce expert ids of tokens to what a profile keeps. Pure numpy.

ids are int16 [T, L, k]: T tokens, L layers, the k distinct logical experts of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.profile_folder.errors import ProfileError

if TYPE_CHECKING:
    import numpy as np


def captured_layers(ids: np.ndarray) -> list[int]:
    """Layers that wrote their experts; ids are those of a whole worker, [T, all layers, k].

    Raises:
        ProfileError: no layer did, or one did for some tokens only.
    """
    import numpy as np

    filled: np.ndarray = ids.min(axis=2) >= 0
    layers = [int(layer) for layer in np.flatnonzero(filled.max(axis=0))]
    if not layers:
        raise ProfileError(
            "no MoE layer left its experts with SGLang's capturer: this top-k backend bypasses it. "
            "Start the workers with another --moe-runner-backend (triton works)"
        )
    for layer in layers:
        if not filled[:, layer].all():
            missing = int((~filled[:, layer]).sum())
            raise ProfileError(
                f"layer {layer}: {missing} of {len(ids)} tokens have no experts; the capturer does "
                "not see all of this model's forward passes (HiCache load-back, mixed backends?)"
            )
    return layers


def counts(ids: np.ndarray, experts: int) -> np.ndarray:
    """int32 [L, E]: tokens whose top-k at layer l contains expert e."""
    import numpy as np

    layers = ids.shape[1]
    flat = ids.astype(np.int64) + (np.arange(layers) * experts)[None, :, None]
    total = np.bincount(flat.ravel(), minlength=layers * experts)
    if len(total) > layers * experts:
        raise ProfileError(
            f"expert {int(ids.max())} of {experts}: is this the model of the config?"
        )
    return total.reshape(layers, experts).astype(np.int32)


def add_affinity(total: np.ndarray, ids: np.ndarray) -> None:
    """Add to int64 [L-1, E, E] the tokens that used j at layer l and k at layer l + 1."""
    import numpy as np

    experts = total.shape[1]
    for layer in range(total.shape[0]):
        here = ids[:, layer, :, None].astype(np.int64)
        there = ids[:, layer + 1, None, :]
        pairs = (here * experts + there).ravel()
        total[layer] += np.bincount(pairs, minlength=experts * experts).reshape(experts, experts)


def strongest_share(affinity: np.ndarray, share: float) -> float:
    """Share of traffic that the strongest `share` of (j, k) pairs carries, mean over layers."""
    import numpy as np

    flat = np.sort(affinity.reshape(len(affinity), -1), axis=1)[:, ::-1]
    top = max(1, round(flat.shape[1] * share))
    sums = flat.sum(axis=1)
    return float(np.mean(flat[:, :top].sum(axis=1)[sums > 0] / sums[sums > 0]))


def independent(affinity: np.ndarray) -> np.ndarray:
    """What the affinity would be with the same loads but independent consecutive layers."""
    rows = affinity.sum(axis=2, keepdims=True).astype(float)
    columns = affinity.sum(axis=1, keepdims=True).astype(float)
    totals = affinity.sum(axis=(1, 2), keepdims=True).clip(min=1)
    product: np.ndarray = rows * columns / totals
    return product


def sample_tokens(ids: np.ndarray, most: int, seed: int) -> np.ndarray:
    """At most `most` tokens, evenly at random, in their order."""
    import numpy as np

    if len(ids) <= most:
        return ids
    chosen = np.random.default_rng(seed).choice(len(ids), most, replace=False)
    return ids[np.sort(chosen)]
