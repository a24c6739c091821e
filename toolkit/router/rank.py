"""One DP rank of a worker: what a policy chooses."""

from __future__ import annotations

from dataclasses import asdict
from time import monotonic
from typing import TYPE_CHECKING, Any

from toolkit.contract.events import Heartbeat, LoadReading, Steps
from toolkit.contract.heartbeat import DOING_BYTES, Beat, sane_seconds
from toolkit.decide.ledger import FIELDS, Ledger
from toolkit.decide.waiting_work import waiting_tokens
from toolkit.decide.watchdog import Health, StuckBounds, Watchdog
from toolkit.policies.base import Group, Load, WorkerView, group_of
from toolkit.policies.support.stoppable import without_best_effort
from toolkit.router.silence import Silence
from toolkit.router.steps import StepSums
from toolkit.router.upstream import Call
from toolkit.settings.router.config import RouterConfig

if TYPE_CHECKING:
    from toolkit.router.reservation import Reservation
    from toolkit.router.worker import Worker


class BestEffort:
    """The best-effort requests of ours on a rank, and their prompt tokens."""

    __slots__ = ("requests", "tokens")

    def __init__(self) -> None:
        self.requests = self.tokens = 0

    def add(self, requests: int, tokens: int) -> None:
        self.requests += requests
        self.tokens += tokens


class Rank:
    """One DP rank of a worker: what a policy chooses."""

    def __init__(self, worker: Worker, dp_rank: int, config: RouterConfig) -> None:
        self.worker = worker
        self.dp_rank = dp_rank
        self.key = (worker.name, dp_rank)
        self.credit = config.parked_per_prefill
        self.held = False
        """It gets no new requests: somebody wants it empty."""
        self.completed = 0
        self.failed = 0
        self.moved_in = 0
        """Requests that came from another rank in mid-stream, and those that went to one."""
        self.moved_out = 0
        self.ledger = Ledger(complete=worker.config.role == "decode")
        self.best_effort = BestEffort()
        self.unstreamed: dict[int, Reservation] = {}
        """Requests whose tokens are counted by steps, since their answers do not stream."""
        self.steps: StepSums | None = None
        self.silence = Silence(config.first_token_timeout_s, config.idle_timeout_s)
        self._bounds = StuckBounds(config.stuck_s, config.announced_s)
        self.watchdog = Watchdog(self._bounds)
        self.health = Health.HEALTHY
        self._lost_s = config.lost_s
        self._posted: dict[Call, float | None] = {}
        """With the first reading since then after which none had a request."""

    @property
    def name(self) -> str:
        """As people write it: `decode-0`, or `decode-0:1` where the worker has DP ranks."""
        several = self.worker.config.dp_size > 1
        return f"{self.worker.name}:{self.dp_rank}" if several else self.worker.name

    @property
    def open(self) -> bool:
        """Whether new requests may go there."""
        return self.worker.healthy and not self.held and self.health is Health.HEALTHY

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

    def end(self, lease: int, tokens: int, ok: bool | None, generated: int = 0) -> None:
        """`ok`: None when it went on elsewhere."""
        self.ledger.end(lease, tokens, monotonic(), generated)
        if ok is None:
            self.moved_out += 1
        elif ok:
            self.completed += 1
        else:
            self.failed += 1
        self.worker.on_event()

    def cancel(self, lease: int, tokens: int) -> None:
        """It was not posted after all."""
        self.ledger.cancel(lease, tokens)
        self.worker.on_event()

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
        for reservation in self.unstreamed.values():
            reservation.stepped(sums.steps - before)

    def beat(self, event: Heartbeat, now: float) -> None:
        """Take its scheduler's heartbeat. A request of ours is work, wherever in the worker it is:
        a scheduler that stands still does not take it in."""
        beat = Beat(
            event.beats, event.works, event.doing[:DOING_BYTES], sane_seconds(event.expected_s)
        )
        # Ranks that share their experts wait for one that compiles, say.
        allowed_s = max(rank.watchdog.own_bound_s for rank in self.worker.ranks)
        health = self.watchdog.read(beat, bool(self.ledger.inflight), now, allowed_s)
        if health is not self.health:
            self.health = health
            self.worker.judged(self)

    def begin_anew(self) -> None:
        """Another process computes there now."""
        self.watchdog = Watchdog(self._bounds)
        self.health = Health.HEALTHY

    def forget_load(self) -> None:
        self.ledger.forget()
        self._posted = dict.fromkeys(self._posted)

    def load(self, now: float) -> Load | None:
        return self.ledger.load(now, self.worker.last_event)

    def view(self, now: float, usable: bool, urgent: bool = False) -> WorkerView:
        """As a policy is to see it. `urgent`: for a latency-sensitive request, for which what is
        best-effort gives way where the worker stops it."""
        view = WorkerView(
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
        if urgent and self.worker.config.preempts and self.best_effort.requests:
            decodes = self.worker.config.role == "decode"
            return without_best_effort(
                view, self.best_effort.requests, self.best_effort.tokens, decodes
            )
        return view

    def describe(self, now: float) -> dict[str, Any]:
        load = self.load(now)
        steps = {} if self.steps is None else {"steps": asdict(self.steps)}
        return {
            "name": self.worker.name,
            "role": self.worker.config.role,
            "url": self.worker.config.url,
            "dp_rank": self.dp_rank,
            "healthy": self.worker.healthy,
            **({} if self.worker.healthy else {"why": self.worker.why_down}),
            "held": self.held,
            "stuck": self.worker.describe_stuck(self),
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
