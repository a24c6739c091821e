"""What the all-to-all of a group's steps takes, kept as its requests come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.simulate.costs.links import Links
from toolkit.simulate.errors import SimulateError
from toolkit.simulate.experts import SimulatedExperts

if TYPE_CHECKING:
    import numpy as np

    from toolkit.placement.base import Placement
    from toolkit.placement.topology import Topology

BITS = 20
"""Pairs are whole numbers of 2^-BITS: sums of them are exact and come back to where they were."""
DIGITS = 12
"""Of seconds."""


class Crossing:
    """R ranks with DP attention on G GPUs of one server, whose experts are `placed` on these.

    A token of a request goes to GPU g for as many of its experts, on average, as lie there
    (`SimulatedExperts.pairs`; with `replicas: nearest` as many as are served there for its rank); a
    rank's attention runs on its own G / R GPUs. Expected copies, one a (token, expert) pair,
    dispatched and combined in every layer, each charged to its slowest GPU. In an actual step
    chance makes the slowest one slower.
    """

    def __init__(self, experts: SimulatedExperts, links: Links, ranks: int) -> None:
        """SimulateError: the GPUs do not divide by the ranks, or into nodes."""
        import numpy as np

        from toolkit.placement.topology import Topology

        assert experts.pairs is not None
        self._pairs = experts.pairs
        self._links = links
        gpus, node = experts.gpus, min(links.gpus_per_node, experts.gpus)
        if gpus % ranks or gpus % node:
            raise SimulateError(
                f"{gpus} GPUs of experts do not divide into {ranks} DP ranks and nodes of {node}: "
                "give links another gpus_per_node, or the server another ep or dp"
            )
        own = gpus // ranks
        home, gpu = np.arange(ranks)[:, None] * own, np.arange(gpus)
        near = home // node == gpu // node
        kind = np.where(home // own == gpu // own, 0, np.where(near, 1, 2))
        self._kinds: np.ndarray = (kind[:, :, None] == np.arange(3)).astype(np.float64)
        """[R, G, 3]: what going from rank to GPU is."""
        self._own = own
        self._experts = experts
        self._served: list[np.ndarray] = []
        """Of each rank [L, E, G]: the part of an expert's pairs that a GPU serves."""
        placement = experts.placement
        if links.replicas == "nearest" and placement is not None and placement.redundant:
            self._served = _nearest(placement, Topology(gpus, node), ranks)
        self._on: np.ndarray = np.zeros((ranks, *experts.pairs.shape[1:]))
        """[R, L, G], in whole numbers."""

    def add(self, rank: int, row: int) -> None:
        self._on[rank] += self._whole(rank, row)

    def remove(self, rank: int, row: int) -> None:
        self._on[rank] -= self._whole(rank, row)

    def seconds(self) -> float:
        """Of one step, all layers."""
        import numpy as np

        pairs = self._on * 2.0**-BITS
        received = np.einsum("rlg,rgk->lgk", pairs, self._kinds)
        sent = np.einsum("rlg,rgk->lrk", pairs, self._kinds) / self._own
        each = self._links.seconds(np.repeat(sent, self._own, axis=1), received)
        return round(float(each.sum()), DIGITS)

    def _whole(self, rank: int, row: int) -> np.ndarray:
        import numpy as np

        pairs = self._pairs[row]
        if self._served:
            served = self._served[rank]
            chance = -np.expm1(self._experts.logical[row]).reshape(len(served), 1, -1)
            pairs = np.matmul(chance, served)[:, 0]
        result: np.ndarray = np.rint(self._experts.tokens * pairs * np.float64(2.0**BITS))
        return result


def _nearest(placement: Placement, topology: Topology, ranks: int) -> list[np.ndarray]:
    """Of a rank of several GPUs each sends as much as the others."""
    import numpy as np

    from toolkit.placement.dispatch import of_homes

    shares, own = of_homes(placement, topology, "nearest"), topology.gpus // ranks
    return [np.mean([shares(rank * own + n) for n in range(own)], axis=0) for rank in range(ranks)]


def crossing_of(
    experts: SimulatedExperts | None, links: Links | None, ranks: int
) -> Crossing | None:
    """Where the cost model has links, and the experts of several ranks lie on several GPUs."""
    if experts is None or links is None or experts.pairs is None or ranks < 2:
        return None
    return Crossing(experts, links, ranks) if experts.gpus > 1 else None
