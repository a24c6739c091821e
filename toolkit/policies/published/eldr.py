"""ELDR as its paper has it: the locality band, and the shortest queue inside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from toolkit.policies.base import Group, Needs, WorkerView, one_group
from toolkit.policies.eldr import Band, EldrPolicy
from toolkit.policies.support.expert_locality import Centroids

if TYPE_CHECKING:
    import numpy as np


class PaperEldrPolicy(EldrPolicy):
    """Locality band, then the shortest queue inside it: `eldr` without what we added.

    Formula: s_k = cos(signature, centroid_k), s* = max s_k over healthy workers; among those with
    s_k >= s* - tau the one with the fewest requests in flight.

    Not in it, though in `eldr`: a long queue makes nobody less near, a worker whose slots are all
    taken is not passed over, what runs on a worker does not make it nearer (`inflight_signatures`
    may be set, and are not looked at), and no map tells ranks of a server apart. `tau` of the
    router's configuration does not count either: the paper's 0.1 holds unless the name says
    otherwise. Where the paper (as far as we have it) is silent, as in `eldr`: of equal queues the
    nearer worker, then who was chosen least recently; requests in flight are those of the last
    reading and those sent since; ranks that share their experts have one centroid. Degraded: as
    `eldr`, by the shortest queue, with the reason in `counters.fallbacks`. Knobs: `tau` (0.1;
    `eldr@paper:TAU`), `centroids`. Source: ELDR (arXiv 2607.00466), "Online: Locality-band
    routing".
    """

    name = "eldr@paper"
    needs = Needs(signature=True)

    def __init__(self, seed: int = 0, tau: float = 0.1, centroids: Centroids | None = None) -> None:
        super().__init__(seed, tau, centroids)

    def _less_crowded(
        self, workers: Sequence[WorkerView], queues: dict[int, int], near: dict[int, float]
    ) -> dict[int, float]:
        return near

    def _beside_others(
        self, groups: Mapping[int, Group], own: dict[int, float], signature: np.ndarray
    ) -> dict[int, float]:
        return own

    def _by_maps(
        self,
        workers: Sequence[WorkerView],
        queues: dict[int, int] | None,
        band: Band,
        signature: np.ndarray | str | None,
    ) -> Band:
        return band

    def indifferent(self, workers: Sequence[WorkerView]) -> bool:
        return one_group(workers)
