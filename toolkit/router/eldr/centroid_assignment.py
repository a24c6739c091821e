"""Keeps one centroid for each decode worker while they come and go."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from time import monotonic

from toolkit.router.eldr.centroid_sets import Fit, Rows, match, share
from toolkit.router.eldr.refit_history import RefitHistory
from toolkit.router.eldr.refit_queue import Job
from toolkit.router.eldr.refits import NICE, Base, RefitError, fit_rows
from toolkit.router.eldr.worker_set import START_GRACE_S, Groups, WorkerSet, names

log = logging.getLogger("toolkit.router")

SETTLE_S = 0.25
"""A worker that is back within this time was never gone."""
MOST_SETTLE_S = 1.0
"""Workers that come and go all the time are taken as they are after so long."""
RETRY_S = 60.0
MOST_FITS = 256


class CentroidAssignment:
    """The current `fit`, the fits of other sets of workers, and rows for other numbers of them.

    `urgent` fits as many centroids as there are workers now. `ahead` fits what would be needed if
    any one server were lost or came back: then that costs no more than handing the rows out, and
    a worker that flaps goes back and forth between two fits. Until there is a new one the last fit
    serves: the policy leaves out the ranks that are down.
    """

    def __init__(
        self,
        workers: WorkerSet,
        base: Base,
        history: RefitHistory,
        seed: int,
        on_fit: Callable[[Fit], None],
    ) -> None:
        self.fit: Fit | None = None
        self._workers = workers
        self._base = base
        self._history = history
        self._seed = seed
        self._on_fit = on_fit
        self._rows: dict[int, Rows] = {}
        self._fits: OrderedDict[Groups, Fit] = OrderedDict()
        self._failed: set[int] = set()
        self._settling: asyncio.TimerHandle | None = None
        self._unsettled_at = 0.0
        self._following = False
        self.on_wish: Callable[[], None] = lambda: None
        """`urgent` has a job."""
        self.on_idle: Callable[[], None] = lambda: None
        """`ahead` may have one."""

    def begin(self, fit: Fit) -> None:
        """The fit to start with."""
        self.fit = fit
        self._remember(fit)

    def close(self) -> None:
        self._base.close()

    async def rows_near(self, fit: Fit, base: Base) -> dict[int, Rows]:
        """What `ahead` would fit from `base` beside `fit`."""
        sizes = self._workers.sizes_near(fit.groups) - {len(fit.groups)}
        if not sizes:
            return {}
        begin = monotonic()
        try:
            return await fit_rows(base, sizes, self._seed)
        finally:
            self._history.took(monotonic() - begin)

    def replace(self, fit: Fit, base: Base, rows: dict[int, Rows]) -> None:
        """Other centroids of other requests, which refits for other workers will use too."""
        followed = () if self.fit is None else self.fit.groups
        old, self._base = self._base, base
        old.close()
        self._rows = dict(rows)
        self._fits.clear()
        self._failed.clear()
        self._adopt(fit)
        now = self._rows.get(len(followed))
        if now is not None and followed == self._wanted():
            # Workers came or went while `fit` was made: that is in the history already.
            self._adopt(match(fit, followed, now))
        self._follow()

    def follow(self, on: bool) -> None:
        """Whether another router's fits serve from now on, whoever comes or goes."""
        if on != self._following:
            self._following = on
            self._follow()

    def take(self, fit: Fit) -> None:
        """Another router's fit. What was fitted before was of other requests."""
        self._rows.clear()
        self._fits.clear()
        self._failed.clear()
        self._adopt(fit)

    def exchange(self, fit: Fit) -> None:
        """The same centroids with other owners."""
        self._adopt(fit)

    def health_changed(self) -> None:
        """Some worker came or went. Acts when it has stayed so for SETTLE_S, or after
        MOST_SETTLE_S."""
        loop = asyncio.get_running_loop()
        if self._workers.note(monotonic()):
            loop.call_later(START_GRACE_S + SETTLE_S, self._follow)
        if self._settling is None:
            self._unsettled_at = loop.time()
        else:
            self._settling.cancel()
        at = min(loop.time() + SETTLE_S, self._unsettled_at + MOST_SETTLE_S)
        self._settling = loop.call_at(at, self._settled)

    def urgent(self) -> Job | None:
        want = self._wanted()
        if want is None or self._settling is not None or self._known(len(want)):
            return None
        return self._fit([len(want)], urgent=True)

    def ahead(self) -> Job | None:
        if self.fit is None:
            return None
        sizes = self._workers.sizes_near(self.fit.groups)
        missing = sorted(k for k in sizes if not self._known(k))
        return self._fit(missing, urgent=False) if missing else None

    def _known(self, k: int) -> bool:
        """Whether nothing new would come of fitting k centroids."""
        return k in self._rows or k in self._failed

    def _wanted(self) -> Groups | None:
        """The workers that are there, unless they are those that the fit is for."""
        present = self._workers.present(monotonic())
        fits = self.fit is not None and self.fit.groups == present and not self.fit.shared
        return present if present and not fits else None

    def _settled(self) -> None:
        self._settling = None
        self._follow()

    def _follow(self, seconds: float = 0.0) -> None:
        """Go over to the fit for those that are there, or see to it that there will be one."""
        want = self._wanted()
        if want is None:
            return
        if self._following:
            self.on_wish()
            return
        rows = self._rows.get(len(want))
        if want in self._fits:
            self._swap(self._fits[want], seconds)
        elif rows is not None:
            self._swap(match(self.fit, want, rows), seconds)
        elif len(want) not in self._failed:
            self.on_wish()
        elif self.fit is not None and self.fit.groups != want:
            self._swap(share(self.fit, want), seconds)

    def _swap(self, fit: Fit, seconds: float) -> None:
        before = set(self.fit.groups) if self.fit is not None else set()
        gone, come = names(before - set(fit.groups)), names(set(fit.groups) - before)
        self._adopt(fit)
        k, expected = len(fit.centroids.rows), fit.expected.cosine
        changed = (f", without {gone}" if gone else "") + (f", with {come}" if come else "")
        how = "shared, as the refit failed" if fit.shared else "fitted ahead"
        if seconds and not fit.shared:
            how = f"refit in {seconds:.1f} s"
        log.info(
            "ELDR: %d centroids for %d decode workers%s; mean cosine %.3f expected; %s",
            *(k, len(fit.groups), changed, expected, how),
        )
        numbers = {"centroids": k, "expected": round(expected, 4), "seconds": round(seconds, 3)}
        self._history.add("workers", "adopted", gone=gone, come=come, **numbers)

    def _adopt(self, fit: Fit) -> None:
        self.fit = fit
        if not fit.shared:
            self._remember(fit)
        self._on_fit(fit)
        self.on_idle()

    def _remember(self, fit: Fit) -> None:
        self._fits[fit.groups] = fit
        self._fits.move_to_end(fit.groups)
        if len(self._fits) > MOST_FITS:
            self._fits.popitem(last=False)
        self._rows[len(fit.groups)] = Rows(fit.centroids.rows, fit.expected)

    async def _fit(self, sizes: list[int], urgent: bool) -> None:
        """Rows for these numbers of workers."""
        begin = monotonic()
        try:
            rows = await fit_rows(self._base, sizes, self._seed, 0 if urgent else NICE)
        except RefitError as error:
            self._fail(sizes, error, urgent)
        else:
            self._rows |= rows
            self._failed.update(set(sizes) - set(rows))
        seconds = monotonic() - begin
        self._history.took(seconds)
        self._follow(seconds if urgent else 0.0)

    def _fail(self, sizes: Iterable[int], error: RefitError, urgent: bool) -> None:
        self._failed.update(sizes)
        if not error.hopeless:
            asyncio.get_running_loop().call_later(RETRY_S, self._try_again, sizes)
        self._history.add("workers", "failed", error=str(error))
        if urgent:
            log.error("ELDR: no centroids for the decode workers that are there: %s", error)
        else:
            log.warning("ELDR: nothing fitted ahead for lost or new workers: %s", error)

    def _try_again(self, sizes: Iterable[int]) -> None:
        self._failed.difference_update(sizes)
        self.on_idle()
