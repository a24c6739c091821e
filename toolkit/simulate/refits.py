"""Refits by the clock, for a policy that asks for them (`eldr@artifact`), in simulated time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.policies.base import Policy, Refits
from toolkit.policies.support.expert_locality import Centroids, ExpertLocality

if TYPE_CHECKING:
    import numpy as np


class SimulatedRefits:
    """Moves the centroids of a policy, as `toolkit.router.eldr.clock_refits` does.

    A refit begins with a request that was bound and takes no simulated time: the next request finds
    the new centroids, however soon it comes. `made` counts them.
    """

    def __init__(self, locality: ExpertLocality, refits: Refits) -> None:
        from toolkit.signatures.online import RefitWindow

        self._locality = locality
        self._window = RefitWindow(refits.every_s, refits.window_s)
        self.made = 0

    @classmethod
    def of(cls, policy: Policy) -> SimulatedRefits | None:
        """None for a policy that asks for none."""
        locality = policy.locality
        if locality is None or locality.refits is None:
            return None
        return cls(locality, locality.refits)

    def observe(self, signature: np.ndarray | str | None, now: float) -> None:
        """A request that was bound; what it has in place of a signature says nothing here."""
        known = self._locality.centroids
        if known is None or signature is None or isinstance(signature, str):
            return
        self._window.add(signature, now)
        if not self._window.due(now, len(known.rows)):
            return
        import numpy as np

        from toolkit.signatures.online import warm_refit

        rows = warm_refit(np.stack(self._window.begin(now)), known.rows)
        self._locality.centroids = Centroids(rows, known.owner)
        self.made += 1
