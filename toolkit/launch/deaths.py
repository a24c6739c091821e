"""What follows when a process has died: another start, a rest, or failure."""

import functools
import time
from collections.abc import Callable, Iterable

from toolkit.launch.background import Background
from toolkit.launch.backoff import next_start, without
from toolkit.launch.plan import Plan
from toolkit.launch.poison import Poison
from toolkit.launch.process import Managed, Status


class ProcessDeaths:
    """Counts the deaths of each process and says when it is started again. Used by one thread.

    Deaths that a poisonous request caused do not count against a worker: the router is asked.
    """

    def __init__(self, plan: Plan, background: Background, changed: Callable[[str], None]) -> None:
        self._policy = plan.restart
        self._poison = Poison(plan)
        self._background = background
        self._changed = changed

    @property
    def timer(self) -> float | None:
        """When (monotonic s) to call `tick`; None: not before a process dies."""
        return self._poison.timer

    def tick(self, processes: Iterable[Managed], now: float) -> None:
        """Ask about poisonous requests, when that is due."""
        if self._poison.due(now):
            self._background.ask(self._poison.ask, functools.partial(self._pardon, list(processes)))

    def died(self, m: Managed, how: str, patient: bool) -> None:
        """A process has ended, or could not be started. `patient`: one that dies too often rests,
        and is tried again for ever; else it has failed."""
        now, policy = time.monotonic(), self._policy
        if m.ready_after is not None and now - m.started - m.ready_after >= policy.window:
            m.rests = 0
        m.deaths = [death for death in m.deaths if now - death < policy.window] + [now]
        delay, rests = next_start(policy, m.deaths, now, m.rests)
        if rests and not patient:
            m.status = Status.FAILED
            m.note = f"{how}; gave up after {m.restarts} restarts in {policy.window:.0f} s"
            self._changed(f"{m.name}: {m.note}. Its log ends:\n{m.tail()}")
            return
        if rests and m.role == "router":
            delay = min(delay, policy.rest_first)  # nobody is served without it
        m.restarts += 1
        m.next_start = now + delay
        if rests:
            m.rests += 1
            m.status = Status.RESTING
            at = time.strftime("%H:%M:%S", time.localtime(time.time() + delay))
            m.note = f"{how}; died too often: rests, next try in {delay:.0f} s, at {at}"
            self._changed(f"{m.name}: {m.note}. Its log ends:\n{m.tail()}")
        else:
            m.status, m.note = Status.RESTARTING, f"{how}; starting again in {delay:.0f} s"
            self._changed(f"{m.name}: {m.note}")
        if m.role != "router":
            self._poison.after(now, policy.window)

    def _pardon(self, processes: Iterable[Managed], counts: object) -> None:
        """Deaths that a poisonous request caused do not count against a worker."""
        if not isinstance(counts, dict):
            return  # the router does not answer: it is asked again
        now, policy = time.monotonic(), self._policy
        for m in processes:
            total = self._poison.of(counts, m.name)
            new, m.poison = (total - m.poison if total >= m.poison else total), total
            if new <= 0:
                continue
            m.deaths = without(m.deaths, new)
            recent = sum(now - death < policy.window for death in m.deaths)
            if m.status is Status.RESTING and recent <= policy.max_restarts:
                m.rests = 0
                m.status, m.next_start = Status.RESTARTING, now + policy.first_delay
                m.note = f"starting again in {policy.first_delay:.0f} s"
                self._changed(f"{m.name}: poisonous requests killed it; {m.note}")
