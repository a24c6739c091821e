"""Nothing of what clients send or get is in a worker's log.

SGLang's own messages quote requests in a few places: schemas and grammars that do not compile, tool
calls that do not parse, the text of exceptions (pydantic's hold the input). So in the packages that
have a request in their hands only the constant parts of a message are logged, as they stand in
SGLang's source, with "…" for each value; of an exception there, its type and where it was raised.
All other messages stay as they are: they name request ids, sizes and times.

A deployment that asks for `log-requests` gets what it asks for: SGLang writes these lines elsewhere
(`sglang.srt.utils.request_logger`). The detokenizer's process loads no plugins; it logs nothing of
requests but the exception by which it ends.
"""

import ast
import logging
import re
import traceback
from functools import cache
from pathlib import Path

from patches.base import EVERY, Patch

QUOTING = (
    "sglang.srt.constrained",
    "sglang.srt.function_call",
    "sglang.srt.parser",
    "sglang.srt.entrypoints.openai",
    "sglang.srt.entrypoints.anthropic",
    "sglang.srt.entrypoints.ollama",
)
"""Packages whose messages hold parts of requests and answers."""
RAISING = (
    *QUOTING,
    "sglang.srt.entrypoints",
    "sglang.srt.managers.tokenizer",
    "uvicorn",
    "asyncio",
)
"""Loggers that get the exceptions of requests."""
QUOTING_MESSAGES = {
    "sglang.srt.entrypoints.http_server": "[http_server]",
    "sglang.srt.managers.schedule_batch": "…, self.rid=",
}
"""Modules that quote requests only in messages that begin so, values as VALUE: what else they say
(why a server does not start, for one) is for the operator."""
CALLS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
VALUE = "…"
PLACE = re.compile(r"%[-+ #0-9.*]*[a-zA-Z]")


def without_values(record: logging.LogRecord) -> logging.LogRecord:
    """The record with what a request may have put into it taken out."""
    begins = "" if _within(record.name, QUOTING) else QUOTING_MESSAGES.get(record.name)
    if begins is not None:
        text = _constants(record.pathname).get(record.lineno)
        if text is None:
            text = f"{begins or VALUE} ({record.name}:{record.lineno})"
        if text.startswith(begins):
            record.msg, record.args = text, None
    if record.exc_info and record.exc_info[0] is not None and _within(record.name, RAISING):
        frames = "".join(traceback.format_tb(record.exc_info[2])).rstrip()
        # A formatter that finds this does not format the exception itself.
        record.exc_text = f"{frames}\n{record.exc_info[0].__qualname__}: {VALUE}"
    return record


def _within(name: str, packages: tuple[str, ...]) -> bool:
    return name.startswith(packages)


@cache
def _constants(path: str) -> dict[int, str]:
    """Line -> constant parts of the message that is logged there, of a source file."""
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[int, str] = {}
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in CALLS
        and node.args
    ]
    for call in sorted(calls, key=lambda each: each.lineno):  # an inner call begins later, and wins
        assert isinstance(call.func, ast.Attribute)
        message = call.args[1 if call.func.attr == "log" and len(call.args) > 1 else 0]
        for line in range(call.lineno, (call.end_lineno or call.lineno) + 1):
            found[line] = _text(message)
    return found


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return PLACE.sub(VALUE, node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return VALUE


def _attach() -> None:
    make = logging.getLogRecordFactory()
    if getattr(make, "without_values", False):
        return

    def factory(*args: object, **kwargs: object) -> logging.LogRecord:
        return without_values(make(*args, **kwargs))

    factory.without_values = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(factory)


PATCH = Patch(
    name="private_logs",
    why="SGLang logs schemas, tool calls and exceptions with what clients wrote in them",
    processes=EVERY,
    requires=(
        "sglang.srt.utils.common.configure_logger",
        "sglang.srt.constrained",
        "sglang.srt.function_call",
        "sglang.srt.parser",
        "sglang.srt.entrypoints.openai",
        "sglang.srt.entrypoints.anthropic",
        "sglang.srt.entrypoints.ollama",
    ),
    attach=_attach,
)
