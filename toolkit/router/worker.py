"""What the router knows of its workers: health, load, requests in flight, credits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import orjson

from toolkit.contract.events import Hello, LoadReading, PrefillDone, Steps
from toolkit.policies.base import Group, Load, WorkerView, group_of
from toolkit.router.config import RouterConfig, WorkerConfig
from toolkit.router.ejection import Ejection
from toolkit.router.ledger import FIELDS, Ledger
from toolkit.router.poison import Deaths, Lanes
from toolkit.router.silence import Silence
from toolkit.router.steps import StepSums
from toolkit.router.turnstile import Turnstile
from toolkit.router.upstream import Call, Pool
from toolkit.waiting_work import waiting_tokens

if TYPE_CHECKING:
    from toolkit.router.booking import Booking


class Rank:
    """One DP rank of a worker: what a policy chooses."""

    def __init__(self, worker: Worker, dp_rank: int, config: RouterConfig) -> None:
        self.worker = worker
        self.dp_rank = dp_rank
        self.key = (worker.name, dp_rank)
        self.credit = config.parked_per_prefill
        self.completed = 0
        self.failed = 0
        self.ledger = Ledger(complete=worker.config.role == "decode")
        self.unstreamed: dict[int, Booking] = {}
        """Requests whose tokens are counted by steps, since their answers do not stream."""
        self.steps: StepSums | None = None
        self.silence = Silence(config.first_token_timeout_s, config.idle_timeout_s)
        self._lost_s = config.lost_s
        self._posted: dict[Call, float | None] = {}
        """With the first reading since then after which none had a single request."""

    @property
    def group(self) -> Group:
        return group_of(self.key, self.worker.shares_experts)

    @property
    def inflight(self) -> int:
        return self.ledger.inflight

    @property
    def inflight_tokens(self) -> int:
        return self.ledger.inflight_tokens

    def begin(self, tokens: int, now: float) -> int:
        """A request of `tokens` KV tokens was posted; the lease that `end` takes."""
        return self.ledger.begin(tokens, now)

    def end(self, lease: int, tokens: int, ok: bool, generated: int = 0) -> None:
        self.ledger.end(lease, tokens, monotonic(), generated)
        if ok:
            self.completed += 1
        else:
            self.failed += 1
        self.worker.on_news()

    def cancel(self, lease: int, tokens: int) -> None:
        """It was not posted after all."""
        self.ledger.cancel(lease, tokens)
        self.worker.on_news()

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
        self.ledger.read(reading, now)
        self._give_up_lost(empty=not reading["running"] and not reading["waiting"], now=now)
        self.worker.on_reading(self)

    def unreadable(self) -> None:
        """It published something that is no reading: there is none until the next one."""
        self.ledger.reading = None

    def _give_up_lost(self, empty: bool, now: float) -> None:
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

    @property
    def used_tokens(self) -> int | None:
        """KV tokens in use by the last reading; None without one."""
        reading = self.ledger.reading
        return None if reading is None else reading["used_tokens"]

    def quiet_s(self, now: float) -> float:
        """Since the last reading."""
        return now - self.ledger.read_at

    def stepped(self, event: Steps) -> None:
        """Take a decode rank's sums. ValueError when they cannot be."""
        sums = self.steps or StepSums()
        before = sums.steps
        sums.add(event)
        self.steps = sums
        if sums.steps > before:
            self.silence.stepped(monotonic())
        for booking in self.unstreamed.values():
            booking.stepped(sums.steps - before)

    def forget_load(self) -> None:
        self.ledger.forget()
        self._posted = dict.fromkeys(self._posted)

    def load(self, now: float) -> Load | None:
        return self.ledger.load(now, self.worker.last_event)

    def view(self, now: float, usable: bool) -> WorkerView:
        return WorkerView(
            name=self.worker.name,
            url=self.worker.config.url,
            dp_rank=self.dp_rank,
            healthy=usable,
            inflight=self.ledger.inflight,
            inflight_tokens=self.ledger.inflight_tokens,
            load=self.load(now),
            slots=self.worker.slots,
            reserve=self.worker.reserve,
            shares_experts=self.worker.shares_experts,
        )

    def describe(self, now: float) -> dict[str, Any]:
        load = self.load(now)
        steps = {} if self.steps is None else {"steps": asdict(self.steps)}
        return {
            "name": self.worker.name,
            "role": self.worker.config.role,
            "url": self.worker.config.url,
            "dp_rank": self.dp_rank,
            "healthy": self.worker.healthy,
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
            **steps,
        }


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
        """Requests that one rank runs at a time at most; 0 where it does not say."""
        self.reserve = 0
        """KV tokens that a rank keeps free for each of them."""
        self.shares_experts = config.dp_attention
        """Whether its ranks do (DP attention)."""
        self.down_since = 0.0
        self.last_event = 0.0
        self.record = Ejection()
        self.crashed_at = 0.0
        """When it last said that one of its processes had died."""
        self.gone_at = 0.0
        """When it last went away, or hung, without a word."""
        self.pool = Pool(
            config.name,
            config.host,
            config.port,
            api_key,
            router.connect_timeout_s,
            on_lost=self._data_lost,
        )
        self.ranks = [Rank(self, rank, router) for rank in range(config.dp_size)]
        self.calls: set[Call] = set()
        self.on_change: Callable[[], None] = lambda: None
        self.on_news: Callable[[], None] = lambda: None
        """A request has ended here, or the worker came, went or changed."""
        self.on_reading: Callable[[Rank], None] = lambda rank: None
        self.on_hello: Callable[[], None] = lambda: None
        self.on_transfer: Callable[[float, int], None] = lambda seconds, size: None
        self.judge: Callable[[str], str | None] = lambda fingerprint: None
        """Why a worker with this model's fingerprint must not serve here; None when it may."""
        self.on_death: Callable[[], None] = lambda: None
        """It went away, or hung, without a word."""
        self._prefills: dict[str, asyncio.Future[PrefillDone | None]] = {}
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
        for rank in self.ranks:
            rank.silence.tells("step_log" in hello.patches)
        self.on_hello()
        self.on_news()

    def prefill_done(self, event: PrefillDone) -> None:
        future = self._prefills.get(event.rid)
        if future is not None and not future.done():
            future.set_result(event)

    def mark_up(self) -> None:
        if not self.healthy:
            self.healthy = True
            self.on_change()
            self.on_news()

    def died(self, crashed: bool) -> None:
        """Its processes are gone, or may as well be: `crashed`: it said so itself."""
        if crashed:
            self.crashed_at = monotonic()
        else:
            self.gone_at = monotonic()
            self.on_death()

    def mark_down(self, fail: str | None = None) -> None:
        """No new requests. With `fail`, what runs here is given up as well, with that reason."""
        if self.healthy:
            self.healthy = False
            self.down_since = monotonic()
            self.pool.close_idle()
            for rank in self.ranks:
                rank.forget_load()
            self.on_change()
            self.on_news()
        for future in list(self._prefills.values()):
            if not future.done():
                future.set_result(None)
        if fail is not None:
            for call in list(self.calls):
                call.close(fail, "lost")

    def _data_lost(self) -> None:
        # Not a verdict on what else runs there: those connections tell their own story. The next
        # event from the worker brings it back at once.
        self.mark_down()


