"""What the router knows of its workers: health, load, requests in flight, credits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

import orjson

from toolkit.contract.events import Hello, Moving, PrefillDone
from toolkit.decide.ejection import Ejection
from toolkit.decide.watchdog import Health
from toolkit.router.errors import Reason
from toolkit.router.rank import Rank
from toolkit.router.upstream import Call, Upstream
from toolkit.settings.router.config import RouterConfig
from toolkit.settings.router.worker import WorkerConfig

log = logging.getLogger("toolkit.router")


class Worker:
    """One server: its connections, its health and its DP ranks."""

    def __init__(
        self, config: WorkerConfig, router: RouterConfig, api_key: str | None = None
    ) -> None:
        self.config = config
        self.name = config.name
        self.healthy = False
        self.has_events = True
        self.hello = Hello()
        self.slots = 0
        """Requests that one rank runs at a time at most; 0 for a plain SGLang, which has no `hello`
        to say it in."""
        self.reserve = 0
        """KV tokens that a rank keeps free for each of them."""
        self.shares_experts = config.dp_attention
        """Whether its ranks do (DP attention)."""
        self.down_since = 0.0
        self.why_down = ""
        """Why it is not up, as it was last seen; what it was once it is."""
        self.last_event = 0.0
        self.record = Ejection()
        self.crashed_at = 0.0
        """When it last said that one of its processes had died."""
        self.gone_at = 0.0
        """When it last went away, or hung, without a word."""
        self.stuck_since: float | None = None
        """Since when a rank of it has been stuck: it gets nothing until its ranks go on, or another
        process answers there."""
        self.stood_from = 0.0
        """When the rank that got stuck last was last seen to go on."""
        self.times_stuck = 0
        self.pool = Upstream(
            config.name,
            config.host,
            config.port,
            api_key,
            router.connect_timeout_s,
            on_lost=self._data_lost,
            prefix=config.prefix,
        )
        self.ranks = [Rank(self, rank, router) for rank in range(config.dp_size)]
        self.calls: set[Call] = set()
        self.on_change: Callable[[], None] = lambda: None
        self.on_event: Callable[[], None] = lambda: None
        """A request has ended here, or the worker came, went or changed."""
        self.on_reading: Callable[[Rank], None] = lambda rank: None
        self.on_hello: Callable[[], None] = lambda: None
        self.on_placed: Callable[[int], None] = lambda serial: None
        """Its experts lie elsewhere: the number of the map."""
        self.on_transfer: Callable[[float, int], None] = lambda seconds, size: None
        self.judge: Callable[[str], str | None] = lambda fingerprint: None
        """Why a worker with this model's fingerprint must not serve here; None when it may."""
        self.on_death: Callable[[], None] = lambda: None
        """It went away, or hung, without a word."""
        self._prefills: dict[str, asyncio.Future[PrefillDone | None]] = {}
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

    def expect_prefill(self, rid: str) -> asyncio.Future[PrefillDone | None]:
        """Ends with the `prefill_done` event, or None when that event may have been missed."""
        future: asyncio.Future[PrefillDone | None] = asyncio.get_running_loop().create_future()
        self._prefills[rid] = future
        future.add_done_callback(partial(self._expected, rid))
        return future

    def _expected(self, rid: str, future: asyncio.Future[PrefillDone | None]) -> None:
        if self._prefills.get(rid) is future:
            del self._prefills[rid]

    def greeted(self, hello: Hello) -> None:
        """The worker says what it is; it may have changed with a restart."""
        self.hello = hello
        self.slots = hello.max_running_requests
        self.reserve = hello.reserved_tokens
        says = hello.dp_attention
        self.shares_experts = self.config.dp_attention if says is None else says
        self.down_since = 0.0
        self.stuck_since = None
        for rank in self.ranks:
            rank.begin_anew()
            rank.silence.tells("step_log" in hello.patches)
        self.on_hello()
        self.on_event()

    def prefill_done(self, event: PrefillDone) -> None:
        future = self._prefills.get(event.rid)
        if future is not None and not future.done():
            future.set_result(event)

    def moving(self, event: Moving) -> None:
        told = self.on_moving.get(event.rid)
        if told is not None:
            told(event)

    def judged(self, rank: Rank) -> None:
        """What is thought of a rank of it has changed. One that is stuck takes all with it: what
        ends it ends the worker."""
        if rank.health is Health.STUCK and self.stuck_since is None:
            why = f"{rank.name} is stuck: {rank.watchdog.describe()}"
            log.error("worker %s: its requests go elsewhere, as %s", self.name, why)
            self.died(crashed=False)  # what it ran is suspected as with a death
            self.stuck_since = monotonic()
            self.stood_from = rank.watchdog.moved_at
            self.times_stuck += 1
            self.mark_down(why, "stuck")
            return
        if rank.health is Health.SUSPECT:
            log.warning("%s gets nothing new: %s", rank.name, rank.watchdog.describe())
        stuck = any(each.health is Health.STUCK for each in self.ranks)
        if self.stuck_since is not None and not stuck:
            self.stuck_since = None
            log.warning("worker %s goes on by itself", self.name)
            self.mark_up()
        self.on_change()
        self.on_event()

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
        if not self.healthy and self.stuck_since is None:
            self.healthy = True
            self.on_change()
            self.on_event()

    def mark_held_up(self) -> None:
        """No new requests: its HTTP loop does not come round, its ranks may well compute. Nothing
        is missed, so nothing is given up: what runs here, and what waits for a prefill, waits."""
        if self.healthy:
            self.healthy = False
            self.down_since = monotonic()
            self.on_change()
            self.on_event()

    def died(self, crashed: bool) -> None:
        """Its processes are gone, or may as well be: `crashed`: it said so itself. One that was
        stuck has gone already: its end is no second death."""
        if self.stuck_since is not None:
            return
        if crashed:
            self.crashed_at = monotonic()
        else:
            self.gone_at = monotonic()
            self.on_death()

    def mark_down(self, fail: str | None = None, kind: Reason = "lost") -> None:
        """No new requests. With `fail`, what runs here is given up as well, with that reason."""
        if self.healthy:
            self.healthy = False
            self.down_since = monotonic()
            self.pool.close_idle()
            for rank in self.ranks:
                rank.forget_load()
            self.on_change()
            self.on_event()
        for future in list(self._prefills.values()):
            if not future.done():
                future.set_result(None)
        if fail is not None:
            for call in list(self.calls):
                call.close(fail, kind)

    def _data_lost(self) -> None:
        # This says nothing of what else runs there: those connections tell their own story. The
        # next event from the worker brings it back at once.
        self.mark_down()
