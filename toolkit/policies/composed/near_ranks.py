"""Which ranks each request of a pool would rather run on: ELDR's band, crowding aside."""

from collections.abc import Sequence

from toolkit.policies.base import RequestView, WorkerView
from toolkit.policies.eldr import Band, EldrPolicy


class NearRanks:
    """`near(g, request)` for `TwoStage`: whether s_k >= s* - tau before crowding on the g-th of
    `among`. Crowding is left out since who waits in a pool waits for a slot in any case. Signatures
    are looked at when they are asked about, once a round each. A request without one prefers every
    rank. A rank without a centroid is preferred by no other. Where all ranks share their experts
    and no map tells them apart nobody prefers any (`indifferent`).
    """

    def __init__(
        self,
        locality: EldrPolicy,
        workers: Sequence[WorkerView],
        among: Sequence[int],
        waiting: Sequence[RequestView],
    ) -> None:
        self._locality = locality
        self._workers = workers
        self._among = among
        self._waiting = waiting
        self._bands: dict[int, Band] = {}
        self.indifferent = locality.indifferent(workers)

    def __call__(self, g: int, request: int) -> bool:
        return self._among[g] in self._band(request).indices

    def note(self, request: int, chosen: int) -> None:
        """Count it as a decision of `EldrPolicy` for the worker of this index."""
        self._locality.note(self._band(request), chosen)

    def _band(self, request: int) -> Band:
        band = self._bands.get(request)
        if band is None:
            band = self._bands[request] = self._locality.band_before_crowding(
                self._workers, self._among, self._waiting[request].signature
            )
        return band
