"""Whether an event loop still comes round, asked from another thread."""

import asyncio

ASK_S = 0.25
"""Between two questions, in seconds: each wakes the loop."""


class Pulse:
    """How long a loop has been held up. Used by one thread, which is not the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked_at = float("-inf")
        self._came = True

    def held_up(self, now: float) -> float:
        """Seconds for which it has not come round to a question; 0 for less than ASK_S."""
        if not self._came:
            waited = now - self._asked_at
            return waited if waited >= ASK_S else 0.0
        if now - self._asked_at >= ASK_S:
            self._asked_at, self._came = now, False
            try:
                self._loop.call_soon_threadsafe(self._come)
            except RuntimeError:  # the loop is closed: it will not come again
                pass
        return 0.0

    def _come(self) -> None:
        self._came = True
