"""Requests that a decode worker holds until the signature of their prompt is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    import numpy as np

Request = TypeVar("Request")

HOLD_S = 10.0
"""The longest. A held request loses nothing while its prompt runs elsewhere, which decode could not
begin without; this is for prompts of which no event comes."""
LATE, GONE = "signature too late", "nothing heard of its prefill"


class HeldRequest(NamedTuple, Generic[Request]):
    req: Request
    room: int
    source: str
    since: float


class Released(NamedTuple, Generic[Request]):
    """`signature`: unit vector [D], or in a few words why there is none."""

    req: Request
    signature: np.ndarray | str


class Holding(Generic[Request]):
    """First come, first looked at. No clock: `now` is monotonic time in seconds.

    A request leaves with the first look that finds its signature, or that its source is not heard
    any more, or that it has been here for `limit_s`; so it is held for that and one look at most.
    """

    def __init__(self, limit_s: float = HOLD_S) -> None:
        if not limit_s >= 0:
            raise ValueError(f"a request cannot be held for {limit_s:g} s: give 0 s or more")
        self._limit = limit_s
        self._held: dict[int, HeldRequest[Request]] = {}
        self._next = 0
        self.counters: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, req: Request, room: int, source: str, now: float) -> None:
        """Keep the request; `source` is where the events of its prompt come from."""
        self._held[self._next] = HeldRequest(req, room, source, now)
        self._next += 1

    def due(
        self,
        now: float,
        take: Callable[[int], np.ndarray | str | None],
        heard: Callable[[str], bool],
    ) -> list[Released[Request]]:
        """Who goes now. `take` gives a room's signature, None while there is none; `heard` says
        whether a source is still listened to."""
        out = []
        for number, held in list(self._held.items()):
            found = take(held.room)
            if found is None and not heard(held.source):
                found = GONE
            if found is None and now - held.since >= self._limit:
                found = LATE
            if found is not None:
                self.counters[found if isinstance(found, str) else "signature"] += 1
                del self._held[number]
                out.append(Released(held.req, found))
        return out

    def give_up(self, whom: Callable[[Request], bool]) -> list[Released[Request]]:
        """Those of the held who are wanted elsewhere at once: they are being aborted."""
        gone = [number for number, held in self._held.items() if whom(held.req)]
        self.counters["aborted"] += len(gone)
        return [Released(self._held.pop(number).req, "aborted") for number in gone]
