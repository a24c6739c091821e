"""Requests for one token: a prefill worker answers them, and no decode worker hears of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolkit.router.validate.asked import asked

if TYPE_CHECKING:
    from toolkit.router.request import SubRequest

LIMITS = {
    "chat": ("max_tokens", "max_completion_tokens"),
    "completions": ("max_tokens",),
    "generate": ("max_new_tokens",),
    "messages": ("max_tokens",),
}
"""Which fields say how many tokens a client wants at most, by endpoint. /v1/responses is not here:
SGLang takes 2 off its limit."""


def is_one(sub_request: SubRequest) -> bool:
    """Whether a prefill worker alone can answer it: all its limits are 1, and nothing that it asks
    for beside the token is decode's (`Handover.prefill_only`)."""
    body = sub_request.body
    if sub_request.capture or sub_request.resume_ids:
        return False
    given: Any = body.get("sampling_params") if sub_request.endpoint == "generate" else body
    if not isinstance(given, dict):
        return False
    limits = [
        given[name] for name in LIMITS.get(sub_request.endpoint, ()) if given.get(name) is not None
    ]
    if not limits or any(type(limit) is not int or limit != 1 for limit in limits):
        return False
    return all(row.handover.prefill_only for row in asked(sub_request.endpoint, body))
