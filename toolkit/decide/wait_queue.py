"""A queue of requests that wait for a change: a credit, or a worker's health."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.decide.requests import RequestState

WAIT_LIMIT = 64


class WaitQueue:
    """Requests in order of arrival, best-effort ones behind all others. A place is kept over any
    number of looks: whoever finds that it still cannot go is where it was, before all who came
    later. Once `WAIT_LIMIT` others have left while the same best-effort request was the first of
    them, it is the first of all."""

    def __init__(self) -> None:
        self._places: dict[RequestState, None] = {}
        self._behind: dict[RequestState, None] = {}
        self._passed = 0

    def __len__(self) -> int:
        return len(self._places) + len(self._behind)

    def __contains__(self, request: RequestState) -> bool:
        return request in self._places or request in self._behind

    def __iter__(self) -> Iterator[RequestState]:
        yield from self._places
        yield from self._behind

    def enter(self, request: RequestState, best_effort: bool = False) -> None:
        """A place behind all others of its kind."""
        (self._behind if best_effort else self._places)[request] = None

    def would_lead(self, best_effort: bool) -> bool:
        """Whether it would be the turn of one that entered now."""
        if self._places or (best_effort and self._behind):
            return False
        return not self._behind or self._passed < WAIT_LIMIT

    @property
    def head(self) -> RequestState | None:
        """Whose turn it is."""
        ahead, behind = next(iter(self._places), None), next(iter(self._behind), None)
        if ahead is None or (behind is not None and self._passed >= WAIT_LIMIT):
            return behind
        return ahead

    def leave(self, request: RequestState) -> None:
        """It does not wait any more."""
        if request in self._behind:
            if next(iter(self._behind)) is request:
                self._passed = 0
            del self._behind[request]
            return
        del self._places[request]
        self.overtaken()

    def overtaken(self) -> None:
        """Some other one than a best-effort request goes, that waited here or did not have to."""
        self._passed = self._passed + 1 if self._behind else 0
