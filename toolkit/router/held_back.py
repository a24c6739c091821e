"""Events of a stream that go out only once it is clear whose they are to say."""

from __future__ import annotations

from toolkit.router.resume import split_events

_COMMENT = b": "


class HeldBack:
    """Lets events through as long as they bring `left` tokens at most; holds the first that would
    bring more, and all behind it."""

    __slots__ = ("_left", "events", "size")

    def __init__(self, left: int) -> None:
        self._left = left
        self.events: list[bytes] = []
        self.size = 0
        """Bytes that it holds."""

    def take(self, data: bytes) -> bytes:
        """Whole events in, comments and all; out come those that may pass."""
        passed: list[bytes] = []
        for raw in split_events(data):
            event = raw + b"\n\n"
            if event[:2] == _COMMENT:
                self._left -= event[1 : event.find(b"\n")].count(b" ")
            if self.events or self._left < 0:
                self.events.append(event)
                self.size += len(event)
            else:
                passed.append(event)
        return b"".join(passed)
