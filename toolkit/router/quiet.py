"""Logs that name what went wrong and where, never what a client sent.

The texts and tracebacks of exceptions quote requests (a bad chunk, a header with its key, a prompt
in a `ValueError`), and asyncio and aiohttp log both. What is logged here instead is the type of an
exception and the innermost line of code that raised it.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from time import monotonic
from typing import Any

log = logging.getLogger("toolkit.router")

PERIOD_S = 60.0


def where(error: BaseException) -> str:
    """As in `ValueError at relay.py:120 (feed)`."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return type(error).__name__
    last = frames[-1]
    name = last.filename.rpartition("/")[2]
    return f"{type(error).__name__} at {name}:{last.lineno} ({last.name})"


def on_loop_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The event loop's exception handler."""
    error = context.get("exception")
    message = str(context.get("message") or "error in the event loop")
    log.error("%s: %s", message.partition(":")[0], where(error) if error is not None else "")


class Tally:
    """What strangers can cause as often as they like: one log line a minute, with a count."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.count = 0
        self._told = 0
        self._told_at = -PERIOD_S

    def add(self) -> None:
        self.count += 1
        now = monotonic()
        if now - self._told_at >= PERIOD_S:
            log.warning("%s: %d", self._what, self.count - self._told)
            self._told, self._told_at = self.count, now
