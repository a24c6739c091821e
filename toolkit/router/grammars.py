"""How the streams of each endpoint are written: what ends one, what says that it failed."""

from __future__ import annotations

from typing import NamedTuple

from toolkit.router.messages_stream import MessagesProgress
from toolkit.router.progress import Progress
from toolkit.router.request import Endpoint
from toolkit.router.responses_stream import ResponsesProgress

ERRORS = (b'data: {"error"', b'data: {"object":"error"')
ABORT = b'"type":"abort"'
FINISHED_ABORTED = b'"finish_reason":"abort"'
NAMED_ERROR = b"event: error\n"
RESPONSES_FAILED = b"event: response.failed\n"
_DONE = b"data: [DONE]\n\n"


class Grammar(NamedTuple):
    """How the streams of an endpoint are written. An event that begins with one of `fails`, or has
    one of `fails_within` anywhere, may tell a failure; with one of `ends` the last event begins.
    `progress`: what reads the answer so far."""

    fails: tuple[bytes, ...] = (*ERRORS, NAMED_ERROR)
    fails_within: tuple[bytes, ...] = (FINISHED_ABORTED,)
    ends: tuple[bytes, ...] = (_DONE,)
    progress: type[Progress] = Progress


_CHAT = Grammar()
_GRAMMARS: dict[str, Grammar] = {
    "generate": Grammar(fails_within=(ABORT,)),
    "messages": Grammar((NAMED_ERROR,), (), (b"event: message_stop\n",), MessagesProgress),
    "responses": Grammar(
        (RESPONSES_FAILED,),
        (),
        (b"event: response.completed\n", b"event: response.incomplete\n", RESPONSES_FAILED),
        ResponsesProgress,
    ),
}


def grammar_of(endpoint: Endpoint) -> Grammar:
    """That of its streams."""
    return _GRAMMARS.get(endpoint, _CHAT)


def is_over(events: bytes, ends: tuple[bytes, ...]) -> bool:
    """Whether the last of these whole events is one that ends its stream."""
    before = events.rfind(b"\n\n", 0, -2)
    return events.startswith(ends, before + 2 if before >= 0 else 0)


def closing(endpoint: str) -> bytes:
    """What follows an error in a stream that has begun."""
    if endpoint == "messages":
        return b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    return b"" if endpoint == "responses" else _DONE
