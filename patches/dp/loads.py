"""What the DP controller knows of its ranks: their load snapshots, and what was sent since."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence

from patches.sglang_types import ServerArgs, Snapshot
from toolkit.decide.ledger import Ledger
from toolkit.decide.ranks import KnownRanks, RankState, WorkerSpec, WorkerState
from toolkit.decide.waiting_work import STALE_S, waiting_tokens
from toolkit.decide.watchdog import StuckBounds
from toolkit.policies.base import Load

LOST_S = 30.0
"""A request that a rank still has not received in a snapshot published this long after it was sent
never came there: it was sent to a life that had ended."""
MOST_SENT = 65_536
"""Remembered of what a rank that never publishes was sent."""
HUGE = 2**40
NAME = "dp"
"""All ranks are of this one server: `WorkerView.name`."""
ROLE = "decode"
"""Whatever the server does: all that is asked is who answers a request."""


class SnapshotRanks:
    """The ranks as decisions know them (`toolkit.decide.ranks`), with what snapshots say of them.
    Pure: `now` is the caller's monotonic time in seconds.

    A rank's load is the rank's last snapshot plus what was sent to it and is not in that snapshot:
    `sent_requests` and `sent_tokens` (prompt tokens). Which those are is counted, not timed: the
    rank says how many requests it had received, and a controller's requests arrive in the order in
    which they were sent. Clocks could not tell: a request that lay in the socket during a long
    step is not in the snapshot that was made after it.

    A rank is *silent*, its load None, so that policies count it as loaded and not as empty, when
    no snapshot ever came, when the last one cannot be true (negative, NaN, enormous, less in total
    than in use), or when nothing new has come for `STALE_S` of the controller's own clock (ranks
    on other hosts have other clocks). `inflight` is then what it last said, and what was sent.

    - out of order: a snapshot older than the last is dropped; when newer ones follow it that are
      still older than the last, the rank's clock was set back, and they count again.
    - restart: the rank has received less than before; what was on its way to its former life is
      lost. Both are in `counters`, with the impossible ones.
    - `reserve` is every view's.
    - `side` decides what waits: see `waiting_tokens`.
    """

    def __init__(self, ranks: int, side: str = "plain", reserve: int = 0) -> None:
        self.worker = WorkerState(WorkerSpec(NAME, ROLE, dp_size=ranks), StuckBounds(0.0, 0.0))
        self.worker.healthy, self.worker.reserve = True, reserve
        self.ledgers = [SnapshotLedger() for _ in range(ranks)]
        for rank, ledger in zip(self.worker.ranks, self.ledgers, strict=True):
            rank.ledger = ledger
        self.known = KnownRanks([self.worker])
        self._side = side
        self.counters: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.ledgers)

    def rank(self, dp_rank: int) -> RankState:
        return self.worker.ranks[dp_rank]

    def let(self, usable: Sequence[bool]) -> None:
        """To which ranks SGLang sends requests now."""
        for rank, ok in zip(self.worker.ranks, usable, strict=True):
            rank.held = not ok

    def read(self, snapshots: Sequence[Snapshot], now: float) -> list[int]:
        """Take what the ranks have published; the ranks that turn out to have restarted."""
        restarted = []
        for snapshot in snapshots:
            if not 0 <= snapshot.dp_rank < len(self.ledgers):
                self.counters["unknown rank"] += 1
                continue
            ledger = self.ledgers[snapshot.dp_rank]
            what = ledger.take(snapshot, waiting(snapshot, self._side), now)
            self.worker.slots = ledger.slots or self.worker.slots
            if what:
                self.counters[what] += 1
            if what == "restart":
                restarted.append(snapshot.dp_rank)
        return restarted


def waiting(snapshot: Snapshot, side: str) -> int:
    """Tokens that wait on the rank."""
    return waiting_tokens(
        side,
        snapshot.num_used_tokens,
        snapshot.num_total_tokens,
        snapshot.num_waiting_uncached_tokens,
    )


def reserved_tokens(settings: ServerArgs) -> int:
    """KV tokens that a decode worker keeps free for each request that it runs (`settings`: its
    server arguments, or SGLang's `get_disagg()`)."""
    decode = settings.disaggregation_mode == "decode"
    return int(settings.num_reserved_decode_tokens) if decode else 0


def possible(snapshot: Snapshot) -> bool:
    """Whether every number of it could be true."""
    numbers = (
        snapshot.num_running_reqs,
        snapshot.num_waiting_reqs,
        snapshot.num_waiting_uncached_tokens,
        snapshot.num_used_tokens,
        snapshot.num_total_tokens,
        snapshot.max_total_num_tokens,
        snapshot.max_running_requests,
        snapshot.received,
    )
    return (
        math.isfinite(snapshot.timestamp)
        and all(0 <= number < HUGE for number in numbers)  # so written that NaN fails too
        and snapshot.num_total_tokens >= snapshot.num_used_tokens
    )


class SnapshotLedger(Ledger):
    """One rank's last snapshot, and what was sent to it since. `ahead` is how far its count of
    received requests is ahead of ours. What ends there the next snapshot says."""

    def __init__(self) -> None:
        super().__init__(complete=False)
        self.slots = 0
        """Requests that it runs at a time at most."""
        self._last: Load | None = None
        self._good = False
        self._stamp = 0.0
        self._odd = 0.0
        """Stamp of a snapshot that came out of order; 0 for none."""
        self._changed = -math.inf
        self._received = 0
        self._ahead = 0
        self._gone_count = 0
        """Requests that were sent and are in the reading, or lost."""
        self._unread: deque[tuple[float, int]] = deque()
        self._tokens = 0

    def begin(self, tokens: int, now: float) -> int:
        if len(self._unread) >= MOST_SENT:
            self._forget()
        tokens = max(0, tokens)
        self._unread.append((now, tokens))
        self._tokens += tokens
        self._leases += 1
        self._count_held()
        return self._leases

    def end(self, lease: int, tokens: int, now: float, generated: int = 0) -> None:
        """The next snapshot says so."""

    def take(self, snapshot: Snapshot, waits: int, now: float) -> str:
        """What is wrong with it, "" when nothing is or when nothing changed."""
        stamp = snapshot.timestamp
        if stamp == 0.0:  # the slot as a starting scheduler makes it
            self._good = False
            return ""
        if stamp in (self._stamp, self._odd):
            return ""
        if not possible(snapshot):
            self._good, self._odd = False, stamp
            return "impossible"
        if stamp < self._stamp and not stamp > self._odd > 0:
            self._odd = stamp
            return "out of order"
        what = self._count(snapshot.received, now)
        self._stamp, self._odd, self._changed, self._good = stamp, 0.0, now, True
        self.slots = snapshot.max_running_requests
        self._last = Load(
            running=snapshot.num_running_reqs,
            waiting=snapshot.num_waiting_reqs,
            used_tokens=snapshot.num_used_tokens,
            total_tokens=snapshot.max_total_num_tokens,
            waiting_tokens=waits,
        )
        self._count_held()
        return what

    def load(self, now: float, heard_at: float) -> Load | None:
        last = self._last
        if last is None or not self._good or now - self._changed > STALE_S:
            return None
        return Load(
            running=last.running,
            waiting=last.waiting,
            used_tokens=last.used_tokens,
            total_tokens=last.total_tokens,
            waiting_tokens=last.waiting_tokens,
            sent_requests=len(self._unread),
            sent_tokens=self._tokens,
        )

    @property
    def idle(self) -> bool:
        """By its last snapshot nothing runs or waits on it, and nothing was sent since."""
        return self._last is not None and not self.inflight

    def _count(self, received: int, now: float) -> str:
        """Forget what the rank has received by now."""
        restarted = received < self._received
        self._received = received
        if restarted:
            self._unread.clear()
            self._tokens = 0
            self._ahead = received - self._gone_count
            return "restart"
        while self._unread and self._gone_count + self._ahead < received:
            self._forget()
        if self._gone_count + self._ahead < received:  # it got requests that we did not send
            self._ahead = received - self._gone_count
        what = ""
        while self._unread and self._unread[0][0] < now - LOST_S:
            self._forget()
            self._ahead -= 1
            what = "lost"
        return what

    def _forget(self) -> None:
        _, tokens = self._unread.popleft()
        self._tokens -= tokens
        self._gone_count += 1

    def _count_held(self) -> None:
        """All that it has, by its last snapshot, with what was sent since."""
        self.inflight, self.inflight_tokens = len(self._unread), self._tokens
        if self._last is not None:
            self.inflight += self._last.running + self._last.waiting
            self.inflight_tokens += self._last.used_tokens + self._last.waiting_tokens
