"""A router's control plane over decode ranks that nobody serves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.present import present
from toolkit.contract.events import Hello, LoadReading
from toolkit.contract.request_class import RequestClass
from toolkit.decide import messages as m
from toolkit.decide.reservation import Reservation
from toolkit.policies.base import RequestView
from toolkit.router.control_plane import ControlPlane
from toolkit.router.metrics import Metrics
from toolkit.router.worker import Rank
from toolkit.settings.router.config import RouterConfig

POOL = 10_000


def run(check: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(check(), 60))


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Waiter:
    """A request whose prefill is done. `bound` ends with its place on a decode rank, or with the
    decider's refusal."""

    def __init__(self, house: House, view: RequestView) -> None:
        self._house = house
        self.view = view
        self.prefill: Reservation | None = None
        self.bound: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        self.taken = False
        self.number = house.channel.join(self)

    def take(self, order: m.RequestOrder) -> None:
        match order:
            case m.PrefillOrder():
                self.prefill = order.reservation
                self._house.channel.send(m.Prefilled(self.number, self.view))
            case m.DecodeOrder():
                self.bound.set_result(order.reservation)
            case m.Refuse():
                self.bound.set_exception(
                    RuntimeError(f"{order.why} {order.retry_after} {order.text}")
                )
                self.bound.exception()  # it is looked at
            case _:
                raise AssertionError(order)

    @property
    def refused(self) -> str:
        error = self.bound.exception()
        return "" if error is None else str(error)


class House:
    """A control plane over decode ranks that nobody serves; their readings are made here."""

    def __init__(
        self,
        ranks: int = 2,
        slots: int = 2,
        policy: str = "br0",
        reserve: int = 0,
        preempts: bool = False,
        **config: Any,
    ) -> None:
        decodes = [
            {"name": f"d{g}", "role": "decode", "url": f"http://127.0.0.1:{g + 2}"}
            | {"preempts": preempts}
            for g in range(ranks)
        ]
        prefill = {"name": "p", "role": "prefill", "url": "http://127.0.0.1:1", "bootstrap_port": 1}
        given = {"workers": [prefill, *decodes], "decode_policy": policy, **config}
        self.config = RouterConfig.model_validate({"parked_per_prefill": 1000} | given)
        self.control = ControlPlane(self.config, Metrics(), [])
        self.known_workers = self.control.known_workers
        self.channel = self.known_workers.channel
        self.policies = self.control.policies
        self.pool = present(self.known_workers.decider.pool)
        self.ranks = self.known_workers.side("decode")
        self.waiters: list[Waiter] = []
        self.running: list[tuple[Waiter, Reservation]] = []
        self.known_workers.named("p").mark_up()
        for rank in self.ranks:
            hello = Hello(max_running_requests=slots, reserved_tokens=reserve)
            self.known_workers.greet(rank.worker, hello)
            rank.worker.mark_up()
            self.publish(rank)

    def publish(self, rank: Rank, **other: int) -> None:
        """A reading as it would be now."""
        count, tokens = rank.inflight, rank.inflight_tokens
        event = {"running": count, "used_tokens": tokens, "capacity_tokens": POOL}
        loop = asyncio.get_running_loop()
        rank.worker.heard(loop.time())
        reading = LoadReading(**{**event, "total_tokens": tokens} | other)
        self.known_workers.read_load(rank, reading, loop.time())

    def enter(
        self,
        tokens: int = 100,
        avoid: tuple[str, ...] = (),
        kind: RequestClass = RequestClass.STANDARD,
    ) -> Waiter:
        view = RequestView(prompt_tokens=tokens, request_class=kind)
        waiter, now = Waiter(self, view), asyncio.get_running_loop().time()
        self.channel.send(m.Arrive(waiter.number, view, "split", True, now, now + 600))
        self.channel.decider.attempts.requests[waiter.number].avoid.update(avoid)
        self.waiters.append(waiter)
        return waiter

    def take(self) -> None:
        """Whoever has a place runs."""
        for waiter in self.waiters:
            if waiter.bound.done() and not waiter.taken and not waiter.bound.cancelled():
                waiter.taken = True
                self.running.append((waiter, waiter.bound.result()))

    def end(self, at: int) -> None:
        waiter, reservation = self.running.pop(at)
        self._over(waiter, m.CallReleased(reservation, "served", True, 3, True), served=True)

    def leave(self, waiter: Waiter) -> None:
        """Its client goes away before anything was sent."""
        if not waiter.bound.done():
            waiter.bound.cancel()
            self._over(waiter, None, served=False)
        elif waiter.bound.exception() is None:
            self._over(waiter, m.CallReleased(waiter.bound.result(), "unsent", False), served=False)

    def _over(self, waiter: Waiter, released: m.CallReleased | None, served: bool) -> None:
        if waiter.prefill is not None:
            self.channel.send(m.CallReleased(waiter.prefill, "unknown", True))
        if released is not None:
            self.channel.send(released)
        self.channel.send(m.RequestEnded(waiter.number, served))
        self.channel.leave(waiter.number)

    def waiting(self) -> list[Waiter]:
        return [waiter for waiter in self.waiters if not waiter.bound.done()]
