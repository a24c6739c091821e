"""The part of a router that decides: workers and what they say, the decider and its policies, the
experts of requests, and the orders of operators."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from toolkit.router.active_policies import ActivePolicies
from toolkit.router.collectors import LocalityCollector, StepCollector, StuckCollector
from toolkit.router.draining import Draining
from toolkit.router.drains import Drains
from toolkit.router.events import Watcher
from toolkit.router.fleet_figures import FleetCollector
from toolkit.router.known_workers import KnownWorkers
from toolkit.router.metrics import Metrics
from toolkit.router.others.earlier import EarlierQuarantines
from toolkit.router.others.exchange import NoticeExchange
from toolkit.router.others.findings import SharedFindings
from toolkit.router.policy_figures import PolicyCollector
from toolkit.router.prefills import FinishedPrefills
from toolkit.router.stage_figures import RebalanceCollector, StageCollector
from toolkit.router.stage_planning import StagePlanning
from toolkit.router.switches import Switches

if TYPE_CHECKING:
    from toolkit.router.asks import AskedPlane
    from toolkit.router.eldr.locality import Locality
    from toolkit.router.eldr.shared_centroids import SharedCentroids
    from toolkit.settings.router.config import RouterConfig


class ControlPlane:
    """All of a router that has no clients. `planes`: who serves requests, as many as there are."""

    def __init__(
        self, config: RouterConfig, metrics: Metrics, planes: Iterable[AskedPlane]
    ) -> None:
        self.config = config
        self.metrics = metrics
        self.planes = planes
        self.switches = Switches(config.first_token, config.moves)
        self.draining = Draining()
        self.known_workers = known_workers = KnownWorkers(
            config, config.secret(config.worker_api_key_env)
        )
        known_workers.listen(metrics)
        self.notices = NoticeExchange(known_workers, metrics)
        known_workers.listen(SharedFindings(known_workers, self.notices))
        self.earlier = EarlierQuarantines(known_workers, self.notices)
        known_workers.listen(self.earlier)
        self.locality = load_locality(config, known_workers)
        self.centroids = share_centroids(self.locality, self.notices, known_workers)
        self.policies = ActivePolicies(config, known_workers, metrics, self.switches, self.locality)
        self.planning = StagePlanning(known_workers.channel)
        known_workers.listen(self.planning)
        self.prefills = FinishedPrefills(
            known_workers.channel, metrics, self.locality, self.switches, known_workers.listeners
        )
        self.drains = Drains(known_workers, known_workers.decider.moves)
        self._watchers: list[asyncio.Task[None]] = []
        self._export()

    def _export(self) -> None:
        """What is counted where it is known."""
        export, decider = self.metrics.export, self.known_workers.decider
        export(StepCollector(self.known_workers))
        export(StuckCollector(self.known_workers))
        export(FleetCollector(self.known_workers))
        if self.locality is not None:
            export(LocalityCollector(self.locality))
        export(PolicyCollector(decider, self.policies.balance))
        if decider.choosing.stages is not None:
            export(StageCollector(decider.choosing.stages))
        if decider.moves.rebalancing is not None:
            export(RebalanceCollector(decider.moves.rebalancing))

    def start(self) -> None:
        """Listen to workers."""
        if self.locality is not None:
            self.locality.start()
        if self.centroids is not None:
            self.centroids.start()
        for worker in self.known_workers.workers:
            task = asyncio.create_task(Watcher(worker, self.known_workers, self.config).run())
            self._watchers.append(task)

    async def stop(self) -> None:
        for task in self._watchers:
            task.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await self.earlier.stop()
        await self.notices.stop()
        if self.centroids is not None:
            await self.centroids.stop()
        if self.locality is not None:
            await self.locality.stop()
        self.policies.record.close()


def load_locality(config: RouterConfig, known_workers: KnownWorkers) -> Locality | None:
    """ELDR's part of the router; without a profile nothing of it is imported (numpy is memory).

    Raises:
        ConfigError: the profile cannot be read or used.
    """
    if config.profile is None:
        return None
    from toolkit.router.eldr.locality import Locality

    return Locality(config, known_workers)


def share_centroids(
    locality: Locality | None, notices: NoticeExchange, known_workers: KnownWorkers
) -> SharedCentroids | None:
    """What has all routers use the same centroids; None: this one has none."""
    if locality is None:
        return None
    from toolkit.router.eldr.shared_centroids import SharedCentroids

    shared = SharedCentroids(locality, notices)
    known_workers.listen(shared)
    return shared