class Fleet:
    """All workers, and per role the queue of requests that wait for one of them."""

    def __init__(self, config: RouterConfig, api_key: str | None = None) -> None:
        self.workers = [Worker(worker, config, api_key) for worker in config.workers]
        self.worker_key = api_key
        self.lanes = Lanes()
        self.deaths = Deaths()
        self.poisoned: Counter[str] = Counter()
        """By worker: its deaths for which a request was convicted (`toolkit.router.poison`)."""
        self._queues: dict[str, Turnstile] = {w.role: Turnstile() for w in config.workers}
        self._suspects = Turnstile()
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

    def _noted(self) -> None:
        self.deaths.note(monotonic())

    def _note_roles(self) -> None:
        for role in self._queues:
            if self.any_healthy(role):
                self._gone_at.pop(role, None)
            else:
                self._gone_at.setdefault(role, monotonic())

    def _changed(self) -> None:
        self._note_roles()
        self.on_change()
        for queue in (*self._queues.values(), self._suspects):
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

    def queue(self, role: str, suspect: bool = False) -> Turnstile:
        """Where requests wait for a worker of the role. Suspects (`toolkit.router.poison`) wait
        apart, as a worker takes one of them at a time: they must hold up nobody else."""
        return self._suspects if suspect else self._queues[role]

    def gone_at(self, role: str) -> float | None:
        """When the role's last healthy worker went; None while there is one."""
        return self._gone_at.get(role)

    def named(self, name: str) -> Worker:
        return next(worker for worker in self.workers if worker.name == name)

    def leave_lane(self, suspect: object) -> None:
        """The suspect has proven itself, or is gone: another one may have its worker."""
        if self.lanes.leave(suspect):
            self._suspects.wake_all()

    def side(self, role: str) -> list[Rank]:
        return self._sides[role]

    def any_healthy(self, role: str) -> bool:
        return any(rank.worker.healthy for rank in self._sides[role])

    def vocabulary(self) -> int:
        """Token ids that every worker knows, as far as they say; 0 when none does."""
        sizes = [worker.hello.vocab_size for worker in self.workers]
        return min((size for size in sizes if size), default=0)

    def ready(self) -> bool:
        """At least one healthy worker of each role."""
        roles = {worker.config.role for worker in self.workers}
        return roles == {worker.config.role for worker in self.workers if worker.healthy}
