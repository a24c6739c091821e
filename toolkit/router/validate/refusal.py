"""The 400s of request validation, in the shapes of SGLang's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from toolkit.router.errors import MESSAGES, ApiError

SHOWN = 120
"""Characters of a wrong value that a message quotes."""
QUOTED_MESSAGES = 500
"""Characters of such a list at /v1/messages."""
QUOTED = 4000
"""Characters of a value that a list of FastAPI's errors quotes."""
QUOTED_ALL = 64_000
"""Characters of all these values together: many errors may quote one object."""


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
    room = QUOTED_ALL
    for detail in details:
        size = len(shown(detail.get("input"), QUOTED + 1)) if room > 0 else QUOTED_ALL
        if size > QUOTED:
            detail["input"] = "..."
        else:
            room -= size
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
    text = ""
    for piece in _pieces(value, most):
        text += piece
        if len(text) > most:  # not all of a long value is written out for its beginning
            return printable(text[:most] + "...")
    return printable(text)


def _pieces(value: Any, most: int) -> Iterator[str]:
    """What `repr` makes of JSON, piece by piece, to any depth; of a long text its beginning."""
    stack: list[Iterator[tuple[str, Any]]] = [iter((("", value),))]
    ends = [""]
    while stack:
        following = next(stack[-1], None)
        if following is None:
            stack.pop()
            yield ends.pop()
            continue
        before, each = following
        yield before
        if type(each) is dict:
            keys = ((f"{_scalar(key, most)}: ", inner) for key, inner in each.items())
            yield "{"
            stack.append(_separated(keys))
            ends.append("}")
        elif type(each) is list:
            yield "["
            stack.append(_separated(("", inner) for inner in each))
            ends.append("]")
        else:
            yield _scalar(each, most)


def _separated(items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for index, (before, each) in enumerate(items):
        yield (f", {before}" if index else before), each


def _scalar(value: Any, most: int) -> str:
    if isinstance(value, str) and len(value) > most:
        value = value[:most]
    try:
        return repr(value)
    except (RecursionError, ValueError):  # an integer of too many digits
        return f"a {type(value).__name__}"


def printable(text: str) -> str:
    """Without lone surrogates, which are valid in JSON and not in UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
