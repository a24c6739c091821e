"""The stream of a prefill worker: its first token for the client, and what went wrong there.

Such a stream has up to two answers (`patches.pd.first_token`): the first token with its id in front
(`: 17`), as soon as it is there, and after the KV transfer one that repeats it (`: last`), which is
nobody's business. A token that the worker holds back comes in the last one only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from toolkit.contract.comments import LAST
from toolkit.router.failure import abort_of, failure_of
from toolkit.router.grammars import FINISHED_ABORTED, grammar_of
from toolkit.router.relay import strip
from toolkit.router.request import public_id
from toolkit.router.resume import MISSHAPEN, parse_event, split_events

if TYPE_CHECKING:
    from toolkit.router.failure import Failure
    from toolkit.router.relay import Relay
    from toolkit.router.request import SubRequest

_LAST = f" {LAST}".encode()


class Early:
    """Reads a prefill's stream. `rid`: as the worker has the request; `told` is called once, when
    the first token has gone to the client."""

    __slots__ = ("_events", "_ids", "_over", "_relay", "_rename", "_sub_request", "_tail", "_told",
                 "failure")  # fmt: skip

    def __init__(
        self,
        sub_request: SubRequest,
        relay: Relay,
        rid: str,
        told: Callable[[], None] = lambda: None,
    ) -> None:
        self._sub_request = sub_request
        self._relay = relay
        self._rename = (rid.encode(), public_id(sub_request.rid))
        self._told = told
        self._tail = b""
        """Of an event that has not ended."""
        self._ids = b""
        self._events: list[bytes] = []
        """With the token's id, and no text of it yet: a role, in a chat."""
        self._over = False
        self.failure: Failure | None = None
        """What the worker says instead of an answer."""

    def feed(self, data: bytes) -> None:
        """The sink of the prefill's call."""
        whole, separator, self._tail = (self._tail + data).rpartition(b"\n\n")
        for raw in split_events(whole + separator):
            comment, event = strip(raw + b"\n\n")
            self._over = self._over or comment == _LAST
            if self.failure is None:
                self.failure = failure_of(event, self._sub_request.endpoint)
            if FINISHED_ABORTED in event and not self._over and not self._ids and not comment:
                progress = grammar_of(self._sub_request.endpoint).progress()
                self.failure = self.failure or abort_of(event, progress)
            if not self._over and self.failure is None:
                self._take(comment, event)

    def _take(self, ids: bytes, event: bytes) -> None:
        self._ids += ids
        if not self._ids:
            return  # of a worker that does not tell which token it is
        self._events.append(event.replace(*self._rename))
        if not _has_output(self._sub_request, self._events):
            return
        self._over = True
        if self._relay.early(b"".join(self._events), self._ids):
            self._told()


def _has_output(sub_request: SubRequest, events: list[bytes]) -> bool:
    progress = grammar_of(sub_request.endpoint).progress()
    for data in events:
        event = parse_event(data)
        if event is None:
            continue
        try:
            if sub_request.endpoint == "generate":
                progress.see_generate(event)
            else:
                progress.see(event)
        except MISSHAPEN:
            return False
    return progress.has_output
