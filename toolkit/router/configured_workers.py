"""The workers of a configuration: what requests are posted to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.router.validate.declared import oldest
from toolkit.router.worker import Rank, Worker
from toolkit.router.worker_listener import WorkerListener

if TYPE_CHECKING:
    from toolkit.router.decider_channel import TellsDecider
    from toolkit.settings.router.config import RouterConfig


class ConfiguredWorkers:
    """All workers by their names. What happens to one is told through the channel."""

    def __init__(
        self, config: RouterConfig, channel: TellsDecider, api_key: str | None = None
    ) -> None:
        self.listeners: list[WorkerListener] = []
        """Who hears of workers, in this order."""
        self.workers = [
            Worker(worker, config, channel, api_key, self.listeners) for worker in config.workers
        ]
        self.worker_key = api_key
        """With which workers know the router."""
        self._named = {worker.name: worker for worker in self.workers}

    def listen(self, listener: WorkerListener) -> None:
        """One more that hears of workers."""
        self.listeners.append(listener)

    def named(self, name: str) -> Worker:
        return self._named[name]

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
