"""What the router adds to a request, at the endpoints whose request class has no place for it.

Under prefill and decode apart a request needs a room where its two workers meet
(`bootstrap_room` and the like), an id that the router knows, and sometimes a ticket in
`custom_params`. SGLang's `ChatCompletionRequest` has fields for all of them.
`AnthropicMessagesRequest` (/v1/messages) has none, so that every message was refused for want of a
room; `ResponsesRequest` (/v1/responses) has all but `custom_params`. Both endpoints end in
`TokenizerManager.generate_request`, with the HTTP request beside the one that they made: there the
fields are taken from its body, which FastAPI has parsed and keeps.

Whoever may post to a worker may set them, as at /v1/chat/completions; the router lets no client
(`toolkit/router/validate`).
"""

from collections.abc import AsyncIterator

from patches.base import Hook, Patch, Process
from patches.layers import Original
from patches.sglang_types import Asked, HttpRequest, TokenizerManager

PATHS = frozenset({"/v1/messages", "/v1/responses"})
NAMES = (
    "rid", "bootstrap_host", "bootstrap_port", "bootstrap_room", "routed_dp_rank",
    "disagg_prefill_dp_rank",
)  # fmt: skip
"""Fields of a body that are those of a `GenerateReqInput`."""


async def _add_fields(
    original: Original[AsyncIterator[object]],
    manager: TokenizerManager,
    obj: Asked,
    request: HttpRequest | None = None,
    *args: object,
    **kwargs: object,
) -> AsyncIterator[object]:
    if request is not None and request.url.path in PATHS:
        add(obj, await request.json())
    async for response in original(manager, obj, request, *args, **kwargs):
        yield response


def add(obj: Asked, body: object) -> None:
    """Put the router's fields of a parsed body into a `GenerateReqInput` that has not run yet.

    `body` is whatever JSON the client sent; what is no object changes nothing.
    """
    if not isinstance(body, dict):
        return
    for name in NAMES:
        if body.get(name) is not None:
            setattr(obj, name, body[name])
    custom = body.get("custom_params")
    if isinstance(custom, dict) and isinstance(obj.sampling_params, dict):
        obj.sampling_params = {**obj.sampling_params, "custom_params": custom}


PATCH = Patch(
    name="router_fields",
    why="/v1/messages and /v1/responses run with prefill and decode apart",
    after={
        "output_ids": "that one reads a field which this one adds",
    },
    processes=frozenset({Process.MAIN}),
    hooks=(
        Hook(
            "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request",
            _add_fields,
            ("self", "obj", "request"),
        ),
    ),
)
