"""Which streams another worker can go on with, nothing lost, doubled or changed; which not.

A resumed stream goes on after the tokens that the client has (`patches.pd.resume`). What was
computed along with those tokens is gone with the worker, and so is its random state. A stream that
needs either ends with an error instead: the client can send the request again, a wrong answer it
could not tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.router.validate.asked import asked

if TYPE_CHECKING:
    from toolkit.router.request import SubRequest


def why_not(sub_request: SubRequest) -> str | None:
    """What of this request no other worker can go on with (`Handover.resumable`); None when one
    can."""
    for row in asked(sub_request.endpoint, sub_request.body):
        if not row.handover.resumable:
            return f"{row.name}: {row.handover.why}"
    return None
