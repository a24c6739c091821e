"""A client's mistake is answered with 400 by the HTTP process, before any scheduler hears of it.

SGLang answers 400 for a ValueError of its tokenizer process and 500, as if it were at fault, for
all else that a wrong value raises there. See `patches.http.request_guard` for the other two checks.
"""

from collections.abc import AsyncIterator, Awaitable

from patches.base import Hook, Patch, Process, resolve
from patches.http.request_guard import MISTAKES, RequestError, as_mistake, limits_of
from patches.http.request_values import wrong
from patches.layers import Original
from patches.sglang_types import App, Message, Receive, Scope, Send, TokenizerManager
from patches.tickets import ticket_key

APP = "sglang.srt.entrypoints.http_server.app"
PATHS = frozenset({"/generate", "/v1/completions", "/v1/chat/completions"})
_MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
_INPUT = "sglang.srt.managers.io_struct.GenerateReqInput"
_OPENAI = "sglang.srt.entrypoints.openai"


def _convert(original: Original[object], *args: object, **kwargs: object) -> object:
    try:
        return original(*args, **kwargs)
    except MISTAKES as error:
        raise as_mistake(error) from error


async def _convert_async(
    original: Original[Awaitable[object]], *args: object, **kwargs: object
) -> object:
    try:
        return await original(*args, **kwargs)
    except MISTAKES as error:
        raise as_mistake(error) from error


def _check_tokenized(
    original: Original[object],
    manager: TokenizerManager,
    obj: object,
    *args: object,
    **kwargs: object,
) -> object:
    try:
        tokenized = original(manager, obj, *args, **kwargs)
    except MISTAKES as error:
        raise as_mistake(error) from error
    if type(tokenized).__name__ == "TokenizedGenerateReqInput":
        if not manager.is_generation:  # its scheduler would die of the first token
            raise RequestError("This model embeds and does not generate: use /v1/embeddings.")
        reason = wrong(tokenized, limits_of(manager.model_config))
        if reason is not None:
            raise RequestError(reason)
    return tokenized


class MistakesMiddleware:
    """ASGI middleware: what raises while a body is taken apart is answered with 400."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; SGLang's own exceptions go on to its own handlers."""
        if scope["type"] != "http" or scope["path"] not in PATHS:
            await self.app(scope, receive, send)
            return
        begun = False

        async def watch(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except MISTAKES as error:
            if begun or not _in_body(error):
                raise
            await _refuse(send, f"The body has a value of a wrong type ({type(error).__name__}).")


def _in_body(error: Exception) -> bool:
    """Whether FastAPI was still reading the body: no endpoint had been called."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name in ("solve_dependencies", "request_body_to_args"):
            return True
        trace = trace.tb_next
    return False


async def _refuse(send: Send, message: str) -> None:
    import json

    body = {"object": "error", "message": message, "type": "BadRequest", "code": 400}
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


def _prepare_main() -> None:
    resolve(APP).add_middleware(MistakesMiddleware)
    ticket_key()  # made up here where there is none, so that the schedulers inherit it


async def _refuse_inner(
    original: Original[AsyncIterator[object]],
    manager: TokenizerManager,
    obj: object,
    *args: object,
    **kwargs: object,
) -> AsyncIterator[object]:
    """Fields that are the tokenizer process's own notes are not the client's to fill."""
    if getattr(obj, "http_worker_ipc", None) is not None:
        raise RequestError("http_worker_ipc cannot be given by a client")
    async for response in original(manager, obj, *args, **kwargs):
        yield response


PATCH = Patch(
    name="request_answers",
    why="a client's mistake is answered with 400, before any scheduler hears of it",
    after={
        "expert_stream": "it answers what that one raises, and checks what is sent",
        "router_fields": "what is refused is not read any further",
        "output_ids": "it answers what is raised around the ids, too",
    },
    processes=frozenset({Process.MAIN}),
    hooks=(
        Hook(f"{_MANAGER}.generate_request", _refuse_inner, ("self", "obj", "request")),
        Hook(f"{_MANAGER}._tokenize_one_request", _convert_async, ("self", "obj")),
        Hook(
            f"{_MANAGER}._batch_tokenize_and_process", _convert_async, ("self", "batch_size", "obj")
        ),
        Hook(f"{_MANAGER}._init_req_state", _convert, ("self", "obj")),
        Hook(
            f"{_MANAGER}._create_tokenized_object",
            _check_tokenized,
            ("self", "obj", "input_text", "input_ids"),
        ),
        Hook(f"{_INPUT}.normalize_batch_and_arguments", _convert, ("self",)),
        Hook(f"{_INPUT}.__getitem__", _convert, ("self", "i")),
        Hook(
            f"{_OPENAI}.serving_chat.OpenAIServingChat._convert_to_internal_request",
            _convert,
            ("self", "request"),
        ),
        Hook(
            f"{_OPENAI}.serving_completions.OpenAIServingCompletion._convert_to_internal_request",
            _convert,
            ("self", "request"),
        ),
        Hook(
            f"{_OPENAI}.serving_responses.OpenAIServingResponses._make_request",
            _convert_async,
            ("self", "request"),
        ),
    ),
    requires=(APP,),
    attach=_prepare_main,
    attach_to=(f"{APP}.add_middleware",),
)
