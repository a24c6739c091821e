"""When to start a dead process again. Pure: times in, decision out."""

from collections.abc import Sequence
from typing import NamedTuple

from toolkit.settings.processes import Restart


class NextStart(NamedTuple):
    """`delay` s until the next start. `rests`: it has died too often to be tried soon."""

    delay: float
    rests: bool


def next_start(policy: Restart, deaths: Sequence[float], now: float, rests: int = 0) -> NextStart:
    """When a process that died at `now` is to be started again.

    `deaths` are the times (s, any clock) of those of its deaths that count, including the one at
    `now`; only those in the policy's window matter, so one that ran well for long starts afresh.
    `rests`: how often it has rested since it last ran well. One that has rested goes on resting,
    longer each time: its quick tries are used up until it has been ready for a whole window.
    """
    recent = sum(1 for death in deaths if now - death < policy.window)
    if rests or recent > policy.max_restarts:
        return NextStart(_grown(policy.rest_first, rests, policy.rest_max), True)
    return NextStart(_grown(policy.first_delay, recent - 1, policy.max_delay), False)


def without(deaths: Sequence[float], count: int) -> list[float]:
    """The deaths that count when the `count` latest ones were not the process's own fault."""
    return list(deaths[: max(0, len(deaths) - count)])


def _grown(first: float, doublings: int, limit: float) -> float:
    exponent = min(max(doublings, 0), 32)  # 2^32 s is beyond any limit
    return min(first * 2.0**exponent, limit)
