"""Which streams another worker can go on with, nothing lost, doubled or changed; which not.

A resumed stream goes on after the tokens that the client has (`patches.pd.resume`). What was
computed along with those tokens is gone with the worker, and so is its random state. A stream that
needs either ends with an error instead: the client can send the request again, a wrong answer it
could not tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.router.request import SubRequest

_BESIDE_TOKENS = (
    "logprobs",
    "top_logprobs",
    "return_logprob",
    "top_logprobs_num",
    "token_ids_logprob",
    "return_hidden_states",
    "return_routed_experts",
    "return_sampling_mask",
)


def why_not(sub_request: SubRequest) -> str | None:
    """What of this request no other worker can go on with; None when one can."""
    body = sub_request.body
    for name in _BESIDE_TOKENS:
        if body.get(name):
            return f"{name} of the first tokens are gone with it"
    where: Any = body.get("sampling_params") if sub_request.endpoint == "generate" else body
    params = where if isinstance(where, dict) else {}
    seeded = (
        params.get("sampling_seed" if sub_request.endpoint == "generate" else "seed") is not None
    )
    if seeded and params.get("temperature") != 0:
        return "the random state that its seed began is gone with it"
    return None
