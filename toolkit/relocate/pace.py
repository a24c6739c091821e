"""How much one order may move, by what the orders before it took. Pure."""

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median_low

from toolkit.placement.online import Cost

MOST, LEAST = 256, 2
RATE, ORDER_S = 1e9, 0.01
"""Bytes a second and seconds of an order, until some have been seen: a slow link."""
MARGIN = 0.75
"""Of the allowed time: orders of one size do not all take the same."""
LAST = 9
"""Orders whose median counts: one during which the machine was suspended or a clock jumped must
not make moves look too dear to be tried ever again."""


def _last() -> deque[float]:
    return deque(maxlen=LAST)


@dataclass
class Pace:
    """stall_s: the longest that a step may be held up; 0: a step's own time or one expert's
    transfer, whichever is longer."""

    stall_s: float = 0.0
    _slot_s: deque[float] = field(default_factory=_last)
    _rate: deque[float] = field(default_factory=_last)
    _order_s: deque[float] = field(default_factory=_last)

    def took(self, seconds: float, written: int, sent_bytes: int) -> None:
        """An order of so many slots held its server up for so long. What no clock can say is
        left out."""
        if not (0 <= seconds < math.inf):
            return
        self._slot_s.append(seconds / written)
        if sent_bytes:
            self._rate.append(sent_bytes / max(seconds, 1e-6))
        else:
            self._order_s.append(seconds)

    def slots(self, step_s: float) -> int:
        """Slots that the next order may write: the least at first."""
        slot_s = _middle(self._slot_s)
        if not slot_s:
            return LEAST
        return int(min(max(LEAST, MARGIN * (self.stall_s or step_s) / slot_s), MOST))

    def cost(self, expert_bytes: float, step_s: float) -> Cost:
        """What moving takes by now."""
        rate, order_s = _middle(self._rate) or RATE, _middle(self._order_s) or ORDER_S
        return Cost(expert_bytes, rate, order_s, self.slots(step_s))


def _middle(seen: deque[float]) -> float:
    """The lower median; 0 where nothing was seen."""
    return median_low(seen) if seen else 0.0
