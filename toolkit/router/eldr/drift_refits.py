"""Refits on the traffic of late: because it has drifted, or because somebody asks for one."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import Any

import numpy as np

from toolkit.policies.support.expert_locality import Centroids
from toolkit.router.eldr.centroid_assignment import CentroidAssignment
from toolkit.router.eldr.centroid_sets import Fit, Rows
from toolkit.router.eldr.refit_history import Cause, RefitHistory, Result
from toolkit.router.eldr.refit_queue import Job
from toolkit.router.eldr.refits import Base, RefitError, in_thread, run_job
from toolkit.signatures.calibrated import of_recent
from toolkit.signatures.drift import DriftWatch
from toolkit.signatures.nearness import Nearness
from toolkit.signatures.reader import SignatureSample
from toolkit.signatures.refits import Refit
from toolkit.signatures.reservoir import Recent
from toolkit.signatures.space import SignatureSpace

log = logging.getLogger("toolkit.router")


Renewed = tuple[Fit, Base, dict[int, Rows]]


class FittedElsewhere(Exception):
    """Another router fits; the message says so."""


class TooFew(Exception):
    """There is too little to refit on; the message says what is missing."""


class DriftRefits:
    """Feeds `watch`, and refits when it says so (`follow`) or when asked."""

    def __init__(
        self,
        space: SignatureSpace,
        expected: Nearness,
        assignment: CentroidAssignment,
        history: RefitHistory,
        seed: int,
        follow: bool,
    ) -> None:
        self.watch = DriftWatch(
            space.dimensions, expected.cosine, seed=seed, workers=expected.workers
        )
        self._space = space
        self._assignment = assignment
        self._history = history
        self._seed = seed
        self._follow = follow
        self._due = ""
        self._paused = False
        self._asked: list[tuple[asyncio.Future[dict[str, Any]], bool]] = []
        self.on_due: Callable[[], None] = lambda: None
        """`job` has one."""

    def pause(self, on: bool) -> None:
        """Whether something else refits from now on: then drift is watched, and nothing is done."""
        if on != self._paused:
            self._paused = on
            self.reset(Nearness(self.watch.expected, self.watch.expected_workers))

    def observe(self, sample: SignatureSample, serving: Centroids) -> None:
        """A request that was routed by centroids: does it still fit?"""
        if self._assignment.fit is None:
            return
        cosines = serving.cosines(sample.vector)
        near = int(cosines.argmax())
        due = self.watch.observe(sample.counts, sample.tokens, float(cosines[near]), near)
        if self._paused or due == bool(self._due):
            return
        if not due:
            self._due = "" if not self._follow else self._due
            return
        self._due = self.watch.reason
        if self._follow:
            self.on_due()
        else:
            log.info("ELDR: drift, %s; refit_on_drift is off, so nothing is done", self._due)

    def reset(self, expected: Nearness) -> None:
        """Other centroids: what was seen of the old ones says nothing of them. They are of the same
        requests, though: a provisional fit stays one for any number of workers."""
        self._due = ""
        self.watch.reset(expected.cosine, expected.workers, self.watch.provisional)

    async def refit_now(self, force: bool = False) -> dict[str, Any]:
        """Refit on recent requests; what came of it. `force` adopts it even if it gains little.

        Raises:
            TooFew: there are no centroids yet, or too few recent requests.
            RefitError: the refit failed.
        """
        if self._assignment.fit is None:
            raise TooFew("there are no centroids yet: wait for the first fit, see GET /workers")
        entry = (asyncio.get_running_loop().create_future(), force)
        self._asked.append(entry)
        self.on_due()
        try:
            result: dict[str, Any] = await entry[0]
            return result
        finally:
            if entry in self._asked:  # whoever asked went away
                self._asked.remove(entry)

    def refuse(self, error: Exception) -> None:
        """Whoever asks for a refit is told this."""
        asked, self._asked = self._asked, []
        for future, _ in asked:
            if not future.done():
                future.set_exception(error)

    def job(self) -> Job | None:
        fit = self._assignment.fit
        if fit is None or not (self._asked or (self._due and self._follow)):
            return None
        return self._refit(fit)

    async def _refit(self, fit: Fit) -> None:
        asked = list(self._asked)
        cause: Cause = "manual" if asked else "drift"
        # Now: when a worker comes or goes meanwhile, nothing is due any more.
        why = "somebody asks for a refit" if asked else self._due
        recent, begin = self.watch.recent(), monotonic()
        try:
            refit = await self._fitted(fit, recent)
            adopt = refit.worthwhile or any(force for _, force in asked)
            renewed = await self._renewed(fit, refit, recent) if adopt else None
            seconds = monotonic() - begin
            outcome: dict[str, Any] | Exception = self._settle(
                cause, why, fit, refit, renewed, seconds
            )
        except Exception as error:  # whatever it is: whoever asked waits for an answer
            outcome = self._fail(cause, error)
        for future, _ in asked:
            if not future.done():
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
        self._asked = [entry for entry in self._asked if entry not in asked]

    async def _fitted(self, fit: Fit, recent: Recent) -> Refit:
        if not len(recent):
            raise TooFew("no request with a signature has come yet: send some, then ask again")
        job = {"kind": "recent", "layers": self._space.layers, "seed": self._seed}
        arrays = {
            "counts": recent.counts,
            "tokens": recent.tokens,
            "weights": self._space.weights,
            "old": fit.centroids.rows,
        }
        begin = monotonic()
        try:
            result = await run_job(job, arrays)
        finally:
            self._history.took(monotonic() - begin)
        figures = json.loads(str(result["refit"]))
        refit = Refit(centroids=np.ascontiguousarray(result["centroids"]), **figures)
        if not refit.fitted:
            raise TooFew(
                f"{len(recent)} recent requests are too few for {len(fit.centroids.rows)} "
                "centroids: send more, then ask again"
            )
        return refit

    async def _renewed(self, fit: Fit, refit: Refit, recent: Recent) -> Renewed:
        """All that goes with new centroids, before they are adopted: a worker may go right then."""
        expected = Nearness(refit.cosine_new, refit.workers_new)
        centroids = Centroids(refit.centroids, fit.centroids.owner)
        new = Fit(fit.groups, centroids, expected, fit.shared)
        most = refit.fitted + refit.held_out
        make = partial(_base_of, self._space, recent, most, self._seed)
        base = await in_thread(make, Base.close)
        try:
            rows = await self._assignment.rows_near(new, base)
        except RefitError as error:
            log.warning("ELDR: nothing fitted ahead for lost or new workers: %s", error)
            rows = {}
        except BaseException:
            base.close()
            raise
        return new, base, rows

    def _settle(
        self,
        cause: Cause,
        why: str,
        fit: Fit,
        refit: Refit,
        renewed: Renewed | None,
        seconds: float,
    ) -> dict[str, Any]:
        """Adopt or decline a refit of `fit`, which may be served no more; what to tell."""
        result: Result = "declined" if renewed is None else "adopted"
        if renewed is not None:
            # Comes back to `reset`, at last with the fit of the workers that are there by now.
            self._assignment.replace(*renewed)
            self.watch.provisional = refit.provisional
        elif self._assignment.fit is fit:
            self.watch.settle(refit)
            self._due = ""
        log.info("ELDR: %s; %s: %s, took %.1f s", why, result, refit.summary, seconds)
        figures = asdict(refit)
        del figures["centroids"]
        numbers = {k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}
        numbers |= {"why": why, "seconds": round(seconds, 3)}
        self._history.add(cause, result, **numbers)
        return {"result": result, "summary": refit.summary, **numbers}

    def _fail(self, cause: Cause, error: Exception) -> TooFew | RefitError:
        """The old centroids stay; the next try has to wait until its limit is over. What to
        raise."""
        if cause == "manual" and isinstance(error, TooFew):  # asked too early: nothing is wrong
            log.info("ELDR: no refit: %s", error)
            return error
        if cause == "drift":
            self.reset(Nearness(self.watch.expected, self.watch.expected_workers))
        if isinstance(error, TooFew | RefitError):
            known, trace = error, None
        else:
            known, trace = RefitError(f"unexpected error: {error!r}"), error
        self._history.add(cause, "failed", error=str(known))
        log.error("ELDR: the refit on recent requests failed: %s", known, exc_info=trace)
        return known


def _base_of(space: SignatureSpace, recent: Recent, most: int, seed: int) -> Base:
    return Base(of_recent(space, recent, most, seed))
