"""A dispatcher over decode ranks that nobody serves."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from toolkit.contract.events import Hello, LoadReading
from toolkit.contract.request_class import RequestClass
from toolkit.policies.base import RequestView
from toolkit.router.dispatch import Dispatcher
from toolkit.router.known_workers import KnownWorkers
from toolkit.router.metrics import Metrics
from toolkit.router.pool import Waiter
from toolkit.router.rank import Rank
from toolkit.router.request import SubRequest
from toolkit.router.reservation import Reservation
from toolkit.settings.router.config import RouterConfig

POOL = 10_000


def run(check: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(check(), 60))


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class House:
    """A dispatcher over decode ranks that nobody serves; their readings are made here."""

    def __init__(
        self, ranks: int = 2, slots: int = 2, policy: str = "br0", reserve: int = 0, **config: Any
    ) -> None:
        decodes = [
            {"name": f"d{g}", "role": "decode", "url": f"http://127.0.0.1:{g + 2}"}
            for g in range(ranks)
        ]
        prefill = {"name": "p", "role": "prefill", "url": "http://127.0.0.1:1", "bootstrap_port": 1}
        self.config = RouterConfig.model_validate(
            {"workers": [prefill, *decodes], "decode_policy": policy, **config}
        )
        self.known_workers = KnownWorkers(self.config)
        self.dispatcher = Dispatcher(self.config, self.known_workers, Metrics())
        assert self.dispatcher.pool is not None
        self.pool = self.dispatcher.pool
        self.ranks = self.known_workers.side("decode")
        self.waiters: list[Waiter] = []
        self.running: list[tuple[Waiter, Reservation]] = []
        for rank in self.ranks:
            rank.worker.greeted(Hello(max_running_requests=slots, reserved_tokens=reserve))
            rank.worker.mark_up()
            self.publish(rank)

    def publish(self, rank: Rank, **other: int) -> None:
        """A reading as it would be now."""
        count, tokens = rank.inflight, rank.inflight_tokens
        event = {"running": count, "used_tokens": tokens, "capacity_tokens": POOL}
        loop = asyncio.get_running_loop()
        rank.worker.last_event = loop.time()
        rank.read(LoadReading(**{**event, "total_tokens": tokens} | other), loop.time())

    def enter(
        self,
        tokens: int = 100,
        avoid: tuple[str, ...] = (),
        kind: RequestClass = RequestClass.STANDARD,
    ) -> Waiter:
        view = RequestView(prompt_tokens=tokens, request_class=kind)
        sub_request = SubRequest("completions", "/v1/completions", {}, "r", 0, True, view)
        sub_request.avoid.update(avoid)
        waiter = self.pool.enter(sub_request, view, streams=True)
        self.waiters.append(waiter)
        return waiter

    def take(self) -> None:
        """What attempts do when they are woken."""
        for waiter in self.waiters:
            if waiter.bound.done() and not waiter.taken and not waiter.bound.cancelled():
                self.running.append((waiter, waiter.take()))
                self.pool.leave(waiter)

    def end(self, at: int) -> None:
        _, reservation = self.running.pop(at)
        reservation.end(ok=True, generated=3, finished=True)

    def waiting(self) -> list[Waiter]:
        return [waiter for waiter in self.waiters if not waiter.bound.done()]
