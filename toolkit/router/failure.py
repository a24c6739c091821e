"""What a worker says in a stream instead of an answer."""

from __future__ import annotations

from toolkit.router.request import Endpoint
from toolkit.router.resume import parse_event

ERROR = b'data: {"error"'
ABORT = b'"type":"abort"'


class Failure:
    """An error event of a worker: not forwarded, the dispatcher decides."""

    def __init__(self, status: int, message: str, event: bytes, kind: str | None = None) -> None:
        self.status = status
        self.message = message
        self.event = event
        self.kind = kind
        """The worker's word for what it is."""


def failure_of(event: bytes, endpoint: Endpoint) -> Failure | None:
    """The failure that an event tells; None of an ordinary one, and of a graceful abort."""
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
        return Failure(int(status), str(error.get("message")), data)
    if not isinstance(error, dict):
        return Failure(500, str(error), data)
    code, kind = error.get("code"), error.get("type")
    return Failure(
        code if isinstance(code, int) else 500,
        str(error.get("message")),
        data,
        kind if isinstance(kind, str) else None,
    )
