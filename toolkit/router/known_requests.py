"""What became of a request: those in flight and the last ones that ended, for `GET /requests/ID`.

Nothing of a prompt or an answer is kept, only names and times.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from toolkit.router.track import Track

if TYPE_CHECKING:
    from toolkit.router.request import Job

ENDED = 1000
"""Requests that are remembered after their end."""
PARTS = 8
"""Of a batch, so many parts are shown and remembered, and of the others their number."""


@dataclass(slots=True, eq=False)
class KnownRequest:
    """One request. `caller`: the name of its client's key."""

    request_id: str
    endpoint: str
    caller: str
    at: float = field(default_factory=time)
    arrived: float = field(default_factory=monotonic)
    rid: str = ""
    stream: bool = False
    request_class: str = ""
    parts: int = 0
    tracks: list[Track] = field(default_factory=list)
    status: int = 0
    ended: float = 0.0

    def parsed(self, job: Job) -> None:
        """Its body has been read."""
        self.rid, self.stream = job.rid, job.stream
        self.request_class = job.sub_requests[0].view.request_class.value
        self.parts = len(job.sub_requests)
        self.tracks = [sub_request.track for sub_request in job.sub_requests[:PARTS]]

    @property
    def state(self) -> str:
        if not self.ended:
            if not self.parts:
                return "reading"
            return "running" if any(track.tries for track in self.tracks) else "queued"
        if self.status == 499:
            return "aborted"
        return "done" if self.status < 400 else "failed"

    def describe(self, admin: bool) -> dict[str, Any]:
        """As JSON shows it: all of it to the admin, to a client no place where workers are."""
        until = self.ended or monotonic()
        return {
            "request_id": self.request_id,
            "rid": self.rid,
            "endpoint": self.endpoint,
            "key": self.caller,
            "class": self.request_class,
            "stream": self.stream,
            "state": self.state,
            "status": self.status or None,
            "came_at": round(self.at, 3),
            "seconds": round(until - self.arrived, 4),
            "workers": sorted({each.worker for track in self.tracks for each in track.tries}),
            "parts": self.parts,
            "shown": [track.describe(self.arrived, admin) for track in self.tracks],
        }


class KnownRequests:
    """Of this router since it started; with a bound on those that have ended."""

    def __init__(self, ended: int = ENDED) -> None:
        self._most = ended
        self._running: dict[int, KnownRequest] = {}
        self._ended: OrderedDict[int, KnownRequest] = OrderedDict()

    def begin(self, request_id: str, endpoint: str, caller: str) -> KnownRequest:
        """A request has come."""
        known = KnownRequest(request_id, endpoint, caller)
        self._running[id(known)] = known
        return known

    def end(self, known: KnownRequest, status: int) -> None:
        """It has been answered, or its client has gone (499)."""
        known.status, known.ended = status, monotonic()
        self._ended[id(known)] = self._running.pop(id(known))
        while len(self._ended) > self._most:
            self._ended.popitem(last=False)

    def find(self, name: str, caller: str | None) -> list[KnownRequest]:
        """Those that go by this name, their `x-request-id` or the id of their answer, the newest
        first: a client may use one name twice. `caller`: only those of this key; None: all."""
        everyone = (*self._running.values(), *self._ended.values())
        found = [
            known
            for known in everyone
            if name in (known.request_id, known.rid) and caller in (None, known.caller)
        ]
        return sorted(found, key=lambda known: known.arrived, reverse=True)
