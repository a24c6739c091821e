"""Bounded admission: so many requests run, so many wait, the rest get 429 at once.

A request is asked about twice: `check` when its head is here (nothing of its body has been read),
and `enter` when it is known of how many parts it is. `enter` takes the places of all parts at
once, so that batches that come together cannot overshoot the bound; whose turn it then is says
`toolkit.decide.slots`.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Protocol

from toolkit.decide.slots import Nowhere, Queued, RunningElsewhere, Slots
from toolkit.router.draining import Draining
from toolkit.router.errors import ApiError

RETRY_AFTER_S = 1
LOOK_S = 0.005
"""How often who waits looks whether another process has freed a slot."""


class OtherProcesses(RunningElsewhere, Protocol):
    """What the other processes of this router have of the same places, and may see of these."""

    @property
    def places(self) -> int: ...
    @property
    def batched(self) -> int: ...
    @property
    def best_effort(self) -> int: ...
    def tell(self, places: int, batched: int, best_effort: int, running: int, wide: int) -> None:
        """What this one has; `wide`: running parts of batches."""
        ...


class NoOthers(Nowhere):
    """This process is all of the router."""

    places = batched = best_effort = 0

    def tell(self, places: int, batched: int, best_effort: int, running: int, wide: int) -> None:
        """Nobody looks."""


NO_OTHERS = NoOthers()


class Admission:
    """Places of the router: `max_inflight` that run and `max_queue` that wait, in parts. Batches
    together get at most `widest` of them, three quarters: requests that are not batches find one at
    all times. So do best-effort ones together: of those who are too many they are turned away
    first."""

    def __init__(
        self,
        max_inflight: int,
        max_queue: int,
        draining: Draining | None = None,
        others: OtherProcesses | None = None,
    ) -> None:
        self._others = others or NO_OTHERS
        self.shared = others is not None
        self.max_inflight = max_inflight
        self.max_queue = max_queue
        self.draining = draining or Draining()
        self.all = max_inflight + max_queue
        self.places = self.all
        """Those that are free."""
        self.widest = self.all - self.all // 4
        self.batched = 0
        """Places that batches hold."""
        self.best_effort = 0
        """Places that best-effort requests hold."""
        self.slots = Slots(max_inflight, self._others)
        self._looks: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        return self.slots.running

    @property
    def queued(self) -> int:
        return self.slots.waiting

    @property
    def busy(self) -> bool:
        """Somebody runs, waits, or is about to."""
        return self.places < self.all

    def check(self, count: int = 1, best_effort: bool = False) -> None:
        """Refuse a request of `count` parts that would not find places; takes none.

        Raises:
            ApiError: 429 when the queue is full, 503 while draining; both with Retry-After.
        """
        if self.draining.on:
            raise ApiError(503, "The router is draining; try another one.", retry_after=5)
        other = self._others
        many = count > 1 and self.batched + other.batched + count > self.widest
        behind = best_effort and self.best_effort + other.best_effort + count > self.widest
        if count > self.places - other.places or many or behind:
            running = self.running + other.running
            waiting = self.queued + max(0, other.places - other.running)
            raise ApiError(
                429,
                f"The router is full: {running} requests run and {waiting} wait "
                f"(limits {self.max_inflight} and {self.max_queue})."
                + (" Best-effort requests get three quarters of that." if behind else ""),
                retry_after=RETRY_AFTER_S,
            )

    def enter(self, count: int, best_effort: bool = False) -> AdmissionEntry:
        """Take the places of `count` parts; to be used as `with admission.enter(count) as entry`.

        Raises:
            ApiError: as `check`.
        """
        self.check(count, best_effort)
        self.places -= count
        if count > 1:
            self.batched += count
        if best_effort:
            self.best_effort += count
        if self.shared:
            self.tell()
        return AdmissionEntry(self, count, best_effort)

    def _give_back(self, count: int, job: Queued) -> None:
        self.places += count
        if job.batch:
            self.batched -= count
        if job.best_effort:
            self.best_effort -= count
        if self.shared:
            self.tell()

    def tell(self) -> None:
        """Let the other processes see what this one has."""
        slots = self.slots
        self._others.tell(
            self.all - self.places, self.batched, self.best_effort, slots.running, slots.batched
        )

    def look_later(self) -> None:
        """Somebody waits: look from time to time whether others have freed a slot."""
        if self._looks is None and self._others.running:
            self._looks = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._looks = None
        self.slots.look()
        self.tell()
        if self.slots.waiting:
            self.look_later()


class AdmissionEntry:
    """The places of one request; each part runs within `async with entry.slot():`."""

    def __init__(self, admission: Admission, count: int, best_effort: bool = False) -> None:
        self._admission = admission
        self._left = count
        self._job = Queued(batch=count > 1, best_effort=best_effort)

    def __enter__(self) -> AdmissionEntry:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Parts that never ran, or have not left yet, give their places back."""
        left, self._left = self._left, 0
        self._admission._give_back(left, self._job)

    def slot(self) -> Slot:
        return Slot(self)

    async def _take(self) -> None:
        slots, job = self._admission.slots, self._job
        if slots.take_free(job):
            if self._admission.shared:
                self._admission.tell()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def grant() -> bool:
            if turn.done():  # its task was cancelled in this very turn of the loop
                return False
            turn.set_result(None)
            return True

        if slots.take(job, grant):
            return
        self._admission.look_later()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled() or not turn.done():
                if grant in job.grants:
                    slots.forget(job, grant)
            else:
                slots.give(job.batch)
            raise

    def _leave(self) -> None:
        admission = self._admission
        admission.slots.give(self._job.batch)
        if self._left:
            self._left -= 1
            admission._give_back(1, self._job)
        if admission.slots.waiting:  # others may have taken it
            admission.look_later()


class Slot:
    """One part's slot."""

    __slots__ = ("_entry",)

    def __init__(self, entry: AdmissionEntry) -> None:
        self._entry = entry

    async def __aenter__(self) -> None:
        await self._entry._take()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._entry._leave()
