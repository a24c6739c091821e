"""Which centroid each decode server takes, by where the experts of all of them lie."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from toolkit.policies.base import Group
from toolkit.policies.support.expert_locality import Centroids
from toolkit.router.eldr.centroid_sets import Fit
from toolkit.router.eldr.refit_history import RefitHistory
from toolkit.router.eldr.refit_queue import Job
from toolkit.router.eldr.worker_set import names
from toolkit.signatures.calibration import Floats
from toolkit.signatures.matching import exchanged
from toolkit.signatures.space import SignatureSpace

if TYPE_CHECKING:
    from toolkit.placement.base import Placement

log = logging.getLogger("toolkit.router")

GAIN = 0.05
"""Of the busiest GPU's load over the mean, for which requests are sent to other servers."""


class MapMatch:
    """Exchanges centroids between servers where their GPUs are loaded more evenly then.

    A refit hands a centroid to the server that had the one most like it, and a router that starts
    hands them out in order; but servers keep their maps through both. Where experts were placed for
    other centroids than their server has now (`expert_placement`, `toolkit relocate`), an exchange
    costs nothing, and moving the experts after the requests costs their weights.

    A centroid's load of an expert is its entry over the expert's weight; experts that all requests
    use have none. *Ours.* One job of the router's `RefitQueue`, its arithmetic in a thread.
    """

    def __init__(
        self,
        space: SignatureSpace,
        fit: Callable[[], Fit | None],
        history: RefitHistory,
        on_better: Callable[[Fit], None],
    ) -> None:
        self.on_due: Callable[[], None] = lambda: None
        """`job` has one."""
        self._space = space
        self._fit = fit
        self._history = history
        self._on_better = on_better
        self._placements: dict[str, Placement] = {}
        self._due = False

    def know(self, server: str, placement: Placement | None) -> None:
        """Where a server's experts lie from now on; None: nothing is known any more.

        ValueError: it is another model's.
        """
        if placement is None:
            self._placements.pop(server, None)
            return
        if (placement.layers, placement.experts) != self._space.weights.shape:
            layers, experts = self._space.weights.shape
            raise ValueError(
                f"{server} has {placement.layers} layers of {placement.experts} experts, the "
                f"profile {layers} of {experts}: it was made for another model"
            )
        self._placements[server] = placement
        self.look()

    def look(self) -> None:
        """There is another map or another fit."""
        self._due = True
        self.on_due()

    def job(self) -> Job | None:
        fit = self._fit()
        if not self._due or fit is None:
            return None
        self._due = False
        rows = fit.centroids.owner
        mapped = [group for group in fit.groups if group[0] in self._placements and group in rows]
        if fit.shared or len(mapped) < 2:
            return None
        return self._match(fit, [(group, self._placements[group[0]]) for group in mapped])

    async def _match(self, fit: Fit, mapped: list[tuple[Group, Placement]]) -> None:
        owner = dict(fit.centroids.owner)
        held = [owner[group] for group, _ in mapped]
        placements = [placement for _, placement in mapped]
        busy = await asyncio.to_thread(imbalance, placements, fit.centroids.rows[held], self._space)
        taken = exchanged(busy, GAIN)
        if taken is None or self._fit() is not fit:
            return
        before, after = busy.diagonal().mean(), busy[np.arange(len(taken)), taken].mean()
        moved = []
        for place, ((group, _), row) in enumerate(zip(mapped, taken.tolist(), strict=True)):
            if row != place:
                owner[group] = held[row]
                moved.append(group)
        log.info(
            "ELDR: %s exchange centroids, for where their experts lie: busiest GPU %.3f times the "
            "mean, instead of %.3f",
            *(names(moved), after, before),
        )
        figures = {"servers": len(moved), "busiest": round(float(after), 4)}
        self._history.add("maps", "adopted", **figures, busiest_before=round(float(before), 4))
        self._on_better(replace(fit, centroids=Centroids(fit.centroids.rows, owner)))


def imbalance(placements: list[Placement], rows: Floats, space: SignatureSpace) -> np.ndarray:
    """[G, K]: under each of G placements, the busiest GPU's load over the mean (mean of layers)
    when the requests of centroid k come; `rows` [K, D] of `space`. Ones where no layer tells."""
    from toolkit.placement.base import Placement
    from toolkit.placement.by_load import busiest

    loads = rows.reshape(len(rows), *space.pairs.shape) * space.pairs
    told = loads.any(axis=2).all(axis=0)
    if not told.any():
        return np.ones((len(placements), len(rows)))
    kept = space.kept[told]
    return np.stack(
        [
            busiest(Placement(p.physical_to_logical[kept], p.experts, p.gpus), loads[:, told])
            for p in placements
        ]
    )
