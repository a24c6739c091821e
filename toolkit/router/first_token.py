"""Whose first token a client gets: the prefill worker's, at once, or that of its decode worker.

The prefill's is the same token, and it is there before a decode worker is even chosen. What is sent
cannot be taken back: whatever fails after that, the request must go on from this token elsewhere
(`patches.pd.resume`), and what decode repeats must be cut exactly (`toolkit.router.resume`). So a
request for which that is not sure, or was not tried, waits for decode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.router.validate.asked import asked

if TYPE_CHECKING:
    from toolkit.router.request import SubRequest

PATCH = "first_token"
"""What a prefill worker that tells first tokens lists among its patches."""


def why_decode(sub_request: SubRequest, *, late: bool, told: bool, tickets: bool) -> str:
    """Why the first token of this request comes from its decode worker; empty: it need not.

    `late`: the decode worker is chosen after the prefill. `told`: the prefill worker tells first
    tokens (`PATCH`). `tickets`: workers go on from tokens that others made.
    """
    if not sub_request.stream:
        return "it does not stream"
    if not late:
        return "the decode worker is chosen before the prefill"
    if not told:
        return "the prefill worker does not tell it"
    if not tickets:
        return "no worker could go on from it"
    if sub_request.resume_ids:
        return "the client has a first token"
    if sub_request.endpoint == "responses":
        return "every event has a number and the random name of its item"
    if sub_request.capture:
        return "its experts are kept, token by token"
    for row in asked(sub_request.endpoint, sub_request.body):
        if not row.handover.first_token:
            return f"{row.name}: {row.handover.why}"
    return ""
