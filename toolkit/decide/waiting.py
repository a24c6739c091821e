"""Requests that wait for a worker: in which order they go, and for how long they wait."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from toolkit.decide.requests import Due, Wait, WaitStep
from toolkit.decide.wait_queue import WaitQueue

if TYPE_CHECKING:
    from toolkit.decide.bounds import DeciderBounds
    from toolkit.decide.choosing import Chooser
    from toolkit.decide.ranks import RankState
    from toolkit.decide.requests import RequestState
    from toolkit.decide.timers import Timers


class Unserved(Exception):
    """No worker of the role is there in time. `retry_after`: seconds until one may be."""

    def __init__(self, role: str, retry_after: int) -> None:
        super().__init__(f"no healthy {role} worker")
        self.role = role
        self.retry_after = retry_after


class WaitQueues:
    """A queue for each role, and one of all suspects (`toolkit.decide.poison`): a worker takes one
    of these at a time, and they must hold up nobody else.

    Whoever may go now is woken, and asks again (`next_woken`). Nobody overtakes those who wait,
    however often the health of workers changes meanwhile.
    """

    def __init__(self, choosing: Chooser, bounds: DeciderBounds, timers: Timers[Due]) -> None:
        self._ranks = choosing.ranks
        self._choosing = choosing
        self._bounds = bounds
        self._timers = timers
        self._queues = {role: WaitQueue() for role in self._ranks.roles}
        self._suspects = WaitQueue()
        self.woken: deque[RequestState] = deque()
        """Those that may go now."""

    def there(self, request: RequestState, role: str, now: float) -> bool:
        """Whether some worker of the role is; the request waits for one if not.

        Raises:
            Unserved: it has waited for long enough.
        """
        if self._ranks.any_open(role):
            self.leave(request)
            return True
        if not request.queue_role:
            self._enter(request, role, now, suspect=False, best_effort=False)
        self._stay(request, role, now)
        return False

    def seek(
        self, request: RequestState, role: str, now: float, credit: bool = False
    ) -> RankState | None:
        """The policy's choice among healthy ranks (with `credit`: those that have one left); None:
        the request waits for one.

        It waits for a credit as long as it lives, and for a worker to come back as long as its
        bounds say, or as a start takes (`toolkit.decide.returns`), until its own deadline.

        Raises:
            Unserved: it has waited for long enough.
            PolicyFailed: the policy raised, or chose what it may not.
        """
        suspect = request.record.suspect
        queue = self._queue(role, suspect)
        if suspect:
            # Whoever of the others could take what is free has been woken and has taken it. One
            # that has its prefill worker, and did not look, would keep it from those who wait.
            may = True
        elif request.queue_role:
            may = queue.head is request
        else:
            may = queue.would_lead(request.view.best_effort) or not (queue and credit)
        rank = self._choosing.choose(role, request, now, credit) if may else None
        if rank is not None:
            if not request.queue_role and credit:
                queue.overtaken()
            self.leave(request)
            return rank
        if not request.queue_role:
            self._enter(request, role, now, suspect, request.view.best_effort)
        self._stay(request, role, now)
        return None

    def leave(self, request: RequestState) -> None:
        """It does not wait any more, if it did. Its place is the next one's, who looks."""
        if not request.queue_role:
            return
        request.still()
        queue = self._suspects if request in self._suspects else self._queues[request.queue_role]
        queue.leave(request)
        request.queue_role = ""
        self._wake_first(queue)

    def credit_returned(self, role: str) -> None:
        """A rank of the role has one more. Suspects look first: they are as few as the workers."""
        self.suspects_look()
        self._wake_first(self._queues[role])

    def suspects_look(self) -> None:
        """A worker may take a suspect again."""
        self.woken.extend(self._suspects)

    def all_look(self) -> None:
        """The health of some worker has changed."""
        for queue in (*self._queues.values(), self._suspects):
            self.woken.extend(queue)

    def next_woken(self) -> RequestState | None:
        """One that waits and is to ask again; None: there is none."""
        while self.woken:
            request = self.woken.popleft()
            if request.queue_role:
                return request
        return None

    def _wake_first(self, queue: WaitQueue) -> None:
        head = queue.head
        if head is not None:
            self.woken.append(head)

    def _queue(self, role: str, suspect: bool) -> WaitQueue:
        return self._suspects if suspect else self._queues[role]

    def _enter(
        self, request: RequestState, role: str, now: float, suspect: bool, best_effort: bool
    ) -> None:
        request.queue_role, request.entered = role, now
        self._queue(role, suspect).enter(request, best_effort)

    def _stay(self, request: RequestState, role: str, now: float) -> None:
        """Until something may have changed, or the wait is over."""
        request.still()
        if self._ranks.gone_at(role) is None:
            return
        bounds = self._bounds
        if request.step is WaitStep.DECODE:
            least_s = bounds.park_timeout_s
        else:
            least_s = bounds.rerun_wait_s if request.attempt else bounds.no_worker_wait_s
        stay = self._ranks.stay(role, request.entered, least_s, request.deadline, now)
        if stay.seconds <= 0:
            raise Unserved(role, stay.retry_after)
        request.timer = self._timers.set(now + stay.seconds, Wait(request, request.step))
