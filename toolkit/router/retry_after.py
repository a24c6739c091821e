"""When a client is to try again, by what the workers that refused its request have said.

`Retry-After` holds seconds or a date (RFC 9110, 10.2.3). It goes on as the worker wrote it. Several
workers may refuse one request: those of one role stand in for each other, so the nearest of their
times counts; a request that needs a prefill and a decode worker needs both, so the later of the two
roles' times counts. A worker that says no time has no part in it; where none says one, the router's
own estimate is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from toolkit.contract.headers import RETRY_AFTER, RETRY_AFTER_MS, TO_CLIENT

LONGEST = 10
"""Digits of a number of seconds; more are nonsense."""


def seconds(said: str, now: float) -> float | None:
    """From `now` (seconds since 1970) to the time that a value names; None: it names none."""
    said = said.strip()
    if said.isascii() and said.isdigit():
        return float(said) if len(said) <= LONGEST else None
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def _wait(headers: Mapping[str, str], now: float) -> float | None:
    wait = seconds(headers.get(RETRY_AFTER, ""), now)
    milliseconds = seconds(headers.get(RETRY_AFTER_MS, "-"), now)
    return wait if wait is not None or milliseconds is None else milliseconds / 1000


def passed(headers: Mapping[str, str], now: float) -> dict[str, str]:
    """The headers of a worker's answer that go on to the client; no Retry-After that is none."""
    found = {name: headers[name] for name in TO_CLIENT if name in headers}
    if RETRY_AFTER in found and seconds(found[RETRY_AFTER], now) is None:
        del found[RETRY_AFTER]
    return found


class Refusals:
    """What workers said that were too full for one request; of each one the last word counts."""

    def __init__(self) -> None:
        self._said: dict[str, dict[str, tuple[float, dict[str, str]]]] = {}

    def add(self, role: str, worker: str, headers: Mapping[str, str], now: float) -> None:
        """A worker has refused, with these headers (`passed`)."""
        wait = _wait(headers, now)
        workers = self._said.setdefault(role, {})
        if wait is None:
            workers.pop(worker, None)
        else:
            workers[worker] = (now + wait, dict(headers))

    def headers(self) -> dict[str, str]:
        """Those of the worker whose time counts; empty: none has said a time."""
        nearest = [min(said.values(), key=_time) for said in self._said.values() if said]
        return max(nearest, key=_time)[1] if nearest else {}


def _time(said: tuple[float, dict[str, str]]) -> float:
    return said[0]
