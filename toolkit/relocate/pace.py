"""How much one order may move, by what the orders before it took. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.placement.online import Cost

MOST, LEAST = 256, 2
RATE, ORDER_S = 1e9, 0.01
"""Bytes a second and seconds of an order, until some have been seen: a slow link."""
MARGIN = 0.75
"""Of the allowed time: orders of one size do not all take the same."""
WEIGHT = 0.3
"""Of a new order in the running means."""


@dataclass
class Pace:
    """stall_s: the longest that a step may be held up; 0: a step's own time or one expert's
    transfer, whichever is longer."""

    stall_s: float = 0.0
    _slot_s: float = 0.0
    _rate: float = 0.0
    _order_s: float = 0.0

    def took(self, seconds: float, written: int, sent_bytes: int) -> None:
        """An order of so many slots held its server up for so long."""
        self._slot_s = _mean(self._slot_s, seconds / written)
        if sent_bytes:
            self._rate = _mean(self._rate, sent_bytes / max(seconds, 1e-6))
        else:
            self._order_s = _mean(self._order_s, seconds)

    def slots(self, step_s: float) -> int:
        """Slots that the next order may write: the least at first."""
        if not self._slot_s:
            return LEAST
        return int(min(max(LEAST, MARGIN * (self.stall_s or step_s) / self._slot_s), MOST))

    def cost(self, expert_bytes: float, step_s: float) -> Cost:
        """What moving takes by now."""
        return Cost(expert_bytes, self._rate or RATE, self._order_s or ORDER_S, self.slots(step_s))


def _mean(old: float, new: float) -> float:
    return new if not old else (1 - WEIGHT) * old + WEIGHT * new
