"""Who runs next: a pure queue of jobs for a bounded number of slots. No clock, no event loop.

A job is what one client asked for at once: one part, or the parts of a batch (prompts times n).
Each part needs a slot. Rules:

- At most `most` parts run.
- Batches together run at most `wide` parts (three quarters of the slots). So a slot is free, or
  becomes free, for a request that is no batch, however many batches are there. A lone batch leaves
  the rest unused: parts run for long, and a slot that is taken cannot be taken back.
- Who waits is served by job, in turn: a batch gets one slot, then goes behind all who wait. Within
  a job parts keep their order. Requests that are no batches are first come, first served.
- Best-effort jobs are served when nobody else waits who may run; but once `WAIT_LIMIT` parts of
  others went before the same one, it is next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

Grant = Callable[[], bool]
"""Tells a part that it has a slot; False when it does not want it any more."""


WAIT_LIMIT = 64


class RunningElsewhere(Protocol):
    """Parts that take slots of the same number elsewhere: in other processes of a router."""

    @property
    def running(self) -> int: ...
    @property
    def running_batched(self) -> int: ...


class Nowhere:
    """There is no elsewhere."""

    running = running_batched = 0


NOWHERE = Nowhere()


class Queued:
    """The waiting parts of one job. `batch`: it has more than one part."""

    __slots__ = ("batch", "best_effort", "grants", "turn")

    def __init__(self, batch: bool, best_effort: bool = False) -> None:
        self.batch = batch
        self.best_effort = best_effort
        self.grants: deque[Grant] = deque()
        self.turn = 0


class Slots:
    """`take` and `give`; a part that waits is told by its `Grant` that it has a slot. `elsewhere`:
    who takes of the same slots. Whoever waits here for one that is freed there must `look`."""

    def __init__(self, most: int, elsewhere: RunningElsewhere = NOWHERE) -> None:
        self.most = most
        self._elsewhere = elsewhere
        self.wide = max(1, most - max(1, most // 4))
        self.running = 0
        self.batched = 0
        """Of those that run: parts of batches."""
        self.waiting = 0
        self._turns = 0
        self._passed = 0
        """Parts of others since a best-effort one had its turn, while such a one waits."""
        self._sub_requests: deque[Queued] = deque()
        self._batches: deque[Queued] = deque()
        self._best_effort_sub_requests: deque[Queued] = deque()
        self._best_effort_batches: deque[Queued] = deque()

    def take_free(self, job: Queued) -> bool:
        """True: it has a slot, as one was free and nobody of its kind waits."""
        ahead = bool(self._batches if job.batch else self._sub_requests)
        if job.best_effort:
            ahead = ahead or bool(self._line(job))
        if ahead or not self._room(job.batch):
            return False
        self._count(job.batch, 1)
        return True

    def take(self, job: Queued, grant: Grant) -> bool:
        """True: it has a slot. False: `grant` is called when it gets one."""
        if self.take_free(job):
            return True
        job.grants.append(grant)
        self.waiting += 1
        if len(job.grants) == 1:
            self._line_up(job)
        return False

    def give(self, batch: bool) -> None:
        """A part has left its slot."""
        self._count(batch, -1)
        self._fill()

    def forget(self, job: Queued, grant: Grant) -> None:
        """A part that waits does not want a slot any more."""
        job.grants.remove(grant)
        self.waiting -= 1
        if not job.grants:
            self._line(job).remove(job)

    def look(self) -> None:
        """A slot may have been freed elsewhere."""
        self._fill()

    def _room(self, batch: bool) -> bool:
        other = self._elsewhere
        if self.running + other.running >= self.most:
            return False
        return not (batch and self.batched + other.running_batched >= self.wide)

    def _count(self, batch: bool, change: int) -> None:
        self.running += change
        if batch:
            self.batched += change

    def _line(self, job: Queued) -> deque[Queued]:
        if job.best_effort:
            return self._best_effort_batches if job.batch else self._best_effort_sub_requests
        return self._batches if job.batch else self._sub_requests

    def _line_up(self, job: Queued) -> None:
        self._turns += 1
        job.turn = self._turns
        self._line(job).append(job)

    def _next(self) -> Queued | None:
        """Whose turn it is; None when nobody waits who may run."""
        first = self._first(self._sub_requests, self._batches)
        behind = self._first(self._best_effort_sub_requests, self._best_effort_batches)
        if behind is None or (first is not None and self._passed < WAIT_LIMIT):
            return first
        return behind

    def _first(self, sub_requests: deque[Queued], batches: deque[Queued]) -> Queued | None:
        sub_request = sub_requests[0] if sub_requests and self._room(False) else None
        batch = batches[0] if batches and self._room(True) else None
        if sub_request is None or batch is None:
            return sub_request or batch
        return sub_request if sub_request.turn < batch.turn else batch

    def _fill(self) -> None:
        while (job := self._next()) is not None:
            self._line(job).popleft()
            best_effort = bool(self._best_effort_sub_requests or self._best_effort_batches)
            self._passed = self._passed + 1 if best_effort and not job.best_effort else 0
            grant = job.grants.popleft()
            self.waiting -= 1
            if job.grants:
                self._line_up(job)
            self._count(job.batch, 1)
            if not grant():
                self._count(job.batch, -1)
