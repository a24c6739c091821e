"""The end of a stream whose worker was told to drop it: another worker goes on with it.

A worker ends such a stream with an output like any other, with the reason "abort". Its text is not
the undisturbed stream's: what was held back for being half a character, or half of a stop string,
is let out. So no output is shown before the next one has begun, and the last one never is: whoever
goes on says it again. Its ids count, they were generated.
"""

from __future__ import annotations

from typing import Any

from toolkit.router.failure import failure_of
from toolkit.router.request import Endpoint
from toolkit.router.resume import parse_event, split_events

_COMMENT = b": "


class Departure:
    """Reads such an end. `left`: its worker has let go of it, or failed at it. `over`: it has come
    to its own end, before the worker heard of anything."""

    __slots__ = ("_endpoint", "_held", "left", "over")

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._held: list[bytes] = []
        self.left = False
        self.over = False

    def take(self, data: bytes) -> bytes:
        """Whole events in; out comes what can be shown, comments and all."""
        if self.over:
            return data
        shown: list[bytes] = []
        for raw in split_events(data):
            if self.left:
                break
            event = raw + b"\n\n"
            if event[:2] == _COMMENT:  # the next output: what is held was not the last one
                shown += self._held
                self._held = []
            self._held.append(event)
            if not self.over:
                self._judge(event)
        if self.over:
            shown += self._held
            self._held = []
        return b"".join(shown)

    def _judge(self, event: bytes) -> None:
        if event[:2] == _COMMENT:
            event = event[event.find(b"\n") + 1 :]
        if failure_of(event, self._endpoint) is not None:
            self.left = True
            return
        how = _finish_of(event, self._endpoint)
        self.left = how == "abort"
        self.over = how not in (None, "abort")

    def ids(self) -> bytes:
        """Those of the output that is not shown, as `b" 12 34"`."""
        return b"".join(
            event[1 : event.find(b"\n")] for event in self._held if event[:2] == _COMMENT
        )


def _finish_of(data: bytes, endpoint: Endpoint) -> str | None:
    """Why a stream ends with this event; None when it does not."""
    if b'"finish_reason"' not in data:
        return None
    event = parse_event(data) or {}
    if endpoint == "generate":
        reason: Any = (event.get("meta_info") or {}).get("finish_reason")
        return str(reason.get("type")) if isinstance(reason, dict) else None
    for choice in event.get("choices") or ():
        if isinstance(choice, dict) and choice.get("finish_reason") is not None:
            return str(choice["finish_reason"])
    return None
