"""Who runs next: a pure queue of jobs for a bounded number of slots. No clock, no event loop.

A job is what one client asked for at once: one part, or the parts of a batch (prompts times n).
Each part needs a slot. Rules:

- At most `most` parts run.
- Batches together run at most `wide` parts (three quarters of the slots), so that a slot for a
  single request is free, or becomes free, however many batches are there. A lone batch leaves the
  rest unused: parts run for long, and a slot that is taken cannot be taken back.
- Who waits is served by job, in turn: a batch gets one slot, then goes behind all who wait. Within
  a job parts keep their order. Single requests are first come, first served.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Grant = Callable[[], bool]
"""Tells a part that it has a slot; False when it does not want it any more."""


class Queued:
    """The waiting parts of one job. `batch`: it has more than one part."""

    __slots__ = ("batch", "grants", "turn")

    def __init__(self, batch: bool) -> None:
        self.batch = batch
        self.grants: deque[Grant] = deque()
        self.turn = 0


class Slots:
    """`take` and `give`; a part that waits is told by its `Grant` that it has a slot."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.wide = max(1, most - max(1, most // 4))
        self.running = 0
        self.batched = 0
        """Of those that run: parts of batches."""
        self.waiting = 0
        self._turns = 0
        self._singles: deque[Queued] = deque()
        self._batches: deque[Queued] = deque()

    def take_free(self, job: Queued) -> bool:
        """True: it has a slot, as one was free and nobody of its kind waits."""
        ahead = self._batches if job.batch else self._singles
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
            (self._batches if job.batch else self._singles).remove(job)

    def _room(self, batch: bool) -> bool:
        return self.running < self.most and not (batch and self.batched >= self.wide)

    def _count(self, batch: bool, change: int) -> None:
        self.running += change
        if batch:
            self.batched += change

    def _line_up(self, job: Queued) -> None:
        self._turns += 1
        job.turn = self._turns
        (self._batches if job.batch else self._singles).append(job)

    def _next(self) -> Queued | None:
        """Whose turn it is; None when nobody waits who may run."""
        single = self._singles[0] if self._singles and self._room(False) else None
        batch = self._batches[0] if self._batches and self._room(True) else None
        if single is None or batch is None:
            return single or batch
        return single if single.turn < batch.turn else batch

    def _fill(self) -> None:
        while (job := self._next()) is not None:
            (self._batches if job.batch else self._singles).popleft()
            grant = job.grants.popleft()
            self.waiting -= 1
            if job.grants:
                self._line_up(job)
            self._count(job.batch, 1)
            if not grant():
                self._count(job.batch, -1)
