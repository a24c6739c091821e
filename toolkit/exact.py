"""Dot products that come out the same, to the last bit, on every CPU.

BLAS picks its kernels by the CPU and splits its work by the threads, and each adds in an order of
its own: the last bits of `a @ b` differ, equal rows may get unequal products, and a tie, an exact
zero or a threshold is then decided by the machine. So where a product decides something, both
sides are first rounded to whole multiples of a power of two, as few bits as it takes for every
partial sum to be a whole number below 2^53. A float64 holds those exactly: whatever the order,
with fused operations or without, nothing is ever rounded, and the result is the same.

What numpy does element by element (+ - * / sqrt) and its own sums (`add.reduce`, `cumsum`,
`einsum` of few operands) are the same everywhere already: IEEE 754 and a fixed order. exp, log and
powers are not (vectorised differently for each CPU); their results are rounded where they decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BITS = 25
"""A value of a unit vector is rounded to 2^-25, finer than float32 holds those near 1: a product
is a multiple of 2^-50, and no part of a cosine is above 1."""


def whole(unit: NDArray[Any]) -> NDArray[np.float64]:
    """Unit (or zero) vectors [..., D] as whole numbers: multiples of 2^-25."""
    import numpy as np

    numbers: NDArray[np.float64] = unit * np.float64(2**BITS)
    return np.rint(numbers, out=numbers)


def cosines(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """Dot products of unit vectors [N, D] (or one, [D]) with [K, D]: [N, K] (or [K])."""
    return of_whole(whole(one), whole(other))


def of_whole(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """`cosines` of what `whole` made."""
    product: NDArray[np.float64] = one @ other.T
    product *= 2.0 ** (-2 * BITS)
    return product


def grid(values: NDArray[Any], bits: int, top: float | None = None) -> NDArray[np.float64]:
    """The values as whole numbers of 2^-bits of `top`, and with it at most 2^bits each.

    `top`: their greatest magnitude unless given; where that is 0 all are 0.
    """
    import numpy as np

    most = float(np.abs(values).max(initial=0.0)) if top is None else top
    if not most > 0:
        return np.zeros(np.shape(values))
    numbers: NDArray[np.float64] = np.asarray(values, np.float64) * (2.0**bits / most)
    return np.rint(numbers, out=numbers)
