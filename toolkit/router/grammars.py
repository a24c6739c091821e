"""How the streams of each endpoint are written: what ends one, what says that it failed."""

from __future__ import annotations

from toolkit.router.messages_stream import MessagesProgress
from toolkit.router.progress import Progress
from toolkit.router.request import Endpoint
from toolkit.router.responses_stream import ResponsesProgress

ERROR = b'data: {"error"'
ABORT = b'"type":"abort"'
MESSAGES_ERROR = b"event: error\n"
RESPONSES_FAILED = b"event: response.failed\n"
_FAILURES: dict[str, tuple[bytes, ...]] = {
    "generate": (ERROR, ABORT),
    "messages": (MESSAGES_ERROR,),
    "responses": (RESPONSES_FAILED,),
}
_DONE = b"data: [DONE]\n\n"
_ENDS: dict[str, tuple[bytes, ...]] = {
    "messages": (b"event: message_stop\n",),
    "responses": (
        b"event: response.completed\n",
        b"event: response.incomplete\n",
        RESPONSES_FAILED,
    ),
}
_PROGRESS: dict[str, type[Progress]] = {
    "messages": MessagesProgress,
    "responses": ResponsesProgress,
}


def failures(endpoint: Endpoint) -> tuple[bytes, ...]:
    """Of which an event has one that may tell a failure."""
    return _FAILURES.get(endpoint, (ERROR,))


def ends(endpoint: Endpoint) -> tuple[bytes, ...]:
    """With which the last event of a stream begins."""
    return _ENDS.get(endpoint, (_DONE,))


def is_over(events: bytes, ends: tuple[bytes, ...]) -> bool:
    """Whether the last of these whole events is one that ends its stream."""
    before = events.rfind(b"\n\n", 0, -2)
    return events.startswith(ends, before + 2 if before >= 0 else 0)


def progress_of(endpoint: Endpoint) -> Progress:
    """Nothing sent yet."""
    return _PROGRESS.get(endpoint, Progress)()


def closing(endpoint: str) -> bytes:
    """What follows an error in a stream that has begun."""
    if endpoint == "messages":
        return b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    return b"" if endpoint == "responses" else _DONE
