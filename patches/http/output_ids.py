"""Put the ids of new tokens beside the text that they became.

OpenAI streams carry text only, and text does not say which tokens it came from. A router that is
to resume a stream elsewhere, or to count tokens, needs the ids. A request with the header
`x-toolkit-ids: 1` gets each body message that carries new tokens with one SSE comment line in
front: `: 17 4 2083`. Comments are part of the SSE standard, so a client that sees one ignores it.

A prefill worker's stream has one or two answers. The first token, which it gives as soon as it has
it (`patches.pd.first_token`), comes with its id; the last one, after the KV transfer, says `: last`
instead: it repeats that token, or has one that was held back for a good reason. One that no decode
worker is to have (`patches.pd.prefill_only`) has an answer as any other worker's.
"""

from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from patches.base import Hook, Patch, Process, resolve
from patches.layers import Original
from patches.sglang_types import App, Message, Receive, Scope, Send, TokenizerManager
from toolkit.contract.comments import LAST
from toolkit.contract.headers import IDS
from toolkit.contract.prefill_only import HOST

HEADER = IDS.encode()
PATHS = frozenset(
    {"/generate", "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"}
)
APP = "sglang.srt.entrypoints.http_server.app"


@dataclass(slots=True)
class Fresh:
    """What is to be said in front of the next message. `last`: it belongs to a prefill's end."""

    ids: list[int] = field(default_factory=list)
    last: bool = False

    def take(self) -> bytes:
        """The comment line, without its colon; empty when there is nothing to say."""
        words = [*map(str, self.ids), *([LAST] if self.last else ())]
        self.ids.clear()
        self.last = False
        return " ".join(words).encode()


# The middleware makes it and the token generator fills it: both run in one context.
_fresh: ContextVar[Fresh | None] = ContextVar("toolkit_fresh_ids", default=None)


class OutputIdsMiddleware:
    """ASGI middleware that prefixes streamed messages with the ids produced since the last."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = (
            scope["type"] == "http"
            and scope["path"] in PATHS
            and any(name == HEADER for name, _ in scope["headers"])
        )
        if not wanted:
            await self.app(scope, receive, send)
            return
        fresh = Fresh()

        async def send_with_ids(message: Message) -> None:
            told = fresh.ids or fresh.last
            if told and message["type"] == "http.response.body" and message.get("more_body"):
                body = message.get("body", b"")
                if body:
                    message = {**message, "body": b": %b\n%b" % (fresh.take(), body)}
            await send(message)

        token = _fresh.set(fresh)
        try:
            await self.app(scope, receive, send_with_ids)
        finally:
            _fresh.reset(token)


async def _record_ids(
    original: Original[AsyncIterator[dict[str, Any]]],
    manager: TokenizerManager,
    obj: object,
    *args: object,
    **kwargs: object,
) -> AsyncIterator[dict[str, Any]]:
    fresh = _fresh.get()
    responses = original(manager, obj, *args, **kwargs)
    if fresh is None:
        async for response in responses:
            yield response
        return
    seen = 0
    incremental = manager.incremental_streaming_output
    alone = getattr(obj, "bootstrap_host", None) == HOST
    prefill = manager.server_args.disaggregation_mode == "prefill" and not alone
    async for response in responses:
        if prefill and response["meta_info"].get("finish_reason") is not None:
            fresh.last = True
            yield response
            continue
        ids = response.get("output_ids") or ()
        new = ids if incremental else ids[seen:]
        fresh.ids.extend(new)
        seen += len(new)
        yield response


def _add_middleware() -> None:
    resolve(APP).add_middleware(OutputIdsMiddleware)


PATCH = Patch(
    name="output_ids",
    why="the router resumes broken streams and counts tokens by id",
    processes=frozenset({Process.MAIN}),
    hooks=(
        Hook(
            "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request",
            _record_ids,
            ("self", "obj", "request"),
        ),
    ),
    requires=(APP,),
    attach=_add_middleware,
    attach_to=(f"{APP}.add_middleware",),
)
