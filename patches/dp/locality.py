"""ELDR inside a decode worker: its DP ranks are chosen by the experts that the prompts used.
Not with DP attention, as these share their experts: `patches.dp.controller` says so at the start.

What our router does over all decode ranks (`toolkit.router.eldr.locality`), done within one server
for people who keep SGLang's router: each of the server's ranks has one centroid, from the profile
when it has as many, else fitted when the worker starts. Requests are held until their signature has
come (`patches.dp.prefill_events`, `patches.dp.hold`). Centroids are not refitted to the traffic
here.
"""

import os
from typing import Any

from patches.dp.hold import HOLD_S, Holding, Released
from patches.dp.loads import NAME
from patches.dp.prefill_events import PrefillEvents
from patches.dp.register import counterpart
from toolkit.contract.addresses import host_port
from toolkit.contract.variables import DP_HOLD_VARIABLE, DP_PROFILE_VARIABLE
from toolkit.limited_logs import limited_logger
from toolkit.policies.base import Policy

log = limited_logger("toolkit.dp")


class DpLocality:
    """Of one DP controller. ValueError: the profile cannot be read, or the bound is no number."""

    def __init__(self, folder: str, ranks: int) -> None:
        from toolkit.policies.eldr import Centroids
        from toolkit.policies.support.inflight_signatures import InflightSignatures
        from toolkit.profile_folder.errors import ProfileError
        from toolkit.signatures.calibrated import calibrated
        from toolkit.signatures.clusters import balanced_kmeans
        from toolkit.signatures.reader import SignatureReader

        try:
            known = calibrated(folder)
        except ProfileError as error:
            raise ValueError(f"{DP_PROFILE_VARIABLE}={folder}: {error}") from error
        rows = known.centroids
        if len(rows) != ranks:
            rows = balanced_kmeans(known.requests.fitted, ranks).centroids
        self._centroids = Centroids(rows, {(NAME, rank): rank for rank in range(ranks)})
        self._inflight_signatures = InflightSignatures(known.space.dimensions)
        self.event = PrefillEvents(SignatureReader(known.profile, known.space))
        self.holding = Holding(float(os.environ.get(DP_HOLD_VARIABLE) or HOLD_S))

    def attach(self, policy: Policy) -> None:
        """Give the policy, which follows experts, what it compares signatures with."""
        locality = policy.locality
        assert locality is not None
        locality.centroids, locality.inflight_signatures = (
            self._centroids,
            self._inflight_signatures,
        )

    def hold(self, req: Any, port: int | None, fake_host: str, now: float) -> bool:
        """Whether the request is held now. Not one without a prefill, nor one whose prefill worker
        is not heard (yet). `port`: of bootstrap servers where the request does not say."""
        shared = counterpart(req, fake_host)
        port = getattr(req, "bootstrap_port", None) or port
        if shared is None or port is None:
            return False
        host, room = shared
        source = host_port(host, port)
        if not self.event.subscribed(source):
            return False
        self.holding.hold(req, room, source, now)
        return True

    def due(self, now: float) -> list[Released]:
        """Who is held no longer."""
        if not len(self.holding):
            return []
        return self.holding.due(now, self._signature, self.event.subscribed)

    def _signature(self, room: int) -> Any:
        found = self.event.take(room)
        return found if found is None or isinstance(found, str) else found.vector
