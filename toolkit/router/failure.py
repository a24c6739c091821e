"""What a worker says instead of an answer, in a stream or in an answer of status 200."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from toolkit.router.grammars import ABORT, ERRORS, NAMED_ERROR, RESPONSES_FAILED
from toolkit.router.request import Endpoint
from toolkit.router.resume import MISSHAPEN, parse_event

if TYPE_CHECKING:
    from toolkit.router.progress import Progress

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
_WRONG = (b'{"type":"error"', *(error.removeprefix(b"data: ") for error in ERRORS))
"""With these a whole answer begins that is an error object."""
_ABORT, _FAILED = b'"abort"', b'"failed"'
_UNSAID = 'it ended with "abort" before its first token, and nobody here had asked for that'


class Failure:
    """An error of a worker: not forwarded, the dispatcher decides. A `status` that is no error's is
    500. `aborted`: the worker dropped the request and does not say why; somebody may have told it
    to, past this router."""

    def __init__(
        self,
        status: int,
        message: str,
        event: bytes,
        kind: str | None = None,
        aborted: bool = False,
    ) -> None:
        self.status = status if 400 <= status <= 599 else 500
        self.message = message
        self.event = event
        self.kind = kind
        """The worker's word for what it is."""
        self.aborted = aborted


def failure_of(event: bytes, endpoint: Endpoint) -> Failure | None:
    """The failure that an event tells; None of an ordinary one, and of a graceful abort.

    A failed response is an ordinary end of its stream (SGLang says nothing else there of a wrong
    request), but where KV did not get across.
    """
    if endpoint == "messages":
        return _of_messages(event) if event.startswith(NAMED_ERROR) else None
    if endpoint == "responses":
        return _of_responses(event) if event.startswith(RESPONSES_FAILED) else None
    if event.startswith((*ERRORS, NAMED_ERROR)):
        return _of_error(parse_event(event) or {}, event)
    if endpoint == "generate" and ABORT in event:
        return _of_abort(parse_event(event) or {}, event)
    return None


def failure_in(body: bytes, endpoint: Endpoint) -> Failure | None:
    """The failure that a whole answer of status 200 is; None of an ordinary one, and of one that
    was aborted when it had tokens."""
    wrong = body.startswith(_WRONG)
    if not wrong and (_FAILED if endpoint == "responses" else _ABORT) not in body:
        return None
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(told, dict):
        return None
    if wrong:
        return _of_messages(b"data: " + body) if endpoint == "messages" else _of_error(told, body)
    if endpoint == "generate":
        return _of_abort(told, body)
    if endpoint == "responses":
        return _of_failed(told, body) if told.get("status") == "failed" else None
    usage = told.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return _aborted(body) if _finish(told) == "abort" and not tokens else None


def abort_of(event: bytes, sent: Progress) -> Failure | None:
    """The same of an event that ends a chat or a completion as aborted, where that and what was
    `sent` before have no output. `sent` is changed."""
    told = parse_event(event)
    if told is None or _finish(told) != "abort":
        return None
    try:
        sent.see(told)
    except MISSHAPEN:
        return None
    return None if sent.has_output else _aborted(event)


def _aborted(event: bytes) -> Failure:
    """Of an answer that ended before its first token, and does not say why."""
    return Failure(500, _UNSAID, event, aborted=True)


def _finish(answer: dict[str, Any]) -> object:
    """Why the first choice of a chat or a completion ended."""
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first.get("finish_reason") if isinstance(first, dict) else None


def _of_abort(answer: dict[str, Any], data: bytes) -> Failure | None:
    """Of an answer of /generate; None of one that was aborted when it had tokens, and says no
    status: somebody wanted that."""
    meta = answer.get("meta_info")
    reason = meta.get("finish_reason") if isinstance(meta, dict) else None
    if not isinstance(meta, dict) or not isinstance(reason, dict) or reason.get("type") != "abort":
        return None
    status = reason.get("status_code")
    if status is not None:
        return Failure(status if type(status) is int else 500, str(reason.get("message")), data)
    return None if meta.get("completion_tokens") else _aborted(data)


def _of_error(answer: dict[str, Any], data: bytes) -> Failure | None:
    """Of an error object, whose fields may lie one level down."""
    error = answer.get("error", answer)
    if error is None:
        return None
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
    return _of_failed(response, data) if isinstance(response, dict) else None


def _of_failed(response: dict[str, Any], data: bytes) -> Failure | None:
    error = response.get("error")
    message = str(error.get("message")) if isinstance(error, dict) else ""
    return Failure(500, message, data) if ABOUT_KV.search(message) else None
