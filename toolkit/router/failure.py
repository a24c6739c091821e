"""What a worker says in a stream instead of an answer."""

from __future__ import annotations

import re

from toolkit.router.grammars import ABORT, ERROR, MESSAGES_ERROR, RESPONSES_FAILED
from toolkit.router.request import Endpoint
from toolkit.router.resume import parse_event

ABOUT_KV = re.compile(r"\bKV|transfer|bootstrap", re.IGNORECASE)
"""What a worker's message has in it that says that KV did not get across."""
MESSAGES_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_timeout_error": 408,
    "rate_limit_error": 429,
    "overloaded_error": 503,
}
"""Anthropic's words for statuses; any other is 500 (SGLang's ERROR_TYPE_MAP)."""


class Failure:
    """An error event of a worker: not forwarded, the dispatcher decides. A `status` that is no
    error's is 500."""

    def __init__(self, status: int, message: str, event: bytes, kind: str | None = None) -> None:
        self.status = status if 400 <= status <= 599 else 500
        self.message = message
        self.event = event
        self.kind = kind
        """The worker's word for what it is."""


def failure_of(event: bytes, endpoint: Endpoint) -> Failure | None:
    """The failure that an event tells; None of an ordinary one, and of a graceful abort.

    A failed response is an ordinary end of its stream (SGLang says nothing else there of a wrong
    request), but where KV did not get across.
    """
    if endpoint == "messages":
        return _of_messages(event) if event.startswith(MESSAGES_ERROR) else None
    if endpoint == "responses":
        return _of_responses(event) if event.startswith(RESPONSES_FAILED) else None
    told = event.startswith(ERROR) or (endpoint == "generate" and ABORT in event)
    return _failure(event) if told else None


def _failure(data: bytes) -> Failure | None:
    """Read an error event; None for a graceful abort (no status), which is an ordinary end."""
    event = parse_event(data) or {}
    error = event.get("error")
    if error is None:
        error = (event.get("meta_info") or {}).get("finish_reason") or {}
        status = error.get("status_code")
        if status is None:
            return None
        known = status if type(status) is int else 500
        return Failure(known, str(error.get("message")), data)
    if not isinstance(error, dict):
        return Failure(500, str(error), data)
    code, kind = error.get("code"), error.get("type")
    return Failure(
        code if type(code) is int else 500,
        str(error.get("message")),
        data,
        kind if isinstance(kind, str) else None,
    )


def _of_messages(data: bytes) -> Failure:
    error = (parse_event(data) or {}).get("error")
    error = error if isinstance(error, dict) else {}
    kind = str(error.get("type"))
    return Failure(MESSAGES_STATUS.get(kind, 500), str(error.get("message")), data, kind)


def _of_responses(data: bytes) -> Failure | None:
    response = (parse_event(data) or {}).get("response")
    error = response.get("error") if isinstance(response, dict) else None
    message = str(error.get("message")) if isinstance(error, dict) else ""
    return Failure(500, message, data) if ABOUT_KV.search(message) else None
