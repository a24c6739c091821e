"""All workers that the router knows, and who waits for one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic

from toolkit.decide.poison import Deaths, Probation
from toolkit.decide.returns import Return, Returns, Stay, first, stay
from toolkit.decide.watchdog import Health
from toolkit.router.rank import Rank
from toolkit.router.validate.declared import oldest
from toolkit.router.wait_queue import WaitQueue
from toolkit.router.worker import Worker
from toolkit.settings.router.config import RouterConfig


class KnownWorkers:
    """All workers, and per role the queue of requests that wait for one of them."""

    def __init__(self, config: RouterConfig, api_key: str | None = None) -> None:
        self.workers = [Worker(worker, config, api_key) for worker in config.workers]
        self.worker_key = api_key
        self.probation = Probation()
        self.deaths = Deaths()
        self.returns = Returns()
        self.poisoned: Counter[str] = Counter()
        """By worker: its deaths for which a request was put in quarantine
        (`toolkit.decide.poison`)."""
        self._queues: dict[str, WaitQueue] = {w.role: WaitQueue() for w in config.workers}
        self._on_probation = WaitQueue()
        self._gone_at: dict[str, float] = {}
        """By role: when its last healthy worker went; absent while there is one."""
        self._sides: dict[str, list[Rank]] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Some worker's health has changed."""
        for worker in self.workers:
            self._sides.setdefault(worker.config.role, []).extend(worker.ranks)
            worker.on_change = self._changed
            worker.on_death = self._noted
            worker.judge = partial(self._judge, worker)

        self._note_roles()
        self._note_workers()

    def _noted(self) -> None:
        self.deaths.note(monotonic())

    def _note_roles(self) -> None:
        for role in self._queues:
            if self.any_healthy(role):
                self._gone_at.pop(role, None)
            else:
                self._gone_at.setdefault(role, monotonic())

    def _note_workers(self) -> None:
        now = monotonic()
        for worker in self.workers:
            note = self.returns.came if worker.healthy else self.returns.went
            note(worker.name, now)

    def _changed(self) -> None:
        self._note_roles()
        self._note_workers()
        self.on_change()
        self.wake_all()

    def wake_all(self) -> None:
        """Let everybody who waits for a worker look again."""
        for queue in (*self._queues.values(), self._on_probation):
            queue.wake_all()

    def _judge(self, worker: Worker, fingerprint: str) -> str | None:
        """KV of one model means nothing to another: all that serve at a time must be one."""
        for other in self.workers:
            theirs = other.hello.fingerprint
            if other is worker or not other.healthy or not fingerprint or not theirs:
                continue
            if theirs != fingerprint:
                return f"it serves another model than {other.name} ({fingerprint} not {theirs})"
        return None

    def queue(self, role: str, suspect: bool = False) -> WaitQueue:
        """Where requests wait for a worker of the role. Suspects (`toolkit.decide.poison`) wait
        apart, as a worker takes one of them at a time: they must hold up nobody else."""
        return self._on_probation if suspect else self._queues[role]

    def gone_at(self, role: str) -> float | None:
        """When the role's last healthy worker went; None while there is one."""
        return self._gone_at.get(role)

    def back(self, role: str, now: float) -> Return | None:
        """When some worker of a role that nobody serves is expected to serve it; None: nobody
        knows. A rank that makes no step for the moment is about to go on, or to be started anew."""
        found = []
        for worker in self.workers:
            if worker.config.role != role:
                continue
            found.append(self.returns.of(worker.name))
            for rank in worker.ranks:
                if worker.healthy and rank.health is Health.SUSPECT:
                    found.append(Return(now + 1.0, rank.watchdog.bound_s))
        return first(found)

    def back_in_s(self, worker: Worker, now: float) -> float | None:
        """Until a worker that is gone is expected back; None: it is here, or nobody knows."""
        back = self.returns.of(worker.name)
        return None if back is None else round(max(0.0, back.at - now), 1)

    def stay(self, role: str, entered: float, least_s: float, deadline: float, now: float) -> Stay:
        """How long a request that came at `entered` waits for the role, which nobody serves."""
        since = max(self._gone_at.get(role, entered), entered)
        return stay(since, least_s, deadline, self.back(role, now), now)

    def named(self, name: str) -> Worker:
        return next(worker for worker in self.workers if worker.name == name)

    def leave_probation(self, suspect: object) -> None:
        """The suspect has proven itself, or is gone: another one may have its worker."""
        if self.probation.leave(suspect):
            self._on_probation.wake_all()

    def side(self, role: str) -> list[Rank]:
        return self._sides[role]

    def any_healthy(self, role: str) -> bool:
        """Whether some rank of the role takes new requests."""
        return any(rank.open for rank in self._sides[role])

    def hold(self, ranks: Iterable[Rank], on: bool = True) -> None:
        """Let these ranks have no new requests, or (`on` False) let them have some again."""
        for rank in ranks:
            rank.held = on
            rank.worker.on_event()
        self._changed()

    def ranks_named(self, name: str) -> list[Rank]:
        """Of a worker by its name, or one of its DP ranks (`decode-0:1`). Empty: there is none."""
        whole, _, number = name.rpartition(":")
        for worker in self.workers:
            if worker.name == name:
                return list(worker.ranks)
            if worker.name == whole and number.isdigit() and int(number) < len(worker.ranks):
                return [worker.ranks[int(number)]]
        return []

    def vocabulary(self) -> int:
        """Token ids that every worker knows, as far as they say; 0 when none does."""
        sizes = [worker.hello.vocab_size for worker in self.workers]
        return min((size for size in sizes if size), default=0)

    def release(self) -> str:
        """The supported release of SGLang whose fields every worker knows, as far as they say
        which they have; empty when none does."""
        return oldest(frozenset([worker.hello.sglang for worker in self.workers]))

    def ready(self) -> bool:
        """At least one healthy worker of each role."""
        roles = {worker.config.role for worker in self.workers}
        return roles == {worker.config.role for worker in self.workers if worker.healthy}
