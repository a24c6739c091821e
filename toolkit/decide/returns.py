"""When a worker that is gone is expected back, and whether a request waits for that. Pure: times
in.

Times are monotonic seconds. The launcher tells how long each worker's start takes, and when one
that has died is started (POST /admin/returns); without it the router goes by how long a worker was
away the last time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

MOST_S = 86_400.0
"""No start takes longer; what says so is taken for this."""
FADE = 0.5
"""A short absence after a long one halves what is expected of the next."""
SHORT_S = 15.0
"""Whoever is back within so long is waited for, however fast its starts are. A worker that died
some times in a row rests for 1, 2, 4 and 8 s: 3 of 14 and 290 of 536 requests were refused in the
last two of these pauses, as a start on the CPU takes 3 s."""
UNKNOWN_AFTER_S = 2
"""`Retry-After` where nothing is known of a return."""


class Return(NamedTuple):
    """A worker is expected back `at`; its start usually takes `usual_s`, twice that at most."""

    at: float
    usual_s: float


class Stay(NamedTuple):
    """How long a request may wait still, 0 or less: it is refused, and to come back in
    `retry_after` s."""

    seconds: float
    retry_after: int


class Returns:
    """What is known of the workers' returns, by their names."""

    def __init__(self) -> None:
        self._usual: dict[str, float] = {}
        self._measured: dict[str, float] = {}
        self._gone_at: dict[str, float] = {}
        self._told: dict[str, float] = {}
        """When it is to be back, infinite for never; as told since it went."""

    def told(self, worker: str, usual_s: float | None, back_in_s: float | None, now: float) -> None:
        """The launcher's word. `usual_s`: what its last start took, None before the first.
        `back_in_s`: until it serves again, 0 while it does; None: it is not started again."""
        if usual_s is not None:
            self._usual[worker] = min(usual_s, MOST_S)
        self._told[worker] = now + min(back_in_s, MOST_S) if back_in_s is not None else math.inf

    def went(self, worker: str, now: float) -> None:
        """It takes no requests any more. What was told before that was about another life."""
        self._gone_at.setdefault(worker, now)
        self._told.pop(worker, None)

    def came(self, worker: str, now: float) -> None:
        """It takes requests again."""
        self._told.pop(worker, None)
        gone_at = self._gone_at.pop(worker, None)
        if gone_at is not None:
            before = self._measured.get(worker, 0.0)
            self._measured[worker] = max(now - gone_at, FADE * before)

    def of(self, worker: str) -> Return | None:
        """When it is expected back; None: it is here, not to come, or nothing is known of it."""
        gone_at = self._gone_at.get(worker)
        usual_s = self._usual.get(worker, self._measured.get(worker))
        told = self._told.get(worker)
        if gone_at is None or told == math.inf:
            return None
        if told is not None:
            return Return(told, usual_s if usual_s is not None else max(1.0, told - gone_at))
        return None if usual_s is None else Return(gone_at + usual_s, usual_s)


def first(returns: Iterable[Return | None]) -> Return | None:
    """The one that comes first."""
    known = [each for each in returns if each is not None]
    return min(known) if known else None


def stay(since: float, least_s: float, deadline: float, back: Return | None, now: float) -> Stay:
    """How long a request waits for a role that nobody serves.

    In any case for `least_s` from `since` on, when the last worker went or the request came. For a
    worker that is expected back it waits until then and for one more usual start; but not for one
    that rests for longer than a start may take (and than SHORT_S), nor for one that comes after
    the request's own `deadline`: then it is told at once when to come again.
    """
    until = since + least_s
    if back is None:
        return Stay(until - now, UNKNOWN_AFTER_S)
    soon = back.at - now <= max(least_s, 2 * back.usual_s, SHORT_S) and back.at < deadline
    if soon:
        until = max(until, min(back.at + back.usual_s, deadline))
    left_s = back.at - now if back.at > now else back.usual_s
    return Stay(until - now, max(1, math.ceil(left_s)))
