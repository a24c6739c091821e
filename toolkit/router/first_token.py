"""Whose first token a client gets: the prefill worker's, at once, or that of its decode worker.

The prefill's is the same token, and it is there before a decode worker is even chosen. What is sent
cannot be taken back: whatever fails after that, the request must go on from this token elsewhere
(`patches.pd.resume`), and what decode repeats must be cut exactly (`toolkit.router.resume`). So a
request for which that is not sure, or was not tried, waits for decode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolkit.router import resumable
from toolkit.router.validate.adapters import names_adapter

if TYPE_CHECKING:
    from toolkit.router.request import SubRequest

PATCH = "first_token"
"""What a prefill worker that tells first tokens lists among its patches."""

_PROCESSOR = "a logit processor has a state of its own"
_PATTERN = "only decode knows where a pattern ends"
_MORE = "it adds to the answer, and nobody has tried that"
_INPUT = "nobody has tried what is no text"
WAITS: dict[str, str] = {
    "custom_logit_processor": _PROCESSOR,
    "custom_params": _PROCESSOR,
    "max_thinking_tokens": _PROCESSOR,
    "require_reasoning": _PROCESSOR,
    "stop_regex": _PATTERN,
    "lora_path": "nobody has tried adapters",
    "return_cached_tokens_details": _MORE,
    "return_entropy": _MORE,
    "return_indexer_topk": _MORE,
    "return_input_ids_in_sglext": _MORE,
    "return_meta_info": _MORE,
    "return_output_ids_in_sglext": _MORE,
    "return_spec_tokens_details": _MORE,
    "routed_experts_start_len": _MORE,
    "input_embeds": _INPUT,
    "image_data": _INPUT,
    "video_data": _INPUT,
    "audio_data": _INPUT,
    "images_config": _INPUT,
    "video_config": _INPUT,
    "use_audio_in_video": _INPUT,
    "modalities": _INPUT,
    "task": "nobody has tried the model's own tasks",
}  # fmt: skip
"""Fields of a body, or of its sampling parameters, that a request waits for decode with."""


def why_decode(sub_request: SubRequest, *, late: bool, told: bool, tickets: bool) -> str:
    """Why the first token of this request comes from its decode worker; empty: it need not.

    `late`: the decode worker is chosen after the prefill. `told`: the prefill worker tells first
    tokens (`PATCH`). `tickets`: workers go on from tokens that others made.
    """
    body = sub_request.body
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
    if names_adapter(body.get("model")):
        return WAITS["lora_path"]
    if sub_request.capture:
        return "its experts are kept, token by token"
    if (why := resumable.why_not(sub_request)) is not None:
        return why
    if body.get("tools") and body.get("tool_choice") != "none":
        return "what a parser makes of a text of tools depends on how it comes in pieces"
    if _media(body):
        return _INPUT
    params: Any = body.get("sampling_params") if sub_request.endpoint == "generate" else None
    for where in (body, params if isinstance(params, dict) else {}):
        for name, why in WAITS.items():
            if where.get(name):
                return f"{name}: {why}"
    return ""


def _media(body: dict[str, Any]) -> bool:
    """Whether a message has a part that is no text."""
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, dict) or part.get("type") != "text":
                return True
    return False
