"""A worker of the router and its DP ranks: its connections, and what runs on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from time import monotonic, time
from typing import Any, Protocol

import orjson

from toolkit.contract import prefill_only, step_frames
from toolkit.contract.events import Heartbeat, Hello, LoadReading, Moving, PrefillDone, Steps
from toolkit.contract.heartbeat import DOING_BYTES, Beat, sane_seconds
from toolkit.decide import messages as m
from toolkit.decide.ledger import FIELDS
from toolkit.decide.ranks import RankState, WorkerSpec, WorkerState
from toolkit.decide.waiting_work import waiting_tokens
from toolkit.decide.watchdog import Health, StuckBounds
from toolkit.router.decider_channel import TellsDecider
from toolkit.router.errors import Reason
from toolkit.router.own_name import own_name
from toolkit.router.silence import Silence
from toolkit.router.step_frames import StepFrames
from toolkit.router.steps import StepSums
from toolkit.router.upstream import Call, Upstream
from toolkit.settings.router.config import RouterConfig
from toolkit.settings.router.worker import WorkerConfig

log = logging.getLogger("toolkit.router")


class TakesPrefill(Protocol):
    """Who waits for a prefill to be done, or nearly."""

    def prefilled(self, event: PrefillDone) -> None: ...


class HearsOfWorker(Protocol):
    """Who hears of what a worker does (`toolkit.router.worker_listener`)."""

    def given_up(self, worker: Worker, why: str, kind: Reason) -> None: ...
    def moving(self, worker: Worker, event: Moving) -> None: ...
    def stepped(self, rank: Rank) -> None: ...
    def routers_changed(self) -> None: ...


class Rank(RankState):
    """What the decider knows of a rank, and what only the router needs."""

    worker: Worker

    def __init__(
        self, worker: Worker, dp_rank: int, config: RouterConfig, bounds: StuckBounds
    ) -> None:
        super().__init__(worker, dp_rank, bounds)
        self.steps: StepSums | None = None
        self.silence = Silence(config.first_token_timeout_s, config.idle_timeout_s)
        self._lost_s = config.lost_s
        self.is_empty = False
        """It had no request at all when it last said how many it has."""
        self._posted: dict[Call, float | None] = {}
        """With the first reading since then after which none had a request."""

    def expect(self, call: Call) -> None:
        """A request was posted that this rank is to answer: if it gets lost in the worker, between
        the process that took it and the rank, its call ends."""
        if self.ledger.complete:
            self._posted[call] = None
            call.done.add_done_callback(lambda _: self._posted.pop(call, None))

    def read(self, event: LoadReading, now: float) -> None:
        """Take a published reading."""
        reading = {key: getattr(event, key) for key in FIELDS}
        # SGLang's num_total_tokens is what requests will use; the pool's size has its own field.
        if event.capacity_tokens is not None:
            reading["waiting_tokens"] = waiting_tokens(
                self.worker.config.role, event.used_tokens, event.total_tokens, event.waiting_tokens
            )
            reading["total_tokens"] = event.capacity_tokens
        self.worker.channel.send(m.LoadRead(self.key, reading), now)
        self.is_empty = not reading["running"] and not reading["waiting"]
        self.give_up_lost(self.is_empty, now)

    def unreadable(self) -> None:
        """It published something that is no reading: there is none until the next one."""
        self.worker.channel.send(m.LoadRead(self.key, None))

    def give_up_lost(self, empty: bool, now: float) -> None:
        """SGLang has no timer for a request that a rank never got: who sent it would wait for ever.

        A rank that says again and again for so long, since a request was posted, that it has none
        at all, has not got this one. (One that says nothing may be compiling, or hung.) What has
        begun to answer was there; its client may be slow to read.
        """
        for call, since in list(self._posted.items()):
            if not empty or since is None:
                self._posted[call] = now if empty else None
            elif not call.begun and now - since > self._lost_s:
                call.close(
                    f"rank {self.dp_rank} has had no request at all for {self._lost_s:g} s", "lost"
                )

    def forget_posted(self) -> None:
        """What it said of its requests before does not count any more."""
        self._posted = dict.fromkeys(self._posted)

    def take_steps(self, event: Steps) -> None:
        """Take a decode rank's sums. ValueError when they cannot be."""
        sums = self.steps or StepSums()
        before, requests, tokens = sums.steps, sums.requests, sums.new_tokens
        sums.add(event)
        self.steps = sums
        if sums.steps > before:
            self.silence.stepped(monotonic())
            self.worker.stepped(self)
        requests, tokens = sums.requests - requests, sums.new_tokens - tokens
        each = tokens / requests if requests else 1.0
        self.worker.channel.send(m.Stepped(self.key, sums.steps - before, each))

    def take_beat(self, event: Heartbeat) -> None:
        """Take its scheduler's heartbeat."""
        seconds = sane_seconds(event.expected_s)
        beat = Beat(event.beats, event.works, event.doing[:DOING_BYTES], seconds)
        self.worker.channel.send(m.Beaten(self.key, beat))

    def describe(self, now: float) -> dict[str, Any]:
        load, worker = self.load(now), self.worker
        steps = {} if self.steps is None else {"steps": asdict(self.steps)}
        return {
            "name": worker.name,
            "role": worker.config.role,
            "url": worker.config.url,
            "dp_rank": self.dp_rank,
            "healthy": worker.healthy,
            **({} if worker.healthy else {"why": worker.why_down}),
            **({"refused": True} if worker.refused else {}),
            "held": self.held,
            **({} if worker.routers == 1 else {"routers": worker.routers}),
            "stuck": worker.describe_stuck(self),
            "inflight": self.inflight,
            "inflight_tokens": self.inflight_tokens,
            "load": None
            if load is None
            else {
                **(self.ledger.reading or {}),
                "sent_requests": load.sent_requests,
                "sent_tokens": load.sent_tokens,
            },
            "completed": self.completed,
            "failed": self.failed,
            "moved_in": self.moved_in,
            "moved_out": self.moved_out,
            **steps,
        }


