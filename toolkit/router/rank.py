"""One DP rank of a worker: what a policy chooses, and the router's calls that it is to answer."""

from __future__ import annotations

from dataclasses import asdict
from time import monotonic
from typing import TYPE_CHECKING, Any

from toolkit.contract.events import Heartbeat, LoadReading, Steps
from toolkit.contract.heartbeat import DOING_BYTES, Beat, sane_seconds
from toolkit.decide import messages as m
from toolkit.decide.ledger import FIELDS
from toolkit.decide.ranks import RankState
from toolkit.decide.waiting_work import waiting_tokens
from toolkit.decide.watchdog import StuckBounds
from toolkit.router.silence import Silence
from toolkit.router.steps import StepSums
from toolkit.router.upstream import Call
from toolkit.settings.router.config import RouterConfig

if TYPE_CHECKING:
    from toolkit.router.worker import Worker


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
        self._give_up_lost(empty=not reading["running"] and not reading["waiting"], now=now)
        for listener in self.worker.channel.listeners:
            listener.load_read(self)

    def unreadable(self) -> None:
        """It published something that is no reading: there is none until the next one."""
        self.worker.channel.send(m.LoadRead(self.key, None))

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

    def forget_posted(self) -> None:
        """What it said of its requests before does not count any more."""
        self._posted = dict.fromkeys(self._posted)

    def take_steps(self, event: Steps) -> None:
        """Take a decode rank's sums. ValueError when they cannot be."""
        sums = self.steps or StepSums()
        before = sums.steps
        sums.add(event)
        self.steps = sums
        if sums.steps > before:
            self.silence.stepped(monotonic())
        self.worker.channel.send(m.Stepped(self.key, sums.steps - before))

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
            "held": self.held,
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
