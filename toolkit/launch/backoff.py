"""When to start a dead process again. Pure: times in, decision out."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.launch.deployment import Restart


def restart_delay(policy: Restart, deaths: Sequence[float], now: float) -> float | None:
    """Seconds to wait before the next start, or None to give up.

    `deaths` are the times (s, any clock) of this process's deaths including the one at `now`; only
    those in the policy's window count, so a worker that ran well for long starts afresh.
    """
    recent = sum(1 for death in deaths if now - death < policy.window)
    if recent > policy.max_restarts:
        return None
    exponent = min(max(recent - 1, 0), 32)  # 2^32 s is beyond any max_delay
    return min(policy.first_delay * 2.0**exponent, policy.max_delay)
