"""Watching a worker: one long-lived GET /toolkit/events, or /health where there is none.

Lines are handled inside `data_received`: a `prefill_done` resolves its waiter with no extra hop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic, time

from toolkit.contract import events
from toolkit.contract.headers import ROUTER
from toolkit.contract.notices import Notice
from toolkit.contract.paths import EVENTS
from toolkit.router.errors import OutOfResources, UpstreamError
from toolkit.router.identity import other_run
from toolkit.router.known_workers import KnownWorkers
from toolkit.router.own_name import own_name
from toolkit.router.quiet import where
from toolkit.router.retry_after import passed
from toolkit.router.time_limit import TimeLimit
from toolkit.router.upstream import Call
from toolkit.router.worker import Rank, Worker
from toolkit.settings.router.config import RouterConfig

log = logging.getLogger("toolkit.router")

BACKOFF_S = (0.05, 1.0)
TICK_S = 0.25
POLL_S = 1.0
OURS = -1
LOAD = "load"
LINE_MAX = 16 * 2**20
"""Bytes of one event; the longest are signatures, some hundred KiB."""


class Watcher:
    """Keeps `worker.healthy`, its load and its `prefill_done` waiters up to date."""

    def __init__(self, worker: Worker, known_workers: KnownWorkers, config: RouterConfig) -> None:
        self.worker = worker
        self._known_workers = known_workers
        self._config = config
        self._buffer = bytearray()
        self._call: Call | None = None
        self._hello = False
        self._stranger: str | None = None
        """Why the worker that answers there must not serve here."""
        self._answered = False
        """Something is there, and does not answer as a worker does."""
        self._held_up = 0.0
        """Seconds for which its HTTP loop has not come round, as it last said."""

    async def run(self) -> None:
        """Until cancelled."""
        backoff = BACKOFF_S[0]
        while True:
            was_up = self.worker.healthy
            reason = await self._watch_once()
            if was_up and not self.worker.healthy:
                log.warning("worker %s is down: %s", self.worker.name, reason)
            elif self._answered and reason not in (self.worker.why_down, self.worker.refused):
                # Once: a worker that answers so may do it for ever, and nobody would know why.
                name, url = self.worker.name, self.worker.config.url
                log.warning("worker %s at %s is not up: %s", name, url, reason)
            self.worker.why_down = reason
            if reason != self.worker.refused:
                self.worker.refused = ""
            backoff = (
                BACKOFF_S[0]
                if self._hello and not self.worker.refused
                else min(backoff * 2, BACKOFF_S[1])
            )
            await asyncio.sleep(backoff)

    async def _watch_once(self) -> str:
        self._buffer, self._hello, self._stranger = bytearray(), False, None
        self._answered = False
        self._held_up = 0.0
        mine = f"{ROUTER}: {own_name()}\r\n"
        call = self._call = self.worker.pool.get(EVENTS, self._feed, mine)
        try:
            status = await self._first_answer(call)
            if status == 404 and (wrong := other_run(self.worker.config, None)):
                return self._keep_out(wrong)
            if status == 404:
                self.worker.has_events = False
                call.close()
                return await self._poll_health()
            if status != 200:
                self._answered = bool(status)
                return f"{EVENTS} answered {status}" if status else _unanswered(call)
            if not self._hello:
                return f"{EVENTS} did not begin with hello"
            return await self._follow(call)
        finally:
            call.close()

    async def _first_answer(self, call: Call) -> int:
        deadline = monotonic() + self._config.connect_timeout_s + self._config.silent_s
        while not self._hello and not call.done.done() and monotonic() < deadline:
            await asyncio.wait([call.done], timeout=0.02)
        return call.status

    async def _follow(self, call: Call) -> str:
        self.worker.has_events = True
        if self._stranger is not None:
            return self._keep_out(self._stranger)
        if not await self._warm(call):
            return "not warm"
        wrong = self._known_workers.why_unfit(self.worker, self.worker.hello)
        if wrong is not None:
            return self._keep_out(wrong)
        self.worker.refused = ""
        self.worker.mark_up()
        log.info("worker %s is up", self.worker.name)
        while True:
            before = monotonic()
            await asyncio.wait([call.done], timeout=TICK_S)
            now = monotonic()
            if call.done.done():
                # Requests that run there are not given up: their own connections tell.
                if self._hello:  # or it has said why
                    self.worker.mark_dead(crashed=False)
                self.worker.mark_down()
                return "its event stream broke"
            if now - before > 2 * TICK_S:
                # We were held up ourselves; the worker's lines may still lie unread.
                continue
            silent = now - self.worker.last_event
            if silent > self._config.hung_s:
                self.worker.mark_dead(crashed=False)
                self.worker.mark_down(f"silent for {silent:.1f} s")
                return f"silent for {silent:.1f} s"
            if silent > self._config.silent_s:
                self.worker.mark_down()

    def _keep_out(self, wrong: str) -> str:
        self.worker.mark_down()
        if wrong != self.worker.refused:
            log.error("worker %s is kept out: %s", self.worker.name, wrong)
        self.worker.refused = wrong
        return wrong

    async def _warm(self, call: Call) -> bool:
        """SGLang serves HTTP before its warm-up ends; /health says 503 until then."""
        while not call.done.done():
            status, _ = await fetch(self.worker, "/health", timeout_s=3.0)
            if status not in (503, OURS):  # 200; or too busy to answer, while its events do come
                return not call.done.done() and monotonic() - self.worker.last_event < 5.0
            await asyncio.sleep(0.1)
        return False

    async def _poll_health(self) -> str:
        """A plain SGLang: ask /health; three misses in a row are a dead worker."""
        missed = 0
        while True:
            status, _ = await fetch(self.worker, "/health", timeout_s=self._config.hung_s)
            if status == OURS:
                pass  # no word on the worker
            elif status == 200:
                missed = 0
                self.worker.heard(monotonic())
                self.worker.mark_up()
            else:
                missed += 1
                self.worker.mark_down()
                if missed >= 3:
                    why = f"/health answers {status or 'nothing'}"
                    self._answered = bool(status)
                    self.worker.mark_dead(crashed=False)
                    self.worker.mark_down(why)
                    return why
            await asyncio.sleep(POLL_S)

    def _feed(self, data: bytes) -> None:
        start = len(self._buffer)
        self._buffer += data
        end = self._buffer.rfind(b"\n", start) + 1
        if not end and len(self._buffer) > LINE_MAX and self._call is not None:
            self._call.close(f"sent an event of more than {LINE_MAX >> 20} MiB")
            return
        lines = bytes(self._buffer[:end]).split(b"\n")
        del self._buffer[:end]
        now = monotonic()
        self.worker.heard(now)
        for line in lines:
            if not line.strip():
                continue
            try:
                self._read(line, now)
            except Exception as error:  # whatever it holds: the stream and its worker go on
                log.warning("worker %s sent a malformed event (%s)", self.worker.name, where(error))
        # A data connection that broke took the worker out; an event shows that it lives.
        known = self._hello and self._stranger is None and not self._is_held_up()
        if known and not self.worker.healthy and self.worker.down_since:
            self.worker.mark_up()

    def _read(self, line: bytes, now: float) -> None:
        if self._stranger is not None:
            return  # what a stranger says does not count
        try:
            event = events.decode(line)
        except events.OtherContract as error:
            if self._hello:  # it has said better before
                log.warning("worker %s sent a malformed event (hello)", self.worker.name)
                return
            hello = events.greeting(line)
            self._hello = True
            self._stranger = other_run(self.worker.config, hello.run if hello else "") or str(error)
            return
        except events.NotAnEvent as error:
            if error.kind == LOAD and 0 <= error.rank < len(self.worker.ranks):
                self.worker.ranks[error.rank].unreadable()
            log.warning("worker %s sent a malformed event (%s)", self.worker.name, error)
            return
        self._take(event, now)

    def _take(self, event: events.Event, now: float) -> None:
        match event:
            case events.LoadReading():
                self._told(
                    event.dp_rank, lambda rank: self._known_workers.read_load(rank, event, now)
                )
            case events.PrefillDone():
                self.worker.prefill_done(event)
            case events.Moving():
                self.worker.moving(event)
            case events.KvTransfer():
                for listener in self._known_workers.listeners:
                    listener.transferred(event.seconds, event.bytes)
            case events.Steps():
                self._told(event.dp_rank, lambda rank: rank.take_steps(event))
            case events.GaveWay():
                for listener in self._known_workers.listeners:
                    listener.gave_way(self.worker, event)
            case events.Heartbeat():
                self._told(event.dp_rank, lambda rank: rank.take_beat(event))
            case events.Placed():
                for listener in self._known_workers.listeners:
                    listener.placed(self.worker, event.serial)
            case events.Down():
                self._hello = False  # nothing that it still says brings it back
                self.worker.mark_dead(crashed=True)
                self.worker.mark_down(event.reason or "it says that it is going down")
            case events.Ping():
                self._pinged(event)
            case events.Routers():
                self.worker.shared_by(event.names)
            case Notice():
                for listener in self._known_workers.listeners:
                    listener.noticed(event)
            case events.Hello():
                self._hello = True
                self._greeted(event)

    def _greeted(self, hello: events.Hello) -> None:
        """Somebody says what it is."""
        worker, known_workers = self.worker, self._known_workers
        worker.answered_by(hello.boot)
        self._stranger = (
            other_run(worker.config, hello.run)
            or _unknown(hello)
            or known_workers.why_unfit(worker, hello)
        )
        if self._stranger is None:
            known_workers.greet(worker, hello)

    def _pinged(self, ping: events.Ping) -> None:
        before = self._is_held_up()
        self._held_up = ping.held_up
        if self._is_held_up():
            self.worker.mark_held_up()
            if not before:
                name, seconds = self.worker.name, ping.held_up
                log.warning("worker %s: its HTTP has been held up for %.1f s", name, seconds)

    def _is_held_up(self) -> bool:
        """Too long to send it anything new."""
        return self._held_up > self._config.silent_s

    def _told(self, number: int, take: Callable[[Rank], None]) -> None:
        """What one rank says of itself."""
        if not 0 <= number < len(self.worker.ranks):
            return
        try:
            take(self.worker.ranks[number])
        except ValueError as error:
            log.warning("worker %s sent %s", self.worker.name, error)


def _unanswered(call: Call) -> str:
    """Why a worker has answered nothing."""
    error = call.done.exception() if call.failed and not call.done.cancelled() else None
    return error.what if isinstance(error, UpstreamError) else "it answers nothing"


def _unknown(hello: events.Hello) -> str | None:
    """What must be known of a worker before it gets requests; None when it has said so. Slots that
    it does not say would be taken for free ones without end, and nobody would wait in the pool."""
    if hello.max_running_requests > 0:
        return None
    return "it does not say how many requests a rank runs at a time (max_running_requests)"


async def fetch(worker: Worker, path: str, timeout_s: float = 5.0) -> tuple[int, bytes]:
    """GET from a worker; status 0 when it did not answer in time, OURS when the router itself
    could not ask."""
    return (await answer(worker, path, timeout_s))[:2]


async def answer(
    worker: Worker, path: str, timeout_s: float = 5.0
) -> tuple[int, bytes, dict[str, str]]:
    """As `fetch`, with the headers that go on to a client."""
    call = worker.pool.get(path)
    try:
        async with TimeLimit(timeout_s):
            await call.done
    except OutOfResources:
        return OURS, b"", {}
    except (TimeoutError, UpstreamError):
        return 0, b"", {}
    finally:
        call.close()
    return call.status, bytes(call.body), passed(call.headers, time())
