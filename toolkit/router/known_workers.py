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
from toolkit.router.configured_workers import ConfiguredWorkers
from toolkit.router.fitting import why_other_layout, why_other_model
from toolkit.router.worker import Rank, Worker
from toolkit.settings.router.config import RouterConfig


class KnownWorkers(ConfiguredWorkers):
    """All workers, with what they say of themselves and what the decider makes of it."""

    def __init__(self, config: RouterConfig, api_key: str | None = None) -> None:
        self.channel = channel = Channel()
        super().__init__(config, channel, api_key)
        layout = config.layout
        stages = None if layout is None else StageFilter(layout)
        ranks = KnownRanks(self.workers, monotonic())
        self.decider = Decider(ranks, _bounds(config), stages)
        channel.begin(self.decider, self._named, self.listeners)

    def greet(self, worker: Worker, hello: Hello) -> None:
        """The worker says what it is; it may be another process than before."""
        before = worker.hello.boot
        anew = bool(before) and before != hello.boot
        worker.take_hello(hello)
        for listener in self.listeners:
            if anew:
                listener.replaced(worker)
            listener.greeted(worker)
        worker.tell_hello(anew)

    def read_load(self, rank: Rank, reading: LoadReading, now: float) -> None:
        """A rank has published its load."""
        rank.read(reading, now)
        for listener in self.listeners:
            listener.load_read(rank)

    def why_unfit(self, worker: Worker, hello: Hello) -> str | None:
        """Why a worker that says this of itself must not serve here: all that serve at a time must
        have one model, and take each other's KV. None when it may."""
        splits = self.decider.ranks.splits
        for other in self.workers:
            if other is worker or not other.healthy:
                continue
            wrong = why_other_model(hello, other.hello, other.name)
            if wrong is None and splits:
                wrong = why_other_layout(hello, other.hello, other.name)
            if wrong is not None:
                return wrong
        return None

    def empty_roles(self) -> list[str]:
        """Roles that nobody serves now: requests wait for them."""
        ranks = self.decider.ranks
        return [role for role in ranks.roles if ranks.gone_at(role) is not None]

    def back_in_s(self, worker: Worker, now: float) -> float | None:
        """Until a worker that is gone is expected back; None: it is here, or nobody knows."""
        back = self.decider.ranks.returns.of(worker.name)
        return None if back is None else round(max(0.0, back.at - now), 1)

    def side(self, role: str) -> list[Rank]:
        return cast(list[Rank], self.decider.ranks.of(role))

    def hold(self, ranks: Iterable[Rank], on: bool = True) -> None:
        """Let these ranks have no new requests, or (`on` False) let them have some again."""
        self.channel.send(m.Hold(tuple(rank.key for rank in ranks), on))

    def empty(self, ranks: Iterable[Rank], on: bool = True) -> None:
        """Have what runs on these ranks go on elsewhere, until (`on` False) that is enough."""
        self.channel.send(m.Empty(tuple(rank.key for rank in ranks), on))


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
