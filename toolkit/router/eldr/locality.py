"""ELDR in the router, beside the pure policy: signatures in, centroids kept, drift followed."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any, Protocol

from toolkit.contract.events import PrefillDone
from toolkit.decide import messages as m
from toolkit.policies.base import Policy
from toolkit.policies.support.expert_locality import Centroids, EldrCounters, ExpertLocality
from toolkit.policies.support.expert_map import ExpertMap
from toolkit.policies.support.inflight_signatures import InflightSignatures
from toolkit.profile_folder.errors import ProfileError
from toolkit.router.eldr.centroid_assignment import CentroidAssignment
from toolkit.router.eldr.centroid_sets import Fit, Rows, in_order
from toolkit.router.eldr.clock_refits import ClockRefits
from toolkit.router.eldr.drift_refits import DriftRefits, FittedElsewhere
from toolkit.router.eldr.map_match import MapMatch
from toolkit.router.eldr.map_watch import MapWatch
from toolkit.router.eldr.refit_history import RefitHistory
from toolkit.router.eldr.refit_queue import RefitQueue
from toolkit.router.eldr.refits import Base
from toolkit.router.eldr.worker_set import WorkerSet, groups_of, shown
from toolkit.router.known_workers import KnownWorkers
from toolkit.router.worker import Worker
from toolkit.router.worker_listener import WorkerListener
from toolkit.settings.router.config import ConfigError, RouterConfig
from toolkit.signatures.calibrated import calibrated
from toolkit.signatures.nearness import nearness
from toolkit.signatures.reader import SignatureReader, SignatureSample
from toolkit.signatures.space import SignatureSpace

log = logging.getLogger("toolkit.router")

ELSEWHERE = "another router over these workers has just begun to fit for all of them: ask again"


class HearsCentroids(Protocol):
    """Who hears what centroids decide, and when some would be fitted."""

    def served(self, version: str) -> None: ...
    def fit_is_due(self) -> None: ...


class Locality(WorkerListener):
    """One for a router with a profile. It outlives policies: its `counters`, its centroids and
    what it knows of drift go on when the decode policy is switched away and back.

    `read` and `observe` are on a request's path (20 and 28 us for 48 x 128 and 24 ranks); fits run
    in processes of their own. ConfigError: the profile cannot be read.
    """

    def __init__(self, config: RouterConfig, known_workers: KnownWorkers) -> None:
        try:
            known = calibrated(str(config.profile))
        except ProfileError as error:
            raise ConfigError(f"profile: {error}") from error
        ranks = known_workers.side("decode")
        groups = groups_of(ranks)
        near = nearness(known.requests.judged, known.centroids)
        self._channel = known_workers.channel
        self.counters = EldrCounters()
        self.inflight_signatures = InflightSignatures(known.space.dimensions)
        self.history = RefitHistory()
        self._maps: dict[str, ExpertMap] = {}
        self._tau = config.tau
        self._policy: ExpertLocality | None = None
        self.following = False
        """Another router fits."""
        self._hearing: list[HearsCentroids] = []
        self.decode_names = {name for name, _ in groups}
        self.reader = SignatureReader(known.profile, known.space)
        base = Base(known.requests)
        self.assignment = CentroidAssignment(
            WorkerSet(ranks), base, self.history, config.seed, self._on_fit
        )
        self.drift = DriftRefits(
            known.space, near, self.assignment, self.history, config.seed, config.refit_on_drift
        )
        self.clock = ClockRefits(lambda: self.assignment.fit, self.history, self._serve)
        self.match = MapMatch(
            known.space, lambda: self.assignment.fit, self.history, self.assignment.exchange
        )
        self.maps = MapWatch(known.space, self.place, self.match.know)
        jobs = [self.match.job, self.drift.job, self.clock.job, self.assignment.ahead]
        self._queue = RefitQueue(self.assignment.urgent, jobs)
        self.assignment.on_wish, self.assignment.on_idle = self._wish, self._queue.wake
        self.drift.on_due = self.clock.on_due = self._due
        self.match.on_due = self._queue.wake
        if len(known.centroids) == len(groups):
            self.assignment.begin(in_order(groups, Rows(known.centroids, near)))
        else:
            log.info(
                "ELDR: the profile has centroids for %d decode workers, there are %d: they are "
                "fitted now (`toolkit profile fit --k %d` does it once and for all)",
                *(len(known.centroids), len(groups), len(groups)),
            )
        if len(groups) == 1 < len(ranks):
            log.warning(
                "ELDR: the %d decode ranks share their experts (DP attention of one server): which "
                "is near to a request only a map of its experts tells (`relocate: true`); without "
                "one locality decides nothing",
                len(ranks),
            )
        known_workers.listen(self)

    def start(self) -> None:
        self._queue.start()

    def hear(self, listener: HearsCentroids) -> None:
        """One more who hears of centroids."""
        self._hearing.append(listener)

    def follow(self, on: bool) -> None:
        """Whether another router fits from now on."""
        self.following = on
        self._queue.hold(on)
        if on:
            self.drift.refuse(FittedElsewhere(ELSEWHERE))
        self.assignment.follow(on)

    def take(self, fit: Fit, provisional: bool) -> None:
        """The fit of another router. `provisional`: see `DriftWatch`."""
        self.assignment.take(fit)
        self.drift.watch.provisional = provisional
        version, rows = fit.centroids.version, len(fit.centroids.rows)
        log.info("ELDR: %d centroids of another router, version %s", rows, version)
        self.history.add("told", "adopted", version=version, centroids=rows)

    def placed(self, worker: Worker, serial: int) -> None:
        self.maps.placed(worker, serial)

    def replaced(self, worker: Worker) -> None:
        self.maps.replaced(worker)

    def health_changed(self, worker: str) -> None:
        self.assignment.health_changed()

    async def stop(self) -> None:
        await self.maps.stop()
        await self._queue.stop()
        self.assignment.close()

    @property
    def active(self) -> bool:
        """Whether ELDR takes part in choosing decode workers now."""
        return self._policy is not None

    @property
    def space(self) -> SignatureSpace:
        return self.reader.space

    @property
    def serving(self) -> Centroids | None:
        """The centroids that decide now."""
        fit = self.assignment.fit
        return None if fit is None else self.clock.moved or fit.centroids

    def attach(self, policy: Policy) -> None:
        """A decode policy that the decider is about to use. What in it is ELDR gets the centroids
        and the counters, and refits by the clock if it asks for them; then no drift does."""
        self._policy = policy.locality
        refits = None if self._policy is None else self._policy.refits
        self.clock.follow(refits)
        self.drift.pause(refits is not None)
        if self._policy is not None:
            self._policy.counters = self.counters
            self._policy.inflight_signatures = self.inflight_signatures
            self._policy.maps = self._maps
            self._policy.centroids = self.serving

    def place(self, server: str, found: ExpertMap | None) -> None:
        """Where a server's experts lie from now on; None: nothing is known of it any more.

        ValueError: a map for signatures of another length than the profile's.
        """
        if found is not None and found.dimensions != self.space.dimensions:
            raise ValueError(
                f"the map of {server} is for signatures of {found.dimensions} values, the profile "
                f"has {self.space.dimensions}: it was made for another model or profile"
            )
        others = {name: known for name, known in self._maps.items() if name != server}
        self._maps = others if found is None else others | {server: found}
        if self._policy is not None:
            self._channel.send(m.UseMaps(self._maps))

    def read(self, worker: str, event: PrefillDone) -> SignatureSample | str:
        """The sample of a `prefill_done` event, or in a few words why there is none."""
        return self.reader.read(worker, event.signature)

    def observe(self, sample: SignatureSample) -> None:
        """A request that was routed by ELDR."""
        serving = self.serving
        if serving is not None:
            self.drift.observe(sample, serving)
            self.clock.observe(sample)

    async def refit_now(self, force: bool = False) -> dict[str, Any]:
        """See `DriftRefits.refit_now`. FittedElsewhere: this router does not fit."""
        if self.following:
            raise FittedElsewhere(ELSEWHERE)
        return await self.drift.refit_now(force)

    def greeted(self, worker: Worker) -> None:
        self.reader.greet(worker.name, worker.config.role, worker.hello)
        self.maps.greet(worker)

    def _on_fit(self, fit: Fit) -> None:
        self.clock.restart()
        self._serve(fit.centroids)
        self.drift.reset(fit.expected)
        self.match.look()

    def _serve(self, centroids: Centroids) -> None:
        if self._policy is not None:
            self._channel.send(m.UseCentroids(centroids))
        for listener in self._hearing:
            listener.served(centroids.version)

    def _wish(self) -> None:
        """Workers have come or gone, and a fit for them is wanted at once."""
        if not self._left_to_another():
            self._queue.interrupt()

    def _due(self) -> None:
        """The traffic is not what it was, or it is time."""
        if not self._left_to_another():
            self._queue.wake()

    def _left_to_another(self) -> bool:
        for listener in self._hearing if self.following else ():
            listener.fit_is_due()
        return self.following

    def describe(self) -> dict[str, Any]:
        """For GET /workers."""
        fit, watch, counters = self.assignment.fit, self.drift.watch, self.counters
        owner = {} if fit is None else fit.centroids.owner
        refits, serving = self.clock.refits, self.serving
        return {
            "active": self.active,
            "version": None if serving is None else serving.version,
            "fits_here": not self.following,
            "tau": self._tau if self._policy is None else self._policy.tau,
            "centroids": 0 if fit is None else len(fit.centroids.rows),
            "owners": {shown(group): row for group, row in owner.items()},
            "located": counters.located,
            "band_mean": counters.band / counters.located if counters.located else None,
            "moved": counters.moved,
            "crowded": counters.crowded,
            "fallbacks": dict(counters.fallbacks.most_common()),
            "maps": self.maps.describe(),
            "mapped": counters.mapped,
            "unmapped": dict(counters.unmapped.most_common()),
            "fit": watch.fit,
            "expected": watch.expected if fit is not None else None,
            "workers_in_use": watch.workers,
            "expected_workers": watch.expected_workers,
            "drift": watch.reason,
            "problems": self.reader.problems,
            "refits_by_clock": None if refits is None else asdict(refits),
            "refits": list(self.history.last),
        }
