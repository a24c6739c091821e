"""Logs that nobody can fill: what a client or a worker can cause at will is said a few times, then
once a second, with a count of what was left out.

A line's source is the place in the code that logs it and its first argument where that is a text
(the name of a worker, mostly). Each source has its own allowance, and each place one for all of its
sources together.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Hashable
from time import monotonic

BURST, PERIOD_S = 5, 1.0
"""Lines of one source at once, and the seconds after which it may say one more."""
PLACE_BURST, PLACE_PERIOD_S = 50, 0.2
"""The same of all sources of one place in the code."""
SOURCES = 1024
"""That are remembered; those that were silent for longest are forgotten first."""


class _Allowance:
    __slots__ = ("at", "left", "left_out")

    def __init__(self, burst: int, now: float) -> None:
        self.left = float(burst)
        self.at = now
        self.left_out = 0

    def take(self, burst: int, period_s: float, now: float) -> bool:
        self.left = min(burst, self.left + (now - self.at) / period_s)
        self.at = now
        if self.left < 1:
            self.left_out += 1
            return False
        self.left -= 1
        return True


class Limited(logging.Filter):
    """For a logger or a handler. `left_out` counts the lines that it has kept back."""

    def __init__(self) -> None:
        super().__init__()
        self.left_out = 0
        self._known: OrderedDict[Hashable, _Allowance] = OrderedDict()
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        now = monotonic()
        place = (record.pathname, record.lineno)
        first = record.args[0] if isinstance(record.args, tuple) and record.args else None
        source = (*place, first[:64]) if isinstance(first, str) else place
        with self._lock:
            mine = self._allowance((source, "source"), BURST, now)
            whole = self._allowance((place, "place"), PLACE_BURST, now)
            passed = mine.take(BURST, PERIOD_S, now)
            if passed and not whole.take(PLACE_BURST, PLACE_PERIOD_S, now):
                passed = False
                mine.left_out += 1
            if not passed:
                self.left_out += 1
                return False
            left_out, mine.left_out = mine.left_out, 0
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} more like it were not logged)"
            record.args = None
        return True

    def _allowance(self, key: Hashable, burst: int, now: float) -> _Allowance:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _Allowance(burst, now)
            if len(self._known) > SOURCES:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return found


def limit_all() -> Limited:
    """From now on, for whatever this process logs through its present handlers."""
    limited = Limited()
    for handler in logging.getLogger().handlers:
        handler.addFilter(limited)
    return limited


def limited_logger(name: str) -> logging.Logger:
    """A logger of its own that keeps to the limits, in a process whose handlers are another's."""
    log = logging.getLogger(name)
    if not any(isinstance(each, Limited) for each in log.filters):
        log.addFilter(Limited())
    return log
