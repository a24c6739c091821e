"""Interrupt moderation for the relay: under many chunks a second, handle them in small batches.

Every chunk that arrives alone costs a wake-up of this process, and its write one of the client's;
on a busy machine those cost several times the relaying itself. Above `RATE` chunks per second the
loop therefore rests until `rest_s` after its last wake-up, so that the chunks of many streams are
read and written in one go. A chunk waits at most `rest_s`; below `RATE` nothing changes, and a
loop that is busier than that never rests.
"""

from __future__ import annotations

import asyncio
import time

RATE = 2000.0
"""Chunks per second from which resting pays: one every half millisecond."""
SMOOTHING_S = 0.1


class Pulse:
    """`beat` once per received chunk. `rest_s` 0 switches it off."""

    __slots__ = ("_armed", "_chunks", "_counted", "_rate", "_rest_s", "_woke")

    def __init__(self, rest_s: float) -> None:
        self._rest_s = rest_s
        self._chunks = 0
        self._armed = False
        self._rate = 0.0
        self._woke = self._counted = time.monotonic()

    def beat(self) -> None:
        self._chunks += 1
        if not self._armed and self._rest_s:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._rest)

    def _rest(self) -> None:
        # Runs in the iteration after the one that read: its writes are out already.
        self._armed = False
        now = time.monotonic()
        # A mean over time, rests included: a burst in a short gap is no high rate.
        passed = max(now - self._counted, 1e-6)
        weight = min(1.0, passed / SMOOTHING_S)
        self._rate += weight * (self._chunks / passed - self._rate)
        self._counted = now
        self._chunks = 0
        awake = now - self._woke
        if self._rate > RATE and awake < self._rest_s:
            time.sleep(self._rest_s - awake)  # the loop itself rests: that is the point
            now = time.monotonic()
        self._woke = now
