"""A client's mistake at /v1/messages is answered with 400.

SGLang 0.5.21 converts a message to a chat request and that to one of its own. What is wrong with it
shows in the second step as often as in the first (a template that refuses the order of roles, say),
and `AnthropicServing` takes every exception there for the server's: 500, "Internal server error". A
router would try the request elsewhere, and hold the workers to blame. Chat completions answer the
same ValueError with 400 and its text; so does this.
"""

from contextvars import ContextVar

from patches.base import Hook, Patch, Process
from patches.layers import Original

_SERVING = "sglang.srt.entrypoints.anthropic.serving.AnthropicServing"
_mistake: ContextVar[str] = ContextVar("toolkit_message_mistake", default="")


def _note(original: Original[object], *args: object, **kwargs: object) -> object:
    try:
        return original(*args, **kwargs)
    except ValueError as error:
        _mistake.set(str(error) or "The request could not be read.")
        raise


def _tell(
    original: Original[object],
    serving: object,
    status_code: int,
    error_type: str,
    message: str,
    **options: object,
) -> object:
    mistake = _mistake.get()
    if status_code != 500 or not mistake:
        return original(serving, status_code, error_type, message, **options)
    _mistake.set("")
    return original(serving, 400, "invalid_request_error", mistake)


PATCH = Patch(
    name="message_answers",
    why="a client's mistake at /v1/messages would be a worker's failure",
    after={
        "request_answers": "it hears of mistakes as that one tells them",
    },
    processes=frozenset({Process.MAIN}),
    hooks=(
        Hook(
            "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
            "._convert_to_internal_request",
            _note,
            ("self", "request"),
        ),
        Hook(
            f"{_SERVING}._error_response",
            _tell,
            ("self", "status_code", "error_type", "message"),
        ),
    ),
)
