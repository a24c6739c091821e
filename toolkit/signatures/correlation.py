"""Spearman's rank correlation, many candidates at once."""

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


def ranks(values: Doubles) -> Doubles:
    """[..., P]: ranks along the last axis around their mean; equal values share their mean rank."""
    count = values.shape[-1]
    order = np.argsort(values, axis=-1)
    ordered = np.take_along_axis(values, order, axis=-1)
    position = np.arange(count, dtype=np.int32)
    # For each place in the sorted row, the first and last place of its run of equal values.
    starts = np.ones(values.shape, dtype=bool)
    np.not_equal(ordered[..., 1:], ordered[..., :-1], out=starts[..., 1:])
    first = np.maximum.accumulate(np.where(starts, position, 0), axis=-1)
    ends = np.ones(values.shape, dtype=bool)
    ends[..., :-1] = starts[..., 1:]
    last = np.where(ends, position, count - 1)[..., ::-1]
    last = np.minimum.accumulate(last, axis=-1)[..., ::-1]
    result = np.empty(values.shape)
    np.put_along_axis(result, order, (first + last - (count - 1)) / 2.0, axis=-1)
    return result


def spearman(values: Doubles, target: Doubles) -> Doubles:
    """[...]: rho between each row of `values` [..., P] and `target` [P], given as its ranks.

    The target's ranks come from `ranks`, computed once for many rows. NaN where either side is
    constant, or there are fewer than two pairs.
    """
    ranked = ranks(values)
    scale = np.sqrt(np.einsum("...p,...p->...", ranked, ranked) * (target @ target))
    result = np.full(scale.shape, np.nan)
    np.divide(ranked @ target, scale, out=result, where=scale > 0)
    return result
