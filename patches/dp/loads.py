"""What the DP controller knows of its ranks: their load snapshots, and what was sent since."""

import math
from collections import Counter, deque
from collections.abc import Sequence

from patches.sglang_types import ServerArgs, Snapshot
from toolkit.decide.waiting_work import STALE_S, waiting_tokens
from toolkit.policies.base import Load, WorkerView

LOST_S = 30.0
"""A request that a rank still has not received in a snapshot published this long after it was sent
never came there: it was sent to a life that had ended."""
MOST_SENT = 65_536
"""Remembered of what a rank that never publishes was sent."""
HUGE = 2**40
NAME = "dp"
"""All ranks are of this one server: `WorkerView.name`."""


class RankLoads:
    """Snapshots in, `WorkerView`s out. Pure: `now` is the caller's monotonic time in seconds.

    A view's load is the rank's last snapshot plus what was sent to it and is not in that snapshot:
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
        self._ranks = [_OneRank(reserve) for _ in range(ranks)]
        self._side = side
        self.counters: Counter[str] = Counter()

    def sent(self, rank: int, tokens: int, now: float) -> None:
        """A request of so many prompt tokens goes to the rank."""
        self._ranks[rank].send(max(0, tokens), now)

    def read(self, snapshots: Sequence[Snapshot], now: float) -> list[int]:
        """Take what the ranks have published; the ranks that turn out to have restarted."""
        restarted = []
        for snapshot in snapshots:
            if not 0 <= snapshot.dp_rank < len(self._ranks):
                self.counters["unknown rank"] += 1
                continue
            what = self._ranks[snapshot.dp_rank].take(snapshot, waiting(snapshot, self._side), now)
            if what:
                self.counters[what] += 1
            if what == "restart":
                restarted.append(snapshot.dp_rank)
        return restarted

    def views(self, usable: Sequence[bool], now: float) -> list[WorkerView]:
        """One for each rank, in order. `usable`: SGLang sends to it."""
        return [
            each.view(rank, healthy, now)
            for rank, (each, healthy) in enumerate(zip(self._ranks, usable, strict=True))
        ]

    def idle(self, rank: int) -> bool:
        """By its last snapshot nothing runs or waits on it, and nothing was sent since."""
        return self._ranks[rank].idle()


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


class _OneRank:
    """One rank. `ahead` is how far its count of received requests is ahead of ours."""

    def __init__(self, reserve: int) -> None:
        self._reserve = reserve
        self._load: Load | None = None
        self._good = False
        self._slots = 0
        self._stamp = 0.0
        self._odd = 0.0
        """Stamp of a snapshot that came out of order; 0 for none."""
        self._changed = -math.inf
        self._received = 0
        self._ahead = 0
        self._gone = 0
        """Requests that were sent and are in the reading, or lost."""
        self._sent: deque[tuple[float, int]] = deque()
        self._tokens = 0

    def send(self, tokens: int, now: float) -> None:
        if len(self._sent) >= MOST_SENT:
            self._forget()
        self._sent.append((now, tokens))
        self._tokens += tokens

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
        self._slots = snapshot.max_running_requests
        self._load = Load(
            running=snapshot.num_running_reqs,
            waiting=snapshot.num_waiting_reqs,
            used_tokens=snapshot.num_used_tokens,
            total_tokens=snapshot.max_total_num_tokens,
            waiting_tokens=waits,
        )
        return what

    def _count(self, received: int, now: float) -> str:
        """Forget what the rank has received by now."""
        restarted = received < self._received
        self._received = received
        if restarted:
            self._sent.clear()
            self._tokens = 0
            self._ahead = received - self._gone
            return "restart"
        while self._sent and self._gone + self._ahead < received:
            self._forget()
        if self._gone + self._ahead < received:  # it got requests that we did not send
            self._ahead = received - self._gone
        what = ""
        while self._sent and self._sent[0][0] < now - LOST_S:
            self._forget()
            self._ahead -= 1
            what = "lost"
        return what

    def _forget(self) -> None:
        _, tokens = self._sent.popleft()
        self._tokens -= tokens
        self._gone += 1

    def view(self, rank: int, healthy: bool, now: float) -> WorkerView:
        last = self._load
        requests, tokens = len(self._sent), self._tokens
        load = None
        if last is not None:
            requests += last.running + last.waiting
            tokens += last.used_tokens + last.waiting_tokens
            if self._good and now - self._changed <= STALE_S:
                load = Load(
                    running=last.running,
                    waiting=last.waiting,
                    used_tokens=last.used_tokens,
                    total_tokens=last.total_tokens,
                    waiting_tokens=last.waiting_tokens,
                    sent_requests=len(self._sent),
                    sent_tokens=self._tokens,
                )
        return WorkerView(
            name=NAME,
            dp_rank=rank,
            healthy=healthy,
            inflight=requests,
            inflight_tokens=tokens,
            load=load,
            slots=self._slots,
            reserve=self._reserve,
        )

    def idle(self) -> bool:
        last = self._load
        return last is not None and not (last.running or last.waiting or self._sent)
