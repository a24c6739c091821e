"""Refits by the clock, for a policy that asks for them (`eldr@artifact`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from time import monotonic

import numpy as np

from toolkit.policies.base import Refits
from toolkit.policies.support.expert_locality import Centroids
from toolkit.router.eldr.centroid_sets import Fit
from toolkit.router.eldr.refit_history import RefitHistory
from toolkit.router.eldr.refit_queue import Job
from toolkit.router.eldr.refits import RefitError, in_thread, run_job
from toolkit.signatures.calibration import Floats
from toolkit.signatures.online import RefitWindow
from toolkit.signatures.reader import SignatureSample

log = logging.getLogger("toolkit.router")


class ClockRefits:
    """Moves the centroids of `fit` as long as a policy with `refits` decides.

    What it makes lies over `fit` and goes with the policy: another policy, switched to at run time,
    finds the centroids that it would have found without this one. Nor does it survive another
    `fit` (a worker went or came, somebody asked for a refit): the next refit begins there. The
    requests of the last seconds stay. A refit takes 0.2 s of a process of its own, most of it to
    start; one at a time, and where that takes longer than the interval the next begins after it.
    """

    def __init__(
        self,
        fit: Callable[[], Fit | None],
        history: RefitHistory,
        on_moved: Callable[[Centroids], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.refits: Refits | None = None
        self.moved: Centroids | None = None
        """What the last refit made; None: those of the fit serve."""
        self.on_due: Callable[[], None] = lambda: None
        """`job` has one."""
        self._fit = fit
        self._history = history
        self._on_moved = on_moved
        self._clock = clock
        self._window: RefitWindow | None = None
        self._due = False
        self._failing = False

    def follow(self, refits: Refits | None) -> None:
        """Another policy decides from now on."""
        self.refits, self.moved, self._due = refits, None, False
        self._window = None if refits is None else RefitWindow(refits.every_s, refits.window_s)
        if refits is not None:
            log.info(
                "ELDR: centroids are refitted every %g s on the last %g s, whatever drifts",
                *(refits.every_s, refits.window_s),
            )

    def restart(self) -> None:
        """There is another fit to begin with."""
        self.moved = None

    def observe(self, sample: SignatureSample) -> None:
        """A request that was routed."""
        serving = self._serving()
        if self._window is None or serving is None:
            return
        now = self._clock()
        self._window.add(sample.vector, now)
        if not self._due and self._window.due(now, len(serving.rows)):
            self._due = True
            self.on_due()

    def job(self) -> Job | None:
        window, serving = self._window, self._serving()
        if not self._due or window is None or serving is None:
            return None
        self._due = False
        now = self._clock()
        if not window.due(now, len(serving.rows)):  # the queue was busy meanwhile
            return None
        return self._refit(window, serving, window.begin(now))

    async def _refit(self, window: RefitWindow, old: Centroids, kept: list[Floats]) -> None:
        begin = self._clock()
        try:
            stacked = await in_thread(partial(np.stack, kept), lambda _: None)
            result = await run_job({"kind": "clock"}, {"signatures": stacked, "old": old.rows})
        except RefitError as error:
            self._history.took(self._clock() - begin)
            self._history.add("clock", "failed", error=str(error))
            if not self._failing:
                log.error("ELDR: a refit by the clock failed, the centroids stay: %s", error)
            self._failing = True
            return
        seconds = self._clock() - begin
        self._failing = False
        self._history.took(seconds)
        if window is not self._window or old is not self._serving():
            return  # made for another policy, or for other workers
        self.moved = Centroids(np.ascontiguousarray(result["centroids"]), old.owner)
        figures = {"requests": len(kept), "seconds": round(seconds, 3)}
        self._history.add("clock", "adopted", **figures)
        log.debug("ELDR: centroids moved to the last %(requests)d requests", figures)
        self._on_moved(self.moved)

    def _serving(self) -> Centroids | None:
        fit = self._fit()
        return self.moved if fit is None or self.moved is not None else fit.centroids
