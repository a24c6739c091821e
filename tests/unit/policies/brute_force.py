"""The best assignment there is, by trying all of them. For a handful of ranks and requests."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from toolkit.policies.rounds.assign import Assignment


def imbalance(loads: np.ndarray, discounts: np.ndarray | None = None) -> float:
    """I = G * M - sum L of loads [G], or its discounted sum over the steps of loads [G, H + 1]."""
    ahead = loads.reshape(len(loads), -1)
    lost = len(ahead) * ahead.max(axis=0) - ahead.sum(axis=0)
    return float(lost @ (np.ones(1) if discounts is None else discounts))


def after(
    loads: np.ndarray, sizes: Sequence[float], made: Sequence[Assignment] | dict[int, int]
) -> np.ndarray:
    """The loads with every assigned request added to its rank, at all steps alike."""
    loads = loads.astype(np.float64)
    pairs = made.items() if isinstance(made, dict) else [(a.request, a.worker) for a in made]
    for request, worker in pairs:
        loads[worker] += sizes[request]
    return loads


def legal(
    sizes: Sequence[float], slots: Sequence[float], room: Sequence[float]
) -> Iterator[dict[int, int]]:
    """Every assignment (request -> rank) that respects slots and room and leaves no slot free that
    a request left over could use."""
    ranks = range(len(slots))
    for choice in product([*ranks, None], repeat=len(sizes)):
        given = {request: rank for request, rank in enumerate(choice) if rank is not None}
        count = Counter(given.values())
        free = [slots[g] - count[g] for g in ranks]
        left = [room[g] - sum(sizes[r] for r, at in given.items() if at == g) for g in ranks]
        if min(free) < 0 or min(left) < 0:
            continue
        waits = [sizes[r] for r in range(len(sizes)) if r not in given]
        if any(free[g] >= 1 and size <= left[g] for g in ranks for size in waits):
            continue
        yield given


def optimum(
    loads: np.ndarray,
    sizes: Sequence[float],
    slots: Sequence[float],
    room: Sequence[float],
    discounts: np.ndarray | None = None,
) -> float:
    """The least imbalance that a legal assignment leaves."""
    return min(imbalance(after(loads, sizes, m), discounts) for m in legal(sizes, slots, room))
