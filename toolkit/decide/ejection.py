"""When a worker that fails is left alone for a while, and how it gets back. Pure: times in."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

CONSECUTIVE = 3
"""Failures in a row that eject."""
WINDOW = 20
"""Outcomes that are looked at for the share of failures .."""
WINDOW_LEAST = 10
""".. once there are so many .."""
WINDOW_SHARE = 0.5
""".. and this share of them eject too."""
FIRST_S = 5.0
"""The first ejection's length; each next one lasts twice as long .."""
LONGEST_S = 120.0
""".. but no longer than this."""
FORGIVEN_S = 300.0
"""After so long without a failure the next ejection is a first one again."""
WARNED_S = 30.0
"""A worker is probed no more often because of what other routers say."""
FRESH_S = 5.0
"""A good answer is so long better evidence than what other routers say."""
FIRST_REST_S = 0.5
LONGEST_REST_S = 30.0
"""Of a worker that says that it is full (429, 503)."""


class Ejection:
    """One worker's record. `open_at(now)` says whether requests may go there.

    - A *failure* is the worker's own: it did not answer, answered 500, or fell silent, and the
      request then ran elsewhere (or it could not be connected to at all). What one request does
      to every worker is that request's (`toolkit.decide.poison`), and never counts here.
    - Ejected after CONSECUTIVE failures in a row, or when WINDOW_SHARE of the last WINDOW outcomes
      are failures: FIRST_S, twice as long each next time. Then one request at a time is let
      through (a probe): a good answer brings the worker back, a failure ejects it again.
    - *Full* (429 or 503) is no failure, but the worker rests for as long as it asked, or
      FIRST_REST_S, twice as long each time in a row; then a probe, as above.
    - *Warned*: another router has ejected it. That router's network may be what fails, so its word
      ejects nobody here. A worker that gave a good answer within FRESH_S goes on as before, but one
      failure ejects it until the next good answer; of any other one the next request is a probe, as
      above. Warnings within WARNED_S of the last one are passed over.

    How many workers of a role may be out at a time is the caller's to limit (`usable`).
    """

    def __init__(self) -> None:
        self.until = 0.0
        """Ejected or resting until then."""
        self.ejections = 0
        """In all."""
        self._level = 0
        self._rests = 0
        self._row = 0
        self._outcomes: deque[bool] = deque(maxlen=WINDOW)
        self._failed_at = -FORGIVEN_S
        self._probing = False
        self._out = False
        self._warned_at = -WARNED_S
        self._answered_at = -FRESH_S
        self._doubted = False

    @property
    def out(self) -> bool:
        """Ejected or resting, or back on probation: no answer yet since then."""
        return self._out

    def open_at(self, now: float) -> bool:
        """Whether a request may go there: not out, or a probe is due."""
        return not self._out or (now >= self.until and not self._probing)

    def posted(self, now: float) -> bool:
        """A request goes there. True when it is the probe; `answered`, `failed`, `full` or
        `unknown` must follow."""
        if not self._out or now < self.until or self._probing:
            return False
        self._probing = True
        return True

    def unknown(self) -> None:
        """The probe ended without an answer of the worker (its client went away, say)."""
        self._probing = False

    def answered(self, now: float) -> None:
        """A good answer, or the first part of one."""
        self._probing = self._out = self._doubted = False
        self._row = self._rests = 0
        self._answered_at = now
        self._outcomes.append(True)
        if now - self._failed_at > FORGIVEN_S:
            self._level = 0

    def failed(self, now: float) -> bool:
        """The worker failed a request. True when that ejects it."""
        probe, self._probing = self._probing, False
        self._row += 1
        self._outcomes.append(False)
        self._failed_at = now
        bad = self._outcomes.count(False)
        often = len(self._outcomes) >= WINDOW_LEAST and bad >= WINDOW_SHARE * len(self._outcomes)
        if self._out and not probe:
            return False  # of a request that went there before
        if not (probe or often or self._doubted or self._row >= CONSECUTIVE):
            return False
        self._shut(now, min(LONGEST_S, FIRST_S * 2.0**self._level))
        self._level = min(self._level + 1, 32)
        self.ejections += 1
        self._outcomes.clear()
        return True

    def full(self, now: float, asked_s: float = 0.0) -> None:
        """It answered 429 or 503, and asked to be left alone for `asked_s` (0: it did not say)."""
        if self._out and not self._probing and now < self.until:
            return  # of a request that went there before
        self._probing = False
        rest = max(asked_s, FIRST_REST_S * 2.0**self._rests)
        self._rests = min(self._rests + 1, 32)
        self._shut(now, min(rest, LONGEST_REST_S))

    def warned(self, now: float) -> bool:
        """Another router left it alone. Whether it is on probation here because of that."""
        if self._out or now - self._warned_at < WARNED_S:
            return False
        self._warned_at, self._doubted = now, True
        self._out = now - self._answered_at >= FRESH_S
        return self._out

    def reset(self) -> None:
        """Another process answers there now: only how often the worker was ejected stays."""
        self._out = self._probing = self._doubted = False
        self._row = self._rests = self._level = 0
        self.until = 0.0
        self._failed_at, self._warned_at = -FORGIVEN_S, -WARNED_S
        self._answered_at = -FRESH_S
        self._outcomes.clear()

    def _shut(self, now: float, seconds: float) -> None:
        self._out = True
        self.until = max(self.until, now + seconds)


def usable(
    healthy: Sequence[bool], records: Sequence[Ejection], now: float, most_share: float
) -> list[bool]:
    """Which ranks may be chosen: the healthy ones whose workers are open. At most `most_share` of
    the healthy ones are left out: beyond that those who have been out longest are chosen again,
    since the fault is then likely elsewhere, and somebody must do the work."""
    if True not in [record.out for record in records]:
        return list(healthy)
    chosen = [up and record.open_at(now) for up, record in zip(healthy, records, strict=True)]
    least = max(1, math.ceil((1.0 - most_share) * sum(healthy)))
    missing = least - sum(chosen)
    if missing > 0:
        out = [i for i, up in enumerate(healthy) if up and not chosen[i]]
        for index in sorted(out, key=lambda i: (records[i].until, i))[:missing]:
            chosen[index] = True
    return chosen
