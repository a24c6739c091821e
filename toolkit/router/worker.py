"""A worker of the router: its connections, and what runs on them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import orjson

from toolkit.contract import prefill_only
from toolkit.contract.events import Hello, Moving, PrefillDone
from toolkit.decide import messages as m
from toolkit.decide.ranks import WorkerSpec, WorkerState
from toolkit.decide.watchdog import Health, StuckBounds
from toolkit.router.channel import Channel
from toolkit.router.errors import Reason
from toolkit.router.rank import Rank
from toolkit.router.upstream import Call, Upstream
from toolkit.settings.router.config import RouterConfig
from toolkit.settings.router.worker import WorkerConfig

log = logging.getLogger("toolkit.router")


class TakesPrefill(Protocol):
    """Who waits for a prefill to be done."""

    def prefilled(self, event: PrefillDone) -> None: ...


class Worker(WorkerState):
    """What the decider knows of a server, and the router's connections to it. What happens to it is
    told to the decider."""

    ranks: Sequence[Rank]

    def __init__(
        self,
        config: WorkerConfig,
        router: RouterConfig,
        channel: Channel,
        api_key: str | None = None,
    ) -> None:
        spec = WorkerSpec(
            name=config.name,
            role=config.role,
            url=config.url,
            dp_size=config.dp_size,
            dp_attention=config.dp_attention,
            preempts=config.preempts,
            parked=router.parked_per_prefill,
        )
        bounds = StuckBounds(router.stuck_s, router.announced_s)
        super().__init__(spec, bounds)
        self.ranks = [Rank(self, rank, router, bounds) for rank in range(config.dp_size)]
        self.config = config
        self.channel = channel
        self.hello = Hello()
        self.has_events = True
        self.why_down = ""
        """Why it is not up, as it was last seen; what it was once it is."""
        self.pool = Upstream(
            config.name,
            config.host,
            config.port,
            api_key,
            router.connect_timeout_s,
            on_lost=self._data_lost,
            prefix=config.prefix,
        )
        self.calls: set[Call] = set()
        self.prefills: dict[str, TakesPrefill] = {}
        """Who waits for a prefill to be done, by its rid here."""
        self.on_moving: dict[str, Callable[[Moving], None]] = {}
        """Who is told what becomes of an order to send a request elsewhere, by its rid here."""
        self._aborts: set[Call] = set()

    def post(
        self, path: str, body: bytes | tuple[bytes, ...], sink: Any = None, headers: str = ""
    ) -> Call:
        """A request that dies with the worker: `mark_down(fail=True)` ends it."""
        call = self.pool.post(path, body, sink, headers)
        self.calls.add(call)
        call.done.add_done_callback(lambda _: self.calls.discard(call))
        return call

    def abort(self, rid: str) -> None:
        """Ask the worker to drop a request and free its KV. Best effort, nobody waits for it."""
        if not self.healthy:
            return
        call = self.pool.post("/abort_request", orjson.dumps({"rid": rid}))
        self._aborts.add(call)
        call.done.add_done_callback(lambda _: self._aborts.discard(call))
        asyncio.get_running_loop().call_later(5.0, call.close)

    def take_hello(self, hello: Hello) -> None:
        """The worker says what it is; it may have changed with a restart."""
        self.hello = hello
        for rank in self.ranks:
            rank.silence.tells("step_log" in hello.patches)
        for listener in self.channel.listeners:
            listener.greeted(self)
        one_token = prefill_only.PATCH in hello.patches
        slots, reserve = hello.max_running_requests, hello.reserved_tokens
        self.channel.send(m.WorkerGreeted(self.name, slots, reserve, hello.dp_attention, one_token))

    def prefill_done(self, event: PrefillDone) -> None:
        waits = self.prefills.pop(event.rid, None)
        if waits is not None:
            waits.prefilled(event)

    def moving(self, event: Moving) -> None:
        told = self.on_moving.get(event.rid)
        if told is not None:
            told(event)

    def judged(self, order: m.WorkerStuck | m.HealthChanged) -> None:
        """The decider has judged one of its ranks."""
        rank = order.rank
        if isinstance(order, m.WorkerStuck):
            why = f"{order.rank.name} is stuck: {order.rank.watchdog.describe()}"
            log.error("worker %s: its requests go elsewhere, as %s", self.name, why)
            self._give_up(why, "stuck")
            return
        if rank is not None and rank.health is Health.SUSPECT:
            log.warning("%s gets nothing new: %s", rank.name, rank.watchdog.describe())
        if order.goes_on:
            log.warning("worker %s goes on by itself", self.name)

    def describe_stuck(self, rank: Rank) -> dict[str, Any] | None:
        """Of a rank that is not healthy, or whose worker has a stuck one: since when, in Unix time,
        and what it was at; None: it goes on."""
        if rank.health is Health.HEALTHY and self.stuck_since is None:
            return None
        still_s = rank.watchdog.still_s
        return {
            "state": str(rank.health if self.stuck_since is None else Health.STUCK),
            "since": round(time.time() - still_s, 3),
            "still_s": round(still_s, 1),
            "bound_s": round(rank.watchdog.bound_s, 1),
            "doing": rank.watchdog.doing,
        }

    def mark_up(self) -> None:
        self.channel.send(m.WorkerUp(self.name, self.has_events))

    def mark_held_up(self) -> None:
        """No new requests: its HTTP loop does not come round, its ranks may well compute."""
        self.channel.send(m.WorkerHeldUp(self.name))

    def mark_dead(self, crashed: bool) -> None:
        """Its processes are gone, or may as well be: `crashed`: it said so itself."""
        self.channel.send(m.WorkerDied(self.name, crashed))

    def mark_down(self, fail: str | None = None) -> None:
        """No new requests. With `fail`, what runs here is given up as well, with that reason."""
        if self.healthy:
            self._lose()
        self.channel.send(m.WorkerDown(self.name))
        if fail is not None:
            self._give_up(fail, "lost")

    def _lose(self) -> None:
        self.pool.close_idle()
        for rank in self.ranks:
            rank.forget_posted()

    def _give_up(self, why: str, kind: Reason) -> None:
        self._lose()
        for call in list(self.calls):
            call.close(why, kind)

    def _data_lost(self) -> None:
        # This says nothing of what else runs there: those connections tell their own story. The
        # next event from the worker brings it back at once.
        self.mark_down()
