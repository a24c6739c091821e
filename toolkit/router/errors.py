"""Errors that a client sees, in the shapes that SGLang gives them.

The shape is that of the path, whatever went wrong there (`family`): a client reads an unknown path
below /v1 as it reads a refused request. Elsewhere it is OpenAI's own error object.

Sources (SGLang 0.5.21): `ErrorResponse` in srt/entrypoints/openai/protocol.py (flat object for a
refused OpenAI request), `_create_error_response` in srt/entrypoints/http_server.py (/generate),
its handlers of exceptions for /v1/messages (Anthropic's object) and /v1/responses (nested).
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson

from toolkit.contract.headers import RETRY_AFTER
from toolkit.decide.messages import FailureKind
from toolkit.router.places import without_places, without_places_in

MESSAGES = ("messages", "count_tokens")
"""Endpoints whose errors have Anthropic's shape."""
ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "request_timeout_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Any other is an `api_error`."""
OWN = "router"
"""The family of paths that are not SGLang's."""
_FAMILIES = (("/v1/messages", "messages"), ("/v1/responses", "responses"), ("/v1/", "chat"))


def family(path: str) -> str:
    """The endpoint whose errors have the shape that errors of `path` have."""
    return next((name for start, name in _FAMILIES if path.startswith(start)), OWN)


def _phrase(status: int) -> str:
    """A worker may say a status that no document names."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"Status {status}"


class ApiError(Exception):
    """An answer that is not a result.

    `raw` is a worker's own body and `event` its own SSE event: they are passed on untouched, and so
    are the headers in `passed`, but for the places (`toolkit.router.places`) that the texts of
    failures name.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str | None = None,
        retry_after: int | None = None,
        raw: bytes | None = None,
        event: bytes | None = None,
        final: bool = False,
        passed: Mapping[str, str] | None = None,
    ) -> None:
        if status >= 500:  # the words of a worker's failure, or of ours to reach it
            message = without_places_in(message)
            raw = None if raw is None else without_places(raw)
            event = None if event is None else without_places(event)
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind or _phrase(status)
        self.retry_after = retry_after
        self.raw = raw
        self.final = final
        """Sending it again would end the same."""
        self.passed = dict(passed or {})
        self._event = event

    def body(self, endpoint: str) -> bytes:
        """The JSON body for a request that has not begun to stream."""
        if self.raw is not None:
            return self.raw
        if endpoint == "generate":
            return orjson.dumps({"error": {"message": self.message}})
        if endpoint in MESSAGES:
            return orjson.dumps(self._of_messages())
        if endpoint in ("responses", OWN):
            return orjson.dumps({"error": self._nested()})
        return orjson.dumps(self._flat())

    def event(self, endpoint: str = "") -> bytes:
        """The SSE event for a stream that has begun; a worker's own error event goes as it is."""
        if self._event is not None:
            return self._event
        if endpoint in MESSAGES:
            return b"event: error\ndata: " + orjson.dumps(self._of_messages()) + b"\n\n"
        if endpoint == "responses":
            # OpenAI's own event, and what its client raises for.
            told = {**self._nested(), "type": "error", "error": self._nested()}
            return b"event: error\ndata: " + orjson.dumps(told) + b"\n\n"
        return b"data: " + orjson.dumps({"error": self._flat()}) + b"\n\n"

    def as_generate_event(self) -> ApiError:
        """A refusal of /generate with stream: SGLang answers 200 and an error event (0.5.21).

        Only for a worker's own `{"error": {"message": ...}}`; FastAPI's refusals stay a 400.
        """
        try:
            error = orjson.loads(self.raw or b"{}").get("error")
        except (orjson.JSONDecodeError, AttributeError):
            return self
        if not isinstance(error, dict) or self.status >= 500:
            return self
        event = {
            "message": error.get("message"),
            "type": "invalid_request_error",
            "code": self.status,
            "retryable": False,
        }
        data = b"data: " + orjson.dumps({"error": event}) + b"\n\n"
        return ApiError(self.status, self.message, event=data)

    @property
    def from_stream(self) -> bool:
        """True when a worker said it inside a stream, as SGLang does for /generate."""
        return self._event is not None

    def headers(self) -> dict[str, str]:
        headers = dict(self.passed)
        if self.retry_after is not None and RETRY_AFTER not in headers:
            headers[RETRY_AFTER] = str(self.retry_after)
        if self.final:  # the `openai` client would send it again by itself, as any 5xx
            headers["x-should-retry"] = "false"
        return headers

    def _nested(self) -> dict[str, Any]:
        return {key: value for key, value in self._flat().items() if key != "object"}

    def _of_messages(self) -> dict[str, Any]:
        kind = ANTHROPIC_TYPES.get(self.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}

    def _flat(self) -> dict[str, Any]:
        return {
            "object": "error",
            "message": self.message,
            "type": self.kind,
            "param": None,
            "code": self.status,
        }


class UpstreamError(Exception):
    """A worker did not answer: refused, reset, closed early or hung.

    `kind`: `unreached` when the request never got there, `silent` when it was given up for that.
    """

    def __init__(self, worker: str, what: str, kind: Reason = "lost") -> None:
        super().__init__(f"{worker}: {what}")
        self.what = what
        self.kind: Reason = kind


Reason = FailureKind
"""Why an attempt failed, as the decider sees it."""


class OutOfResources(UpstreamError):
    """The router itself could not open a connection (file descriptors, ports, memory): no worker
    is to blame, and another one would not help."""

    def answer(self) -> ApiError:
        return ApiError(
            503, "The router is out of connections to its workers. Try again.", retry_after=2
        )


class Retry(Exception):
    """This attempt failed on a worker's side; another one may succeed.

    `answer` is what the client gets when no attempt is left, `suspects` the workers that the next
    attempt had better do without, if it can. `begun`: when the worker got the request, and
    `proven`: whether it had given a token of it.
    """

    def __init__(
        self,
        worker: str,
        reason: str,
        answer: ApiError | None = None,
        suspects: frozenset[str] = frozenset(),
        kind: Reason = "lost",
        begun: float = 0.0,
        proven: bool = False,
    ) -> None:
        super().__init__(f"{worker}: {reason}")
        self.worker = worker
        self.suspects = suspects | {worker}
        self.kind = kind
        self.begun = begun
        self.proven = proven
        self.answer = answer or ApiError(
            502, f"Worker {worker} failed and no attempt is left: {reason}", "WorkerFailed"
        )
