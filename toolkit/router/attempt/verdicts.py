"""What a leg's end says: of its worker, and of the request."""

from __future__ import annotations

import asyncio
import re
from time import monotonic, time
from typing import TYPE_CHECKING

from toolkit.contract.headers import RETRY_AFTER
from toolkit.router.attempt.legs import Leg, Legs
from toolkit.router.errors import ApiError, OutOfResources, Reason, Retry
from toolkit.router.failure import ABOUT_KV
from toolkit.router.request import SubRequest
from toolkit.router.retry_after import passed

if TYPE_CHECKING:
    from toolkit.router.dispatch import Dispatcher
    from toolkit.router.failure import Failure

PROBE_S = 10.0
"""A worker on probation is well again when an answer has run for so long, or to its end."""
LINGER_S = 1.0
"""Of a request in whose course workers got stuck: how long it has to go on beyond its first token
to be proven."""
FULL = frozenset({429, 503})
"""What a worker answers that has no room: another one may have."""
FULL_FOR_S = 1
"""How long a full worker is thought to be full that does not say it."""
_INNER = re.compile(rb'"message":"(5\d\d): ([^"]*)')
"""How SGLang's /v1/responses tells that its own server failed: a 400 with that in its message."""
SCRUBBED = "Internal server error"
"""What SGLang's /v1/messages says of every failure of its own."""


class Verdicts:
    """Of the legs of one attempt; what it returns is to be raised."""

    __slots__ = ("_d", "_legs", "_sub_request")

    def __init__(self, dispatcher: Dispatcher, sub_request: SubRequest, legs: Legs) -> None:
        self._d = dispatcher
        self._sub_request = sub_request
        self._legs = legs

    def prove(self, leg: Leg) -> None:
        """The worker has computed something of the request: it does not die of it, nor is it the
        request's fault what other workers did."""
        if leg.proven or leg.proving:
            return
        if leg.decode and self._sub_request.record.lingering and not leg.call.done.done():
            leg.proving = True
            self._prove_later(leg, leg.call.heard)
            return
        self._proven(leg)

    def _prove_later(self, leg: Leg, heard: int) -> None:
        """Once it has gone on for LINGER_S: what stops a scheduler in mid-answer does so again
        where it goes on, in the first steps."""

        def look() -> None:
            if leg.call.done.done():
                return
            if leg.call.heard > heard:
                self._proven(leg)
            else:
                self._prove_later(leg, heard)

        asyncio.get_running_loop().call_later(LINGER_S, look)

    def _proven(self, leg: Leg) -> None:
        leg.proven = True
        if leg.probe:
            asyncio.get_running_loop().call_later(PROBE_S, _well, leg)
        self._d.known_workers.leave_lane(self._sub_request)
        if leg.decode:
            self._d.reruns.blame(self._sub_request)

    def check_prefill(self, leg: Leg) -> None:
        """Raise unless the prefill answered 200."""
        if not leg.call.done.done() or leg.call.failed:
            raise self.lost(leg)
        if leg.call.status != 200:
            raise self.refusal(leg)
        if leg.early is not None and leg.early.failure is not None:
            raise self.told(leg, leg.early.failure)

    def told(self, leg: Leg, failure: Failure) -> Exception:
        """What a worker says in its stream: the client's own mistake, or a failure."""
        if failure.status < 500 and failure.status not in FULL:
            self.prove(leg)
            # Before its first event a client hears of it as of any refusal (but at /generate).
            event = failure.event if self._sub_request.endpoint == "generate" else None
            return ApiError(failure.status, failure.message, failure.kind, event=event)
        error = ApiError(failure.status, failure.message)
        return self.failed(leg, f"said {failure.status} in its stream", error)

    def lost(self, leg: Leg) -> Exception:
        """The call ended without an answer."""
        error = None if leg.call.done.cancelled() else leg.call.done.exception()
        if isinstance(error, OutOfResources):
            return error.answer()
        reason = str(getattr(error, "what", "call was cancelled"))
        return self.retry(leg, reason, getattr(error, "kind", "lost"))

    def refusal(self, leg: Leg) -> Exception:
        """A worker's answer that is not a 200: the client's own mistake, or a failure."""
        status, body = leg.call.status, self._legs.named(bytes(leg.call.body))
        headers = passed(leg.call.headers, time())
        error = self._said(leg, status, body, headers)
        inner = _INNER.search(body) if self._sub_request.endpoint == "responses" else None
        if inner is not None:
            status = int(inner[1])
            error = ApiError(status, inner[2].decode(errors="replace"), passed=headers)
        if status < 500 and status not in FULL:
            self.prove(leg)
            return error
        return self.failed(leg, f"answered {status}", error)

    def _come_again(self, leg: Leg, error: ApiError) -> None:
        """When to, if no worker has room: what those that refused this request have said, or else
        the router's own estimate."""
        role, refusals = leg.rank.worker.config.role, self._sub_request.refusals
        refusals.add(role, leg.rank.worker.name, error.passed, time())
        others = {name: v for name, v in error.passed.items() if not name.startswith(RETRY_AFTER)}
        error.passed = others | refusals.headers()
        error.retry_after = FULL_FOR_S

    @staticmethod
    def _said(leg: Leg, status: int, body: bytes, headers: dict[str, str]) -> ApiError:
        """As the worker said it; a page of something in between is not an error object."""
        if body.lstrip()[:1] in (b"{", b"["):
            what, raw = f"answered {status}", body
        else:
            what, raw = f"Worker {leg.rank.worker.name} answered {status}, and no JSON.", None
        return ApiError(status, what, raw=raw, passed=headers)

    def failed(self, leg: Leg, reason: str, error: ApiError) -> Retry:
        """A worker says that it failed, or that it is full."""
        if error.status in FULL:
            leg.rank.worker.record.full(monotonic())
            self._come_again(leg, error)
            return self.retry(leg, reason, "busy", error)
        said = error.message if error.raw is None else error.raw.decode(errors="replace")
        about_kv = ABOUT_KV.search(said) is not None
        if self._sub_request.endpoint == "messages" and SCRUBBED in said:
            about_kv = len(self._legs.all) > 1  # it may have been
        return self.retry(leg, reason, "transfer" if about_kv else "answer", error)

    def retry(self, leg: Leg, reason: str, kind: Reason, answer: ApiError | None = None) -> Retry:
        """Another attempt may do better."""
        # Between prefill and decode a failure can be the other's doing: each says so when KV did
        # not get across.
        both = {each.rank.worker.name for each in self._legs.all} if answer is not None else set()
        if kind == "busy":
            both = set()
        return Retry(
            leg.rank.worker.name,
            reason,
            answer,
            frozenset(both),
            kind=kind,
            begun=leg.begun,
            proven=leg.proven,
        )


def _well(leg: Leg) -> None:
    """The probe has run for a while, and still does."""
    if not leg.call.done.done():
        leg.rank.worker.record.answered(monotonic())
