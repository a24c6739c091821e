"""All workers that the router knows, and the decider that chooses among them."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import cast

from toolkit.contract.events import Hello, LoadReading
from toolkit.decide import messages as m
from toolkit.decide.bounds import DeciderBounds, kept_back
from toolkit.decide.decider import Decider
from toolkit.decide.ranks import KnownRanks
from toolkit.policies.stages.narrowing import StageFilter
from toolkit.router.channel import Channel
from toolkit.router.validate.declared import oldest
from toolkit.router.worker import Rank, Worker
from toolkit.router.worker_listener import WorkerListener
from toolkit.settings.router.config import RouterConfig


class KnownWorkers:
    """All workers by their names and roles."""

    def __init__(self, config: RouterConfig, api_key: str | None = None) -> None:
        self.channel = channel = Channel()
        self.workers = [Worker(worker, config, channel, api_key) for worker in config.workers]
        self.worker_key = api_key
        self._named = {worker.name: worker for worker in self.workers}
        layout = config.layout
        stages = None if layout is None else StageFilter(layout)
        ranks = KnownRanks(self.workers, monotonic())
        self.decider = Decider(ranks, _bounds(config), stages)
        self.listeners: list[WorkerListener] = []
        """Who hears of workers, in this order."""
        channel.begin(self.decider, self._named, self.listeners)

    def listen(self, listener: WorkerListener) -> None:
        """One more that hears of workers."""
        self.listeners.append(listener)

    def greet(self, worker: Worker, hello: Hello) -> None:
        """The worker says what it is."""
        worker.take_hello(hello)
        for listener in self.listeners:
            listener.greeted(worker)
        worker.tell_hello()

    def read_load(self, rank: Rank, reading: LoadReading, now: float) -> None:
        """A rank has published its load."""
        rank.read(reading, now)
        for listener in self.listeners:
            listener.load_read(rank)

    def why_other_model(self, worker: Worker) -> str | None:
        """Why a worker must not serve here: KV of one model means nothing to another, and all that
        serve at a time must be one. None when it may."""
        fingerprint = worker.hello.fingerprint
        for other in self.workers:
            theirs = other.hello.fingerprint
            if other is worker or not other.healthy or not fingerprint or not theirs:
                continue
            if theirs != fingerprint:
                return f"it serves another model than {other.name} ({fingerprint} not {theirs})"
        return None

    def back_in_s(self, worker: Worker, now: float) -> float | None:
        """Until a worker that is gone is expected back; None: it is here, or nobody knows."""
        back = self.decider.ranks.returns.of(worker.name)
        return None if back is None else round(max(0.0, back.at - now), 1)

    def named(self, name: str) -> Worker:
        return self._named[name]

    def side(self, role: str) -> list[Rank]:
        return cast(list[Rank], self.decider.ranks.of(role))

    def hold(self, ranks: Iterable[Rank], on: bool = True) -> None:
        """Let these ranks have no new requests, or (`on` False) let them have some again."""
        self.channel.send(m.Hold(tuple(rank.key for rank in ranks), on))

    def empty(self, ranks: Iterable[Rank], on: bool = True) -> None:
        """Have what runs on these ranks go on elsewhere, until (`on` False) that is enough."""
        self.channel.send(m.Empty(tuple(rank.key for rank in ranks), on))

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


def _bounds(config: RouterConfig) -> DeciderBounds:
    return DeciderBounds(
        late=config.dispatch == "late",
        park_timeout_s=config.park_timeout_s,
        prefill_wait_s=config.prefill_wait_s,
        no_worker_wait_s=config.no_worker_wait_s,
        rerun_wait_s=config.rerun_wait_s,
        max_retries=config.max_retries,
        max_inflight=config.max_inflight,
        eject_share=config.eject_share,
        kept_back=kept_back(config.parked_per_prefill, config.classes is not None),
        moves=None if config.rebalancing is None else config.rebalancing.bounds,
    )
