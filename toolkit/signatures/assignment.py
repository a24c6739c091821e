"""Balanced assignment: every point to a cluster, none over capacity, at the least total cost."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.signatures.calibration import Indices

Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]

_STEPS = 2**40
_NEVER = 2**60
_SWEEPS = 4


@dataclass(frozen=True, eq=False)
class ClusterAssignment:
    """`labels` [N], total `cost`, and the `prices` [K] >= 0 that prove it optimal.

    Every point pays `cost[i, k] + price[k]` and none would pay less elsewhere; a cluster with
    room left costs nothing. So no assignment within the capacities is cheaper (LP duality), and
    the prices start the next, similar problem near its answer.
    """

    labels: Indices
    cost: float
    prices: Doubles


def balanced_assignment(
    costs: NDArray[Any], capacity: int | None = None, prices: Doubles | None = None
) -> ClusterAssignment:
    """Least-cost assignment of N points to K clusters of at most `capacity` points each.

    `costs` [N, K], any finite numbers; `capacity` is ceil(N / K) unless given; `prices` [K] from
    a similar problem only save time. Ties are broken the same way every time.

    Exact, like the Hungarian method on `capacity` copies of each cluster (ELDR, "Offline:
    Balanced K-means"), without its N x N matrix: prices are raised until few points are in
    excess (coordinate ascent on the dual), and those leave along shortest augmenting paths on the
    graph of the K clusters, where the edge u -> v costs what the cheapest point of u loses by
    going to v. O(N * K) memory, O(N * K + K^3) for a path. All on integers of 2^-40 of the costs'
    range, so that no rounding makes a cycle of negative length; optimal to N times that.

    ValueError: no points or clusters, costs that are not finite, too little capacity.
    """
    array = np.asarray(costs, dtype=np.float64)
    if array.ndim != 2 or not array.size:
        raise ValueError(f"costs have shape {array.shape}, expected [points, clusters], not empty")
    if not np.isfinite(array).all():
        raise ValueError("costs must be finite: a signature or a centroid is NaN")
    points, clusters = array.shape
    room = -(-points // clusters) if capacity is None else capacity
    if room * clusters < points:
        raise ValueError(f"{clusters} clusters of at most {room} cannot hold {points} points")
    span = float(array.max() - array.min())
    scale = _STEPS / span if span > 0 else 0.0
    steps = np.rint((array.T - array.min()) * scale).astype(np.int64)
    bids = np.zeros(clusters, dtype=np.int64)
    if prices is not None and scale > 0:
        bids = np.rint(prices * scale).clip(0, _STEPS).astype(np.int64)
    bids = _raise_prices(steps, room, bids)
    labels, bids = _Repair(steps, room, bids).run()
    total = float(array[np.arange(points), labels].sum())
    return ClusterAssignment(labels, total, bids / scale if scale > 0 else np.zeros(clusters))


def _raise_prices(steps: Integers, room: int, bids: Integers) -> Integers:
    """[K] prices at which few points are in excess, by exact steps of one price at a time.

    For cluster k, all other prices given, a point's margin is what it would pay elsewhere beyond
    what it pays at k; the price between the room-th and the next highest margin fills k exactly.
    """
    clusters, points = steps.shape
    bids = bids.copy()
    for _ in range(_SWEEPS):
        total = steps + bids[:, None]
        sizes = np.bincount(total.argmin(axis=0), minlength=clusters)
        if np.maximum(sizes - room, 0).sum() <= clusters or room >= points or clusters == 1:
            break
        for k in range(clusters):
            total[k] = _NEVER
            margin = np.partition(total.min(axis=0) - steps[k], [points - room - 1, points - room])
            between = (margin[points - room - 1] + margin[points - room]) // 2
            bids[k] = max(0, int(between))
            total[k] = steps[k] + bids[k]
    return bids


class _Repair:
    """Moves the excess of overfull clusters along shortest paths to those with room.

    The room that no point needs is filled with `spare` points that cost nothing anywhere: every
    cluster is then full at the end, and the optimum is that of an equality problem.
    """

    def __init__(self, steps: Integers, room: int, bids: Integers) -> None:
        self.steps = steps
        self.clusters, points = steps.shape
        self.room = room
        self.labels = (steps + bids[:, None]).argmin(axis=0)
        self.spare = np.zeros(self.clusters, dtype=np.int64)
        self.spare[int(bids.argmin())] = self.clusters * room - points
        self.edges = np.full((self.clusters, self.clusters), _NEVER, dtype=np.int64)
        for k in range(self.clusters):
            self._measure(k)

    def run(self) -> tuple[Indices, Integers]:
        """Labels [N] and prices [K] in steps."""
        while True:
            sizes = np.bincount(self.labels, minlength=self.clusters) + self.spare
            excess = sizes - self.room
            if not (excess > 0).any():
                break
            start = np.where(excess > 0, 0, _NEVER)
            distance, before = self._distances(start)
            end = int(np.where(excess < 0, distance, 2 * _NEVER).argmin())
            path = [end]
            while before[path[0]] >= 0:
                path.insert(0, int(before[path[0]]))
            self._move(path, int(min(excess[path[0]], -excess[end])))
        distance, _ = self._distances(np.zeros(self.clusters, dtype=np.int64))
        return self.labels.astype(np.int64), distance.max() - distance

    def _measure(self, k: int) -> None:
        """What the cheapest member of k loses by going to each other cluster."""
        members = np.flatnonzero(self.labels == k)
        self.edges[k] = _NEVER
        if members.size:
            self.edges[k] = (self.steps[:, members] - self.steps[k, members]).min(axis=1)
        if self.spare[k]:
            np.minimum(self.edges[k], 0, out=self.edges[k])
        self.edges[k, k] = _NEVER

    def _distances(self, start: Integers) -> tuple[Integers, Indices]:
        """Bellman-Ford: shortest distances [K] from `start`, and each one's predecessor or -1."""
        distance = start.copy()
        before = np.full(self.clusters, -1, dtype=np.int64)
        for _ in range(self.clusters):
            through = distance[:, None] + self.edges
            nearest = through.argmin(axis=0)
            shorter = through.min(axis=0)
            better = shorter < distance
            if not better.any():
                break
            distance = np.where(better, shorter, distance)
            before = np.where(better, nearest, before)
        return distance, before

    def _move(self, path: list[int], most: int) -> None:
        """Push as many points along the path as all of its edges have at the same least cost.

        Identical requests come in hundreds; one at a time they would take minutes.
        """
        hops = []
        for source, target in pairwise(path):
            edge = self.edges[source, target]
            members = np.flatnonzero(self.labels == source)
            tied = members[self.steps[target, members] - self.steps[source, members] == edge]
            spare = int(self.spare[source]) if edge == 0 else 0
            hops.append((source, target, tied, spare))
            most = min(most, len(tied) + spare)
        for source, target, tied, spare in hops:
            free = min(spare, most)
            self.spare[source] -= free
            self.spare[target] += free
            self.labels[tied[: most - free]] = target
        for k in path:
            self._measure(k)
