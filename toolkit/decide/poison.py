"""Whether a request is poisonous or its worker is bad. Pure: no clock, no socket.

A request that kills its worker, and is then run again on another, kills that one too. So a request
that saw two workers die, or answer 500, while they began it gets an error, and is not run again.
But when a worker dies, all requests on it see that, and all but one of them are innocent:

- Whoever has had a token from there is not suspected: it had been taken in and computed.
- The others are *suspects*. They run again one by one: a worker has one suspect at a time until
  that one has proven itself (`Probation`), so that the guilty one is alone with its next death.
- A worker that gets *stuck* is a death without a word. But what stops a scheduler may do so in
  mid-answer (a pattern that the text must grow for), so that a token proves less: whoever had
  tokens of it keeps a third of what quarantines it. With two of those it is a suspect that has
  proven itself only when it has gone on for a while beyond its first token; the third quarantines
  it.
- A worker that dies without a word may have been killed by somebody (an operator, the machine).
  Such a death counts in full only when the request saw at least half of all such deaths of late; in
  a storm of kills, two are a coincidence.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Strike = Literal["crash", "gone", "stood", "answer", "transfer"]
"""What a request saw happen to a worker that began it: it said that one of its processes died; it
went away or hung without a word; it got stuck when the request had had tokens of it; it answered
500; it answered that KV did not get across."""

LIMIT = 2.0
WEIGHTS: dict[Strike, float] = {
    "crash": 1.0,
    "answer": 1.0,
    "gone": 0.5,
    "stood": LIMIT / 3,
    "transfer": 0.5,
}
EPSILON = 1e-9
"""Three thirds may be less than one."""
LATELY_S = 60.0
MOST_DEATHS = 256
MOST_QUARANTINED = 4096
MOST_TOLD = 1024
"""Of other routers', that nothing has been seen of here."""
QUARANTINE_S = 600.0


@dataclass(slots=True)
class Record:
    """What one request has seen so far."""

    strikes: list[tuple[Strike, str]] = field(default_factory=list)
    """With the worker's name."""

    @property
    def suspect(self) -> bool:
        if not self.strikes:
            return False
        return self.lingering or any(what != "stood" for what, _ in self.strikes)

    @property
    def lingering(self) -> bool:
        """It saw workers stop in mid-answer again and again: a token is no proof of it."""
        return sum(what == "stood" for what, _ in self.strikes) >= 2

    def poisonous(self, deaths_lately: int) -> bool:
        """`deaths_lately`: how many workers of the fleet went away without a word of late."""
        gone = sum(what == "gone" for what, _ in self.strikes)
        weight = sum(WEIGHTS[what] for what, _ in self.strikes)
        if gone and 2 * gone >= deaths_lately:
            weight += gone * (1.0 - WEIGHTS["gone"])
        return weight >= LIMIT - EPSILON

    @property
    def failed_by(self) -> set[str]:
        """Names of the workers that answered 500, or died of something that they named."""
        return {worker for what, worker in self.strikes if what in ("answer", "crash")}

    @property
    def deaths(self) -> list[str]:
        """Names of the workers that died of it."""
        return [worker for what, worker in self.strikes if what in ("crash", "gone", "stood")]


class Probation:
    """A worker begins one suspect at a time."""

    def __init__(self) -> None:
        self._held: dict[str, object] = {}

    def free(self, worker: str) -> bool:
        return worker not in self._held

    def take(self, worker: str, holder: object) -> None:
        self._held.setdefault(worker, holder)

    def leave(self, holder: object) -> bool:
        """The suspect has proven itself, or is gone. True when that freed a worker."""
        if not self._held:
            return False
        mine = [worker for worker, who in self._held.items() if who is holder]
        for worker in mine:
            del self._held[worker]
        return bool(mine)


class Deaths:
    """When workers went away without a word, of late."""

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=MOST_DEATHS)

    def note(self, now: float) -> None:
        self._at.append(now)

    def lately(self, now: float) -> int:
        return sum(now - at < LATELY_S for at in self._at)


class InQuarantine(NamedTuple):
    """A request that is not to run: until when, and what it saw, as in `Record`."""

    until: float
    strikes: tuple[tuple[Strike, str], ...]


class Quarantine:
    """Digests of requests that are in quarantine, so that a client that sends one again and again
    does not cost two workers each time. Forgotten after QUARANTINE_S."""

    def __init__(self) -> None:
        self._held: OrderedDict[bytes, InQuarantine] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, digest: bytes, strikes: Sequence[tuple[Strike, str]], now: float) -> None:
        self._held[digest] = InQuarantine(now + QUARANTINE_S, tuple(strikes))
        self._held.move_to_end(digest)
        while len(self._held) > MOST_QUARANTINED:
            self._held.popitem(last=False)

    def add_told(self, digest: bytes, told: InQuarantine) -> None:
        """One of another router's: as long as there, and never in the place of one of its own."""
        if len(self._held) < MOST_QUARANTINED // 2:
            self._held.setdefault(digest, told)

    def holds(self, digest: bytes, now: float) -> bool:
        while self._held and next(iter(self._held.values())).until <= now:
            self._held.popitem(last=False)
        held = self._held.get(digest)
        return held is not None and held.until > now

    def newest(self, now: float) -> Iterator[tuple[bytes, InQuarantine]]:
        """All that are in quarantine, those first that came last."""
        return ((digest, held) for digest, held in reversed(self._held.items()) if held.until > now)


@dataclass(frozen=True)
class ToldStrikes:
    """What another router saw of a request. `at`: when this one was told; `begun`: when the
    request was put in quarantine there."""

    held: InQuarantine
    at: float
    begun: float


class ToldQuarantine:
    """Digests that other routers have in quarantine, for LATELY_S: what they saw is to be seen here
    as well by then, or it is forgotten."""

    def __init__(self) -> None:
        self._told: OrderedDict[bytes, ToldStrikes] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._told)

    def add(
        self, digest: bytes, strikes: Sequence[tuple[Strike, str]], left_s: float, now: float
    ) -> None:
        """`left_s`: until its quarantine ends there."""
        left_s = min(max(left_s, 0.0), QUARANTINE_S)
        held = InQuarantine(now + left_s, tuple(strikes))
        self._told[digest] = ToldStrikes(held, now, now - (QUARANTINE_S - left_s))
        self._told.move_to_end(digest)
        while len(self._told) > MOST_TOLD:
            self._told.popitem(last=False)

    def of(self, digest: bytes, now: float) -> ToldStrikes | None:
        while self._told and next(iter(self._told.values())).at <= now - LATELY_S:
            self._told.popitem(last=False)
        return self._told.get(digest)


class RetryBudget:
    """How much of the fleet's time goes into running requests again: never more than `burst` at
    once, and on average one rerun for every `per_success`-th request that succeeds, or a second.

    A worker that dies gives back all that ran on it, so `burst` is twice what may be in flight.
    """

    def __init__(self, burst: int, per_success: float = 0.5, per_second: float = 1.0) -> None:
        self.burst = float(burst)
        self._per_success = per_success
        self._per_second = per_second
        self._left = float(burst)
        self._at = -math.inf

    def left(self, now: float) -> float:
        if self._at > -math.inf:
            since = max(0.0, now - self._at)
            self._left = min(self.burst, self._left + since * self._per_second)
        self._at = now
        return self._left

    def succeeded(self) -> None:
        self._left = min(self.burst, self._left + self._per_success)

    def take(self, now: float) -> bool:
        """One rerun; False when there is none left."""
        if self.left(now) < 1.0:
            return False
        self._left -= 1.0
        return True
