"""How long clients waited when their requests were computed again elsewhere: what a direct move is
compared with where it cannot be short."""

from __future__ import annotations

from collections import deque

KEPT = 32
"""Replays of which the mean counts: prompts and loads change."""


class ReplayTimes:
    """Of this router's last replays."""

    def __init__(self) -> None:
        self._last: deque[tuple[float, int]] = deque(maxlen=KEPT)

    def add(self, stall_s: float, tokens: int) -> None:
        """One has come to its end: `tokens` of KV were computed or found, and sent."""
        self._last.append((stall_s, max(1, tokens)))

    def of(self, tokens: int) -> float:
        """What one of so many tokens would take, by the mean per token; 0 where none was seen."""
        if not self._last:
            return 0.0
        return tokens * sum(stall_s / each for stall_s, each in self._last) / len(self._last)
