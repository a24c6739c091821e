"""Which replica of an expert a token goes to, as SGLang 0.5.21 picks it.

Read in `eplb/expert_location.py` and `expert_location_dispatch.py`. A pick is a share [L, E, G]:
the part of an expert's tokens that each GPU gets. Within one pick the layers are independent;
picks that tokens keep over all layers are listed one by one, equally likely:
- random: one of the replicas evenly, anew in every layer. What EPLB and the placements assume;
- row: no all-to-all backend. All ranks must agree, so the token's row in the batch, modulo the
  number of replicas, picks: a token keeps its row in all layers;
- nearest: with an all-to-all backend. Each rank goes to the replica on its own GPU, else to the
  first on its node where only some are there, else to any: a token keeps its home rank.
"""

import math
from collections.abc import Callable, Iterator
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from toolkit.placement.base import Placement
from toolkit.placement.topology import Topology

Shares = NDArray[np.float32]
Dispatch = Literal["random", "row", "nearest"]

MOST_ROWS = 60


def picks(placement: Placement, topology: Topology, dispatch: Dispatch) -> Iterator[Shares]:
    """Shares [L, E, G] of equally likely picks. Raises ValueError for another name or EP size."""
    if dispatch not in get_args(Dispatch):
        raise ValueError(f"unknown dispatch {dispatch!r}; known: {', '.join(get_args(Dispatch))}")
    if placement.gpus != topology.gpus:
        raise ValueError(
            f"the placement is for {placement.gpus} GPUs, the topology has {topology.gpus}"
        )
    counts = placement.replicas()
    even = (placement.held() / counts[:, :, None]).astype(np.float32)
    if dispatch == "random" or counts.max() == 1:
        yield even
    elif dispatch == "row":
        place = _places(placement)
        # Beyond some rows the mean no longer moves, and the least common multiple explodes.
        for row in range(min(math.lcm(*np.unique(counts).tolist()), MOST_ROWS)):
            yield _one(np.take_along_axis(place, (row % counts)[:, :, None], 2)[:, :, 0], even)
    else:
        place = _places(placement)
        for home in range(topology.gpus):
            yield _nearest(place, counts, even, home, topology)


def of_homes(
    placement: Placement, topology: Topology, dispatch: Dispatch
) -> Callable[[int], Shares]:
    """Function of a home rank: the share [L, E, G] of its tokens' pairs that each GPU gets.

    Raises ValueError as `picks`, and for `row`, where no token has a home.
    """
    if dispatch == "row":
        raise ValueError("dispatch 'row' has no home ranks: give 'nearest' or 'random'")
    counts = placement.replicas()
    if dispatch == "random" or counts.max() == 1:
        (even,) = picks(placement, topology, "random")
        return lambda home: even
    place, even = _places(placement), next(picks(placement, topology, "random"))
    return lambda home: _nearest(place, counts, even, home, topology)


def _places(placement: Placement) -> NDArray[np.int64]:
    """GPU of each expert's n-th replica, in slot order [L, E, most replicas]; -1 beyond."""
    counts = placement.replicas()
    table = placement.physical_to_logical
    place = np.full((*counts.shape, counts.max()), -1)
    order = np.argsort(table, axis=1, kind="stable")
    expert = np.take_along_axis(table, order, axis=1)
    first = np.cumsum(counts, axis=1) - counts
    turn = np.arange(table.shape[1]) - np.take_along_axis(first, expert, axis=1)
    place[np.arange(placement.layers)[:, None], expert, turn] = order // placement.slots
    return place


def _one(gpu: NDArray[np.int64], like: Shares) -> Shares:
    """The share of experts that lie on `gpu` [L, E] alone."""
    share = np.zeros_like(like)
    np.put_along_axis(share, gpu[:, :, None], 1, axis=2)
    return share


def _nearest(
    place: NDArray[np.int64],
    counts: NDArray[np.int64],
    even: Shares,
    home: int,
    topology: Topology,
) -> Shares:
    share = even.copy()
    node = np.where(place >= 0, place // topology.gpus_per_node, -1)
    near = node == home // topology.gpus_per_node
    some = near.any(axis=2) & (near.sum(axis=2) < counts)
    first = np.take_along_axis(place, near.argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    own = (place == home).any(axis=2)
    pick = np.where(own, home, first)
    settled = own | some
    share[settled] = 0
    layer, expert = np.nonzero(settled)
    share[layer, expert, pick[layer, expert]] = 1
    return share
