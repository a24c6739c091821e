"""What the end of an upstream call says of its worker and of the request."""

from __future__ import annotations

import asyncio
import re
from time import time
from typing import TYPE_CHECKING

from toolkit.contract.headers import RETRY_AFTER
from toolkit.decide.messages import Proven
from toolkit.router.attempt.upstream_calls import UpstreamCalls
from toolkit.router.errors import ApiError, OutOfResources, Reason, Retry
from toolkit.router.failure import ABOUT_KV, failure_in
from toolkit.router.request import SubRequest
from toolkit.router.retry_after import passed
from toolkit.router.upstream_call import UpstreamCall

if TYPE_CHECKING:
    from toolkit.router.failure import Failure
    from toolkit.router.request_channel import RequestChannel

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


class Outcomes:
    """Judges the upstream calls of one attempt. Each method returns the exception that its caller
    raises."""

    __slots__ = ("_channel", "_sub_request", "_upstream_calls")

    def __init__(
        self, channel: RequestChannel, sub_request: SubRequest, upstream_calls: UpstreamCalls
    ) -> None:
        self._channel = channel
        self._sub_request = sub_request
        self._upstream_calls = upstream_calls

    def prove(self, upstream_call: UpstreamCall) -> None:
        """The worker has computed something of the request: it does not die of it, nor is it the
        request's fault what other workers did."""
        if upstream_call.reservation.proven or upstream_call.proving:
            return
        channel = self._channel
        suspicion = channel.channel.suspicion(channel.number)
        lingers = upstream_call.decode and suspicion.lingering
        if lingers and not upstream_call.call.done.done():
            upstream_call.proving = True
            self._prove_later(upstream_call, upstream_call.call.heard)
            return
        self._proven(upstream_call)

    def _prove_later(self, upstream_call: UpstreamCall, heard: int) -> None:
        """Once it has gone on for LINGER_S: what stops a scheduler in mid-answer does so again
        where it goes on, in the first steps."""

        def look() -> None:
            if upstream_call.call.done.done():
                return
            if upstream_call.call.heard > heard:
                self._proven(upstream_call)
            else:
                self._prove_later(upstream_call, heard)

        asyncio.get_running_loop().call_later(LINGER_S, look)

    def _proven(self, upstream_call: UpstreamCall) -> None:
        number, decode = self._channel.number, upstream_call.decode
        self._channel.channel.send(Proven(number, upstream_call.reservation, decode))

    def check_prefill(self, upstream_call: UpstreamCall) -> None:
        """Raise unless the prefill answered 200."""
        if not upstream_call.call.done.done() or upstream_call.call.failed:
            raise self.lost(upstream_call)
        if upstream_call.call.status != 200:
            raise self.refusal(upstream_call)
        if upstream_call.early is None:
            failure = failure_in(bytes(upstream_call.call.body), self._sub_request.endpoint)
        else:
            failure = upstream_call.early.failure
        if failure is not None:
            raise self.told(upstream_call, failure)

    def told(self, upstream_call: UpstreamCall, failure: Failure, begun: bool = False) -> Exception:
        """What a worker says in an answer of status 200: the client's own mistake, or a failure.
        `begun`: the client has had something of the answer."""
        upstream_call.failure = failure
        if failure.aborted:
            return self.retry(upstream_call, failure.message, "early")
        if failure.status < 500 and failure.status not in FULL:
            self.prove(upstream_call)
            # Before its first event a client hears of it as of any refusal (but at /generate).
            shown = begun or (self._sub_request.endpoint == "generate" and self._sub_request.stream)
            event = failure.event if shown else None
            return ApiError(failure.status, failure.message, failure.kind, event=event)
        error = ApiError(failure.status, failure.message, event=failure.event if begun else None)
        return self.failed(upstream_call, f"said {failure.status} in its answer", error)

    def lost(self, upstream_call: UpstreamCall) -> Exception:
        """The call ended without an answer."""
        error = None if upstream_call.call.done.cancelled() else upstream_call.call.done.exception()
        if isinstance(error, OutOfResources):
            return error.answer()
        reason = str(getattr(error, "what", "call was cancelled"))
        return self.retry(upstream_call, reason, getattr(error, "kind", "lost"))

    def refusal(self, upstream_call: UpstreamCall) -> Exception:
        """A worker's answer that is not a 200: the client's own mistake, or a failure."""
        status, body = (
            upstream_call.call.status,
            self._upstream_calls.named(bytes(upstream_call.call.body)),
        )
        headers = passed(upstream_call.call.headers, time())
        error = self._said(upstream_call, status, body, headers)
        inner = _INNER.search(body) if self._sub_request.endpoint == "responses" else None
        if inner is not None:
            status = int(inner[1])
            error = ApiError(status, inner[2].decode(errors="replace"), passed=headers)
        if status < 500 and status not in FULL:
            self.prove(upstream_call)
            return error
        return self.failed(upstream_call, f"answered {status}", error)

    def _come_again(self, upstream_call: UpstreamCall, error: ApiError) -> None:
        """When to, if no worker has room: what those that refused this request have said, or else
        the router's own estimate."""
        role, refusals = upstream_call.rank.worker.config.role, self._sub_request.refusals
        refusals.add(role, upstream_call.rank.worker.name, error.passed, time())
        others = {name: v for name, v in error.passed.items() if not name.startswith(RETRY_AFTER)}
        error.passed = others | refusals.headers()
        error.retry_after = FULL_FOR_S

    @staticmethod
    def _said(
        upstream_call: UpstreamCall, status: int, body: bytes, headers: dict[str, str]
    ) -> ApiError:
        """As the worker said it; a page of something in between is not an error object."""
        if body.lstrip()[:1] in (b"{", b"["):
            what, raw = f"answered {status}", body
        else:
            what, raw = (
                f"Worker {upstream_call.rank.worker.name} answered {status}, and no JSON.",
                None,
            )
        return ApiError(status, what, raw=raw, passed=headers)

    def failed(self, upstream_call: UpstreamCall, reason: str, error: ApiError) -> Retry:
        """A worker says that it failed, or that it is full."""
        if error.status in FULL:
            self._come_again(upstream_call, error)
            return self.retry(upstream_call, reason, "busy", error)
        said = error.message if error.raw is None else error.raw.decode(errors="replace")
        about_kv = ABOUT_KV.search(said) is not None
        if self._sub_request.endpoint == "messages" and SCRUBBED in said:
            about_kv = len(self._upstream_calls.all) > 1  # it may have been
        return self.retry(upstream_call, reason, "transfer" if about_kv else "answer", error)

    def retry(
        self, upstream_call: UpstreamCall, reason: str, kind: Reason, answer: ApiError | None = None
    ) -> Retry:
        """Another attempt may do better."""
        # Between prefill and decode a failure can be the other's doing: each says so when KV did
        # not get across.
        both = (
            {each.rank.worker.name for each in self._upstream_calls.all}
            if answer is not None
            else set()
        )
        if kind == "busy":
            both = set()
        return Retry(
            upstream_call.rank.worker.name,
            reason,
            answer,
            frozenset(both),
            kind=kind,
            begun=upstream_call.begun,
            proven=upstream_call.reservation.proven,
        )
