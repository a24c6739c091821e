"""The door's 400s, in the shapes of SGLang's own."""

from __future__ import annotations

from typing import Any

import orjson

from toolkit.router.errors import MESSAGES, ApiError

SHOWN = 120
"""Characters of a wrong value that a message quotes."""
QUOTED_MESSAGES = 500
"""Characters of such a list at /v1/messages."""
QUOTED = 4000
"""Characters of a value that a list of FastAPI's errors quotes."""


def refusal(message: str) -> ApiError:
    """What a handler of SGLang answers to a ValueError; /generate only shows the message."""
    return ApiError(400, printable(message), "BadRequestError")


def invalid(errors: list[Any], endpoint: str) -> ApiError:
    """FastAPI's list of errors, in what SGLang makes of it for this endpoint.

    A plain server puts its own paths and lines in front of the list; those are left out. Values
    are quoted as there, except long ones. Of /v1/messages it tells places and messages only.
    """
    if endpoint in MESSAGES:
        return ApiError(400, printable(_digest(errors)))
    details = [dict(error) for error in errors]
    for detail in details:
        if len(shown(detail.get("input"), QUOTED + 1)) > QUOTED:
            detail["input"] = "..."
    message = printable(str(details))
    if endpoint == "responses":
        return ApiError(400, message)
    flat = {
        "object": "error",
        "message": message,
        "type": "Bad Request",
        "param": None,
        "code": 400,
    }
    return ApiError(400, message, raw=orjson.dumps(flat))


def _digest(errors: list[Any]) -> str:
    """`_anthropic_validation_message` of srt/entrypoints/http_server.py."""
    parts = []
    for error in errors:
        where = ".".join(str(part) for part in error["loc"] if part != "body")
        parts.append(f"{where}: {error['msg']}" if where else error["msg"])
    text = "; ".join(parts)
    return text if len(text) <= QUOTED_MESSAGES else text[:QUOTED_MESSAGES] + "…"


def shown(value: Any, most: int = SHOWN) -> str:
    """A value as a message quotes it."""
    if isinstance(value, str) and len(value) > most:
        value = value[:most]  # not all of a long text is written out for its beginning
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply; an integer of too many digits
        text = f"a {type(value).__name__}"
    return printable(text if len(text) <= most else text[:most] + "...")


def printable(text: str) -> str:
    """Without lone surrogates, which are valid in JSON and not in UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
