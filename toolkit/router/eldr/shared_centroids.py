"""The same centroids in all routers over the same workers: one of them fits, the others take them.

The fitter says that it has others now (FITTED), and who wants them asks for them, part by part
(PART), each answer a notice: so nothing has to be put together out of order, and a part that does
not come is asked for again. The content has the version: routers with equal versions have equal
centroids, bit for bit. What a refit is fitted on stays with the fitter: its own requests of late. A
router that becomes the fitter goes on from the centroids that it has.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode, b64encode
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from toolkit.contract.numbers import Name, Serial, Small
from toolkit.decide.fitter import fitter, follows, newest
from toolkit.policies.support.expert_locality import Centroids
from toolkit.router.eldr.centroid_sets import Fit
from toolkit.router.own_name import own_name
from toolkit.router.worker_listener import WorkerListener
from toolkit.signatures.nearness import Nearness

if TYPE_CHECKING:
    from toolkit.contract.notices import Notice
    from toolkit.router.eldr.locality import Locality
    from toolkit.router.others.exchange import NoticeExchange

log = logging.getLogger("toolkit.router")

FITTED, PART = "fitted", "centroids"
PART_BYTES = 72 * 1024
"""Of rows, in one notice."""
ROWS_BYTES_MAX = 64 * 2**20
TRIES = 3
"""For a part that does not come, and for centroids that change meanwhile."""
SETTLE_S = 0.1
"""Routers come and go at all workers, one after the other."""
CHECK_S = 10.0
"""A fitter is asked no more often whether it is still there, by who would have to fit otherwise."""

Groups = Annotated[list[tuple[Name, Small | None]], msgspec.Meta(max_length=2**16)]
Version = Annotated[str, msgspec.Meta(max_length=64)]


class Fitted(msgspec.Struct, frozen=True):
    """There are other centroids."""

    version: Version


class PartAsked(msgspec.Struct, frozen=True):
    """Part 0: about the centroids of now; others: of the rows of this version."""

    part: Small = 0
    version: Version = ""


class AboutFit(msgspec.Struct, frozen=True):
    """All of a `Fit` but its rows. `rows`: of each group."""

    count: Small
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=2**24)]
    groups: Groups
    owners: Groups
    owned: Annotated[list[Small], msgspec.Meta(max_length=2**16)]
    cosine: float
    workers: float | None
    shared: bool
    provisional: bool


class PartTold(msgspec.Struct, frozen=True):
    """`serial`: of how many fits, one after the other, these centroids are. `about`: of part 0,
    where there are any; `data`: of the others."""

    version: Version = ""
    serial: Serial = 0
    about: AboutFit | None = None
    data: str = ""


class SharedCentroids(WorkerListener):
    """Follows the fitter, or is it."""

    def __init__(self, locality: Locality, exchange: NoticeExchange) -> None:
        self._locality = locality
        self._exchange = exchange
        self._silent: set[str] = set()
        self._met: set[str] = set()
        """Whose centroids this router has looked at since it fits."""
        self._look = asyncio.Event()
        self._fitter = own_name()
        self._serial = 0
        self._taking = False
        self._checked_at = float("-inf")
        self._refused = ""
        self._task: asyncio.Task[None] | None = None
        exchange.give((FITTED, PART), self)
        locality.hear(self)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def fitter(self) -> str:
        """The name of the router that fits."""
        return self._fitter

    def look(self) -> None:
        """Find out who fits: the one that did does not answer."""
        self._look.set()

    def routers_changed(self) -> None:
        self._look.set()

    def health_changed(self, worker: str) -> None:
        self._look.set()  # only through those that are up others are heard of

    def served(self, version: str) -> None:
        """Other centroids decide here from now on."""
        if self._taking:
            return
        self._serial += 1
        if self._fitter == own_name():
            self._exchange.tell(FITTED, Fitted(version))

    def fit_is_due(self) -> None:
        """This router would fit now if no other one did."""
        if monotonic() - self._checked_at >= CHECK_S:
            self._checked_at = monotonic()
            self._look.set()

    async def take_notice(self, notice: Notice) -> PartTold | None:
        if notice.kind == PART:
            return self._part(msgspec.json.decode(notice.body, type=PartAsked))
        self._silent.discard(notice.sender)
        self._met.discard(notice.sender)
        self._look.set()
        return None

    def _part(self, asked: PartAsked) -> PartTold:
        fit, serving = self._locality.assignment.fit, self._locality.serving
        if fit is None or serving is None:
            return PartTold()
        version, rows = serving.version, np.ascontiguousarray(serving.rows, dtype="<f4")
        if not asked.part:
            return PartTold(version, self._serial, self._about(fit, serving))
        if asked.version != version:
            return PartTold(version, self._serial)
        begin = (asked.part - 1) * PART_BYTES
        piece = rows.reshape(-1).view(np.uint8)[begin : begin + PART_BYTES]
        return PartTold(version, self._serial, data=b64encode(piece.tobytes()).decode())

    def _about(self, fit: Fit, serving: Centroids) -> AboutFit:
        count, dimensions = serving.rows.shape
        owners = sorted(serving.owner, key=repr)
        watch = self._locality.drift.watch
        return AboutFit(
            count, dimensions, list(fit.groups), owners, [serving.owner[each] for each in owners],
            fit.expected.cosine, fit.expected.workers, fit.shared, watch.provisional,
        )  # fmt: skip

    async def _run(self) -> None:
        while True:
            await self._look.wait()
            await asyncio.sleep(SETTLE_S)
            self._look.clear()
            try:
                await self._follow()
            except Exception:
                log.exception("ELDR: centroids of other routers were not looked at")

    async def _follow(self) -> None:
        """Find the fitter, and take its centroids; or be it."""
        own = own_name()
        while True:
            others = self._exchange.others
            self._silent &= others
            now = fitter(own, others, self._silent)
            if now == own:
                if self._locality.following:
                    self._met.clear()
                if not others <= self._met:
                    await self._take_newest()
                self._met &= others
                self._settle(now)
                break
            about = await self._ask(now, PartAsked())
            if about is not None:
                self._settle(now)
                if about.about is not None and follows(self._serial, about.serial):
                    await self._take(now, about)
                elif self._serial:  # it is to look at these
                    self._exchange.tell(FITTED, Fitted(self._version()), to=now)
                break
            self._silent.add(now)

    def _settle(self, fitting: str) -> None:
        here = fitting == own_name()
        if fitting != self._fitter:
            log.info("ELDR: %s fits centroids for all routers", "this router" if here else fitting)
        self._fitter = fitting
        self._locality.follow(not here)

    async def _take_newest(self) -> None:
        """Before this router fits: it may have come after centroids had been refitted."""
        told, _ = await self._exchange.ask(PART, PartAsked(), PartTold)
        self._met |= told.keys()
        best = newest(self._serial, {name: part.serial for name, part in told.items()})
        if best is not None and told[best].about is not None:
            await self._take(best, told[best])
            self._exchange.tell(FITTED, Fitted(self._version()))

    async def _ask(self, router: str, asked: PartAsked) -> PartTold | None:
        """What it answers; None: nothing, however often it is asked."""
        for _ in range(TRIES):
            answers, _ = await self._exchange.ask(PART, asked, PartTold, router)
            told = answers.get(router)
            if told is not None or router not in self._exchange.others:
                return told
        return None

    async def _take(self, router: str, told: PartTold) -> None:
        for _ in range(TRIES):
            if told.version == self._version():
                self._serial = told.serial
                return
            try:
                fit = await self._fetched(router, told)
            except ValueError as error:
                if told.version != self._refused:
                    log.error("ELDR: centroids of router %s cannot be used: %s", router, error)
                self._refused = told.version
                return
            if fit is not None:
                self._adopt(fit, told)
                return
            again = await self._ask(router, PartAsked())
            if again is None or again.about is None:
                return
            told = again

    async def _fetched(self, router: str, told: PartTold) -> Fit | None:
        """All of it; None: it is another one by now, or a part did not come. ValueError: it is not
        for these workers, or not what its version says."""
        about = told.about
        assert about is not None
        size = 4 * about.count * about.dimensions
        if about.dimensions != self._locality.space.dimensions:
            raise ValueError(f"of {about.dimensions} values: it has another profile")
        if {name for name, _ in about.groups} - self._locality.decode_names:
            raise ValueError("they are for other workers: let routers give workers the same names")
        if size > ROWS_BYTES_MAX:
            raise ValueError(f"{size} bytes, at most {ROWS_BYTES_MAX}")
        rows = bytearray()
        for part in range(1, -(-size // PART_BYTES) + 1):
            answer = await self._ask(router, PartAsked(part, told.version))
            if answer is None or answer.version != told.version:
                return None
            rows += b64decode(answer.data, validate=True)
        if len(rows) != size:
            raise ValueError("their length is not what it was said to be")
        matrix = np.frombuffer(bytes(rows), dtype="<f4").reshape(about.count, about.dimensions)
        owner = dict(zip(about.owners, about.owned, strict=True))
        centroids = Centroids(matrix.astype(np.float32), owner)
        if not np.isfinite(matrix).all() or centroids.version != told.version:
            raise ValueError("they are not what their version says")
        expected = Nearness(about.cosine, about.workers)
        return Fit(tuple(about.groups), centroids, expected, about.shared)

    def _adopt(self, fit: Fit, told: PartTold) -> None:
        assert told.about is not None
        self._taking, self._serial = True, told.serial
        try:
            self._locality.take(fit, told.about.provisional)
        finally:
            self._taking = False

    def _version(self) -> str:
        serving = self._locality.serving
        return "" if serving is None else serving.version
