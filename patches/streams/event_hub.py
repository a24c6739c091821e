"""Fans a worker's events out to its listeners, from a thread of its own.

A worker's HTTP loop is held up now and then: by a prompt of megabytes that it tokenises, by a
detokenizer that it waits for. Its schedulers compute all the while, so the worker must not look
dead. Loads and signs of life are therefore written by a thread, and each says how long the loop has
been held up; only what comes from a scheduler over the loop (`prefill_done`, sums of steps) waits
for it. What holds Python's own lock (a garbage collection, one call of a C library that does not
let go of it) holds up the thread as well.
"""

import os
import select
import threading
from collections.abc import Callable, Iterable
from time import monotonic

from patches.streams.outlet import Outlet
from patches.streams.pulse import Pulse
from toolkit.contract.events import (
    Down,
    Event,
    Heartbeat,
    LoadReading,
    Ping,
    Routers,
    encode,
)
from toolkit.contract.heartbeat import Beat
from toolkit.contract.notices import Notice, Posted
from toolkit.limited_logs import limited_logger

log = limited_logger("toolkit.events")

LOAD_INTERVAL_S = 0.02
IDLE_LOAD_INTERVAL_S = 0.25
STILL_S = 2.0
"""A busy worker says so often, too, that a rank's load has not changed, if the rank lives: the
router must be able to tell a rank that has lost a request from one that is stuck in a step."""
HEARTBEAT_S = 0.5
"""Between two heartbeats of each rank, changed or not: a count that stands still says something,
too."""
PING_AFTER_S = 1.0
HELD_PING_S = 0.5
"""Between two pings while the loop is held up: the router must hear of that before `silent_s`."""
MOST_ROUTERS = 256
"""Connections of routers that count; who comes after that hears everything, and is not counted."""
NOTICES_WAIT_MAX = 4 * 2**20
"""Bytes that may wait for a router when it is told a notice: one that does not read is told none,
and is not cut off for what others say."""
PAUSE_S = 1.0
"""After something unexpected in the thread."""


class EventHub:
    """`busy`, `loads` and `beats` are asked by the hub's thread: whether the worker has requests,
    each rank's newest reading with the time at which it was taken, and its heartbeat."""

    def __init__(
        self,
        busy: Callable[[], bool],
        loads: Callable[[], Iterable[tuple[LoadReading, float]]],
        beats: Callable[[], Iterable[tuple[int, Beat]]] = tuple,
    ) -> None:
        self._busy = busy
        self._read = loads
        self._beats = beats
        self._beat_at = float("-inf")
        self._lock = threading.Lock()
        self._outlets: set[Outlet] = set()
        self._routers: dict[Outlet, str] = {}
        """Names of those that are routers, which are told of each other."""
        self._loads: dict[int, LoadReading] = {}
        self._as_of: dict[int, float] = {}
        self._said_at = 0.0
        self._pinged_at = 0.0
        self._held_up = False
        self._down = False
        self._pulse: Pulse | None = None
        self._thread: threading.Thread | None = None
        self._wake = -1

    def publish(self, *events: Event) -> None:
        """Send these, in one write, to everybody who listens now; from any thread, and never waits.
        Also the handler of those that come from a scheduler."""
        lines = b"".join(map(encode, events))
        with self._lock:
            self._down = self._down or any(isinstance(event, Down) for event in events)
            self._said_at = monotonic()
            waits = [outlet for outlet in self._outlets if outlet.put(lines)]
        if waits:
            self.wake()

    def join(self, hello: Event, pulse: Pulse, router: str = "") -> Outlet:
        """A new listener, who is told `hello` and every rank's load first. Its outlet is still to
        be opened. `pulse`: of the loop that serves the worker's HTTP; `router`: its name; empty
        for other listeners."""
        outlet = Outlet()
        with self._lock:
            for event in (hello, *self._loads.values()):
                outlet.put(encode(event))
            self._outlets.add(outlet)
            if router and len(self._routers) < MOST_ROUTERS:
                self._routers[outlet] = router
            if self._thread is None:
                self._pulse = pulse
                if self._wake < 0:
                    self._wake = os.eventfd(0)
                self._thread = threading.Thread(
                    target=self._run, name="toolkit-events", daemon=True
                )
                self._thread.start()
        if router:
            self._tell_routers()
        return outlet

    def leave(self, outlet: Outlet) -> None:
        """The listener has gone."""
        with self._lock:
            self._outlets.discard(outlet)
            router = self._routers.pop(outlet, "")
        outlet.close()
        if router:
            self._tell_routers()

    def _tell_routers(self) -> None:
        with self._lock:
            line = encode(Routers(tuple(sorted(set(self._routers.values())))))
            waits = [outlet for outlet in self._routers if outlet.put(line)]
        if waits:
            self.wake()

    @property
    def routers(self) -> frozenset[str]:
        """Names of those that listen."""
        with self._lock:
            return frozenset(self._routers.values())

    def tell(self, notice: Notice) -> Posted:
        """A router's notice to those that it is for; from any thread, and never waits."""
        line = encode(notice)
        with self._lock:
            for_them = [
                (name, outlet.offer(line, NOTICES_WAIT_MAX))
                for outlet, name in self._routers.items()
                if name == notice.to or (not notice.to and name != notice.sender)
            ]
        self.wake()
        told = {name for name, taken in for_them if taken}
        return Posted(tuple(sorted(told)), sum(not taken for _, taken in for_them))

    def wake(self) -> None:
        """Something waits in an outlet for its socket."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._outlets:
                    self._thread = None
                    return
                down = self._down
            try:
                busy = self._busy()
                if not down:  # nothing that a worker says after that counts
                    self._tell_loads(busy)
                    self._tell_heartbeats(monotonic())
                    self._tell_life(monotonic())
                self._wait(LOAD_INTERVAL_S if busy else IDLE_LOAD_INTERVAL_S)
            except Exception:
                log.exception("the events of this worker are held up")
                threading.Event().wait(PAUSE_S)

    def _tell_loads(self, busy: bool) -> None:
        changed = []
        for load, as_of in self._read():
            rank = load.dp_rank
            still = busy and as_of - self._as_of.get(rank, as_of) >= STILL_S
            if still or self._loads.get(rank) != load:
                with self._lock:
                    self._loads[rank], self._as_of[rank] = load, as_of
                changed.append(load)
        if changed:
            self.publish(*changed)

    def _tell_heartbeats(self, now: float) -> None:
        if now - self._beat_at < HEARTBEAT_S:
            return
        self._beat_at = now
        beats = [Heartbeat(*beat, dp_rank=rank) for rank, beat in self._beats()]
        if beats:
            self.publish(*beats)

    def _tell_life(self, now: float) -> None:
        assert self._pulse is not None
        held_up = self._pulse.held_up(now)
        moves_again = self._held_up and not held_up
        held = held_up > 0 and now - self._pinged_at >= HELD_PING_S
        if held or moves_again or now - self._said_at >= PING_AFTER_S:
            self._held_up = held_up > 0
            self._pinged_at = now
            self.publish(Ping(held_up=round(held_up, 3)))

    def _wait(self, seconds: float) -> None:
        """Until then; meanwhile outlets whose sockets were full are flushed."""
        until = monotonic() + seconds
        while (left := until - monotonic()) > 0:
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            with self._lock:
                outlets = [(each.waits_on(), each) for each in self._outlets]
            waiting = {number: each for number, each in outlets if number is not None}
            for number in waiting:
                poll.register(number, select.POLLOUT)
            for number, _ in poll.poll(left * 1e3):
                if number in waiting:
                    waiting[number].flush()
                else:
                    os.eventfd_read(number)
