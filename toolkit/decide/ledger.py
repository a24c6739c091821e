"""What a rank carries now: its last reading, and what of ours has come and gone since."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from toolkit.decide.waiting_work import STALE_S
from toolkit.policies.base import Load

GRACE_S = 0.03
"""A reading may have been taken before a request posted this shortly before it arrived."""
SETTLED_S = 0.5
"""A worker publishes what changed within this time, even when it had been idle."""
WINDOW_S = 1.0
"""A reading is not older than this when it comes: a decode step, and the publishing."""
MOST_EVENTS = 64
"""Of the last ones, that are looked at for a reading."""

FIELDS = ("running", "waiting", "used_tokens", "total_tokens", "waiting_tokens")


class _Event(NamedTuple):
    """A request was sent (`requests` 1) or seen to end (-1); `tokens` has the same sign."""

    at: float
    lease: int
    requests: int
    tokens: int


class Ledger:
    """A reading and this router's own requests, so that each of them counts exactly once.

    Readings are late, by a step and by the publishing, and say no time that could be compared with
    ours. So it must be found out what of ours a new one contains. Where it counts every request
    that we have there (`complete`: a decode rank, whose waiting requests include those whose KV is
    on its way), it says so itself: what we sent and saw end there is one line of events, a reading
    stands somewhere between two of them, and that is where our count was the reading's count. Of
    several such points it is the one whose tokens fit best to what was expected, then the latest.
    What was sent after that point is added to the reading, what ended after it is taken off. More
    requests than we ever had in `WINDOW_S` are other routers' and stay as they are. The count is
    never below our own.

    Elsewhere (a prefill keeps parked requests that it does not count) a reading contains what was
    sent `GRACE_S` before it came, or `SETTLED_S` ago in any case, and what ended is not taken off.
    """

    def __init__(self, complete: bool) -> None:
        self.complete = complete
        self.inflight = 0
        self.inflight_tokens = 0
        self.reading: dict[str, int] | None = None
        """As it came."""
        self.read_at = 0.0
        self._made: Load | None = None
        """The load as it was last asked for, while nothing has changed it."""
        self._made_until = 0.0
        self._before: dict[str, int] | None = None
        """The last reading of a worker that is gone."""
        self._busy_since = 0.0
        self._leases = 0
        self._former = 0
        """Up to this lease they are of a process that is gone."""
        self._events: deque[_Event] = deque()
        self._sent: dict[int, tuple[float, int]] = {}
        self._gone: dict[int, int] = {}

    def begin(self, tokens: int, now: float) -> int:
        """A request of `tokens` KV tokens goes there; the lease that `end` takes."""
        self._made = None
        if not self.inflight:
            self._busy_since = now
        self._leases += 1
        self.inflight += 1
        self.inflight_tokens += tokens
        self._sent[self._leases] = (now, tokens)
        if self.complete:
            self._note(_Event(now, self._leases, 1, tokens))
        return self._leases

    def end(self, lease: int, tokens: int, now: float, generated: int = 0) -> None:
        """It is gone, and with it what it had generated, as far as that is known."""
        self._made = None
        self.inflight -= 1
        self.inflight_tokens -= tokens
        unread = self._sent.pop(lease, None)
        if self.complete and lease > self._former:
            self._note(_Event(now, lease, -1, -tokens - generated))
            # Without new readings nothing would ever take it off the list.
            if unread is None and self.reading is not None and now - self.read_at < STALE_S:
                self._gone[lease] = tokens + generated

    def cancel(self, lease: int, tokens: int) -> None:
        """It was never sent."""
        self._made = None
        self.inflight -= 1
        self.inflight_tokens -= tokens
        self._sent.pop(lease, None)
        self._events = deque(event for event in self._events if event.lease != lease)

    def read(self, reading: dict[str, int], now: float) -> None:
        """Take a published reading, the FIELDS."""
        self._made = None
        if self.complete:
            self._place(reading, now)
        self.reading = reading
        self.read_at = now

    def unreadable(self) -> None:
        """What was published is no reading: there is none until the next one."""
        self._made = self.reading = None

    def forget(self) -> None:
        """The worker is gone; if it comes back, it has nothing of what was sent."""
        self._made = None
        self._before, self.reading = self.reading or self._before, None
        self._sent.clear()
        self._gone.clear()
        self._events.clear()

    def recall(self) -> None:
        """The worker is back, and has the same process: it publishes what changes, so that its last
        reading holds until then."""
        self._made = None
        self.reading, self._before = self.reading or self._before, None

    def renew(self) -> None:
        """Another process computes there, or it says everything anew."""
        self._before = None

    def replaced(self) -> None:
        """Another process computes there: its readings never had what was sent before, and how that
        ends takes nothing off them."""
        self.forget()
        self._former = self._leases

    def load(self, now: float, heard_at: float) -> Load | None:
        """None without a reading, or when it is too old. `heard_at`: the last sign of life of the
        worker; a rank where something of ours runs must give one of its own (what runs there
        changes the reading), or it is silent."""
        if self._made is not None and now < self._made_until:
            return self._made  # of hundreds of ranks few have changed since the last decision
        if self.reading is None:
            return None
        self._made_until = self.read_at + STALE_S
        if now - self.read_at > STALE_S:
            if now - heard_at > STALE_S:
                return None
            if self.complete and self.inflight and now - self._busy_since > STALE_S:
                return None
        if self.complete:
            self._made = self._corrected(self.reading)
            return self._made
        contained = max(self.read_at - GRACE_S, now - SETTLED_S)
        while self._sent:
            lease, (at, _) = next(iter(self._sent.items()))
            if at >= contained:
                self._made_until = min(self._made_until, at + SETTLED_S)
                break
            del self._sent[lease]
        self._made = self._with_sent(self.reading)
        return self._made

    def _corrected(self, reading: dict[str, int]) -> Load:
        if min(reading.values()) < 0:  # impossible: for the policies to see
            return self._with_sent(reading)
        running, waiting = _less(reading["running"], reading["waiting"], len(self._gone))
        running += max(0, self.inflight - running - waiting - len(self._sent))
        used, coming = reading["used_tokens"], reading["waiting_tokens"]
        if self._gone:
            used, coming = _less(used, coming, sum(self._gone.values()))
        return self._with_sent(
            {
                "running": running,
                "waiting": waiting,
                "used_tokens": used,
                "total_tokens": reading["total_tokens"],
                "waiting_tokens": coming,
            }
        )

    def _with_sent(self, reading: dict[str, int]) -> Load:
        sent = self._sent
        tokens = sum([tokens for _, tokens in sent.values()]) if sent else 0
        return Load(**reading, sent_requests=len(sent), sent_tokens=tokens)

    def _note(self, event: _Event) -> None:
        events = self._events
        events.append(event)
        while events[0].at < event.at - WINDOW_S:
            events.popleft()

    def _place(self, reading: dict[str, int], now: float) -> None:
        """Find where in the line of events the reading stands."""
        events = self._events
        while events and events[0].at < now - WINDOW_S:
            events.popleft()
        after: list[_Event] = []
        if events:
            line = list(events)[-MOST_EVENTS:]
            after = line[self._position(line, reading) :]
        if not after:
            self._sent, self._gone = {}, {}
            return
        ended = {event.lease for event in after if event.requests < 0}
        sent = {event.lease for event in after if event.requests > 0}
        self._sent = {e.lease: (e.at, e.tokens) for e in after if e.lease in sent - ended}
        self._gone = {e.lease: -e.tokens for e in after if e.lease in ended - sent}

    def _position(self, line: list[_Event], reading: dict[str, int]) -> int:
        """How many of the events it contains."""
        held = reading["running"] + reading["waiting"]
        tokens = reading["used_tokens"] + reading["waiting_tokens"]
        # Back from now: how far our count, and the expected tokens, are off at each point.
        requests_off, tokens_off = self.inflight - held, self._expected() - tokens
        nearest, best_tokens, best = abs(requests_off), abs(tokens_off), len(line)
        place = len(line)
        for _, _, requests, size in reversed(line):
            place -= 1
            requests_off -= requests
            tokens_off -= size
            off = abs(requests_off)
            if off < nearest or (off == nearest and abs(tokens_off) < best_tokens):
                nearest, best_tokens, best = off, abs(tokens_off), place
        return best

    def _expected(self) -> int:
        """KV tokens that a reading taken now would show, by the last one."""
        reading = self.reading
        if reading is None:
            return self.inflight_tokens
        held = reading["used_tokens"] + reading["waiting_tokens"]
        if self._gone and min(reading.values()) >= 0:
            held = max(0, held - sum(self._gone.values()))
        return held + sum([tokens for _, tokens in self._sent.values()])


def _less(first: int, second: int, off: int) -> tuple[int, int]:
    """The two with so much taken off, of the first as long as there is some."""
    left = max(0, off - first)
    return max(0, first - off), max(0, second - left)