class Worker(WorkerState):
    """What the decider knows of a server, and the router's connections to it. What happens to it is
    told to the decider."""

    ranks: Sequence[Rank]

    def __init__(
        self,
        config: WorkerConfig,
        router: RouterConfig,
        channel: TellsDecider,
        api_key: str | None = None,
        listeners: Sequence[HearsOfWorker] = (),
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
        self._listeners = listeners
        self.hello = Hello()
        self.has_events = True
        self.why_down = ""
        """Why it is not up, as it was last seen; what it was once it is."""
        self.boot = ""
        """Of the process that last said hello there, whether or not it may serve here."""
        self.refused = ""
        """Why who answers there must not serve here; empty: nobody does, or it may."""
        self.pool = Upstream(
            config.name,
            config.host,
            config.port,
            api_key,
            router.connect_timeout_s,
            on_lost=self._data_lost,
            prefix=config.prefix,
        )
        self.frames = StepFrames(self.pool)
        self.calls: set[Call] = set()
        self.prefills: dict[str, TakesPrefill] = {}
        """Who waits for a prefill to be done, by its rid here."""
        self.on_moving: dict[str, Callable[[Moving], None]] = {}
        """Who is told what becomes of an order to send a request elsewhere, by its rid here."""
        self._aborts: set[Call] = set()
        self.other_routers: frozenset[str] = frozenset()
        """Names of those that send requests there, too, as it last said."""

    def post(
        self,
        path: str,
        body: bytes | tuple[bytes, ...],
        sink: Any = None,
        headers: str = "",
        long: bool = False,
    ) -> Call:
        """A request that dies with the worker: `mark_down(fail=True)` ends it. `long`: what comes
        for the sink is many events, which may come in frames."""
        framed = self.frames.header() if long and step_frames.PATCH in self.hello.patches else ""
        call = self.pool.post(path, body, sink, headers + framed)
        if framed:
            self.frames.follow(call)
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

    def answered_by(self, boot: str) -> None:
        """A process has said hello. If it is another one, what was sent to the former is given up:
        its connections may tell nothing for long, as those of a machine that is gone."""
        before, self.boot = self.boot, boot
        if before and before != boot:
            log.info("worker %s: another process answers at its address", self.name)
            self.give_up("another process answers at its address", "lost")

    def tell_hello(self, anew: bool) -> None:
        """Tell the decider what it has said that it is."""
        hello = self.hello
        one_token = prefill_only.PATCH in hello.patches
        slots, reserve = hello.max_running_requests, hello.reserved_tokens
        self.channel.send(
            m.WorkerGreeted(self.name, slots, reserve, hello.dp_attention, one_token, anew)
        )

    def shared_by(self, names: Iterable[str]) -> None:
        """Routers of these names send requests there, this one among them."""
        self.other_routers = others = frozenset(names) - {own_name()}
        if len(others) + 1 != self.routers:
            log.info("worker %s has %s routers", self.name, len(others) + 1)
        self.channel.send(m.WorkerShared(self.name, len(others) + 1))
        for listener in self._listeners:
            listener.routers_changed()

    def prefill_done(self, event: PrefillDone) -> None:
        waits = self.prefills.get(event.rid) if event.left else self.prefills.pop(event.rid, None)
        if waits is not None:
            waits.prefilled(event)

    def moving(self, event: Moving) -> None:
        told = self.on_moving.get(event.rid)
        if told is not None:
            told(event)
        for listener in self._listeners:
            listener.moving(self, event)

    def judged(self, order: m.WorkerStuck | m.HealthChanged) -> None:
        """The decider has judged one of its ranks."""
        rank = order.rank
        if isinstance(order, m.WorkerStuck):
            why = f"{order.rank.name} is stuck: {order.rank.watchdog.describe()}"
            log.error("worker %s: its requests go elsewhere, as %s", self.name, why)
            self.give_up(why, "stuck")
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
            "since": round(time() - still_s, 3),
            "still_s": round(still_s, 1),
            "bound_s": round(rank.watchdog.bound_s, 1),
            "doing": rank.watchdog.doing,
        }

    def stepped(self, rank: Rank) -> None:
        """One of its ranks has made steps."""
        for listener in self._listeners:
            listener.stepped(rank)

    def heard(self, now: float) -> None:
        """It gave a sign of life."""
        self.channel.send(m.WorkerHeard(self.name), now)

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
            self.give_up(fail, "lost")

    def _lose(self) -> None:
        self.pool.close_idle()
        for rank in self.ranks:
            rank.forget_posted()

    def give_up(self, why: str, kind: Reason) -> None:
        """All that runs here, with that reason."""
        self._lose()
        self.frames.drop()
        for call in list(self.calls):
            call.close(why, kind)
        for listener in self._listeners:
            listener.given_up(self, why, kind)

    def take_health(self, healthy: bool, open_ranks: Sequence[bool]) -> None:
        """As another process of this router sees it, which listens to the worker."""
        if self.healthy and not healthy:
            self._lose()
        self.healthy = healthy
        for rank, is_open in zip(self.ranks, open_ranks, strict=True):
            rank.held = not is_open

    def _data_lost(self) -> None:
        # This says nothing of what else runs there: those connections tell their own story. The
        # next event from the worker brings it back at once.
        self.mark_down()
