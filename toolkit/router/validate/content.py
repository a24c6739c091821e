"""Rules about prompts, messages, tools and templates."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

from toolkit.router.validate import rules
from toolkit.router.validate.field import Rule
from toolkit.router.validate.guided import wrong_schema, wrong_tag
from toolkit.router.validate.limits import Limits
from toolkit.router.validate.refusal import shown
from toolkit.router.validate.schema import MAX_DEPTH, MAX_NODES, too_large

PARTS = {
    "image_url": "image_url",
    "video_url": "video_url",
    "audio_url": "audio_url",
    "input_audio": "audio_url",
}
"""Parts of messages that hold media, and what SGLang calls them in its refusal."""

RENDERING = frozenset(
    (
        "add_generation_prompt", "chat_template", "continue_final_message", "conversation",
        "conversations", "max_length", "messages", "padding", "return_assistant_tokens_mask",
        "return_dict", "return_tensors", "self", "tokenize", "tokenizer_kwargs", "tools",
        "truncation",
    )
)  # fmt: skip
"""Arguments of `apply_chat_template` that are no variables of a template."""

_URLS = ("http://", "https://")


def ids(value: Any) -> Any:
    """As `srt/utils/field_validators.py`: int64 in one list or in a list of lists, or null."""
    if value is None or value == []:
        return value
    if not isinstance(value, list):
        raise ValueError(f"must be list or null; got {type(value).__name__}")
    if isinstance(value[0], int):
        return _row(value)
    if not isinstance(value[0], list):
        raise ValueError(f"elements must be int or list; got {type(value[0]).__name__}")
    for index, row in enumerate(value):
        try:
            _row(row)
        except ValueError as error:
            raise ValueError(f"row {index}: {error}") from None
    return value


def _row(value: Any) -> Any:
    if value is None:
        raise ValueError("must not be None")
    if not isinstance(value, list):
        raise ValueError(f"must be list; got {type(value).__name__}")
    if not value:
        return value
    if not isinstance(value[0], int):
        raise ValueError(f"elements must be int; got {type(value[0]).__name__}")
    try:
        array("q", value)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"contains non-int64 element: {error}") from None
    return value


def _prompt(name: str, value: Any, limits: Limits) -> str | None:
    if not value or (isinstance(value, list) and all(not part for part in value)):
        return "Prompt cannot be empty"  # SGLang says so of ids that are all 0, too
    return rules.IDS.wrong(name, value, limits)


def _text(name: str, value: Any, limits: Limits) -> str | None:
    return f"{name} cannot be an empty list." if value == [] else None


def _messages(name: str, value: Any, limits: Limits) -> str | None:
    if not value:
        return "Messages cannot be empty."
    for message in value:
        content = message.get("content")
        if isinstance(content, list):
            for part in content:
                if wrong := _part(part, limits):
                    return wrong
        if wrong := _tools(f"{name}.tools", message.get("tools"), limits):
            return wrong
    return None


def _part(part: dict[str, Any], limits: Limits) -> str | None:
    kind = part.get("type")
    if kind not in PARTS:
        return None
    if "media" not in limits.allow:
        return (
            f"Model only supports text input; received unsupported content type '{PARTS[kind]}'. "
            "Media are for workers of mode: plain, with 'media' in `allow` of the deployment."
        )
    return None if kind == "input_audio" else wrong_source(kind, part[kind]["url"], limits)


def _media(name: str, value: Any, limits: Limits) -> str | None:
    return next(
        (wrong for each in _leaves(value) if (wrong := wrong_source(name, each, limits))), None
    )


def _leaves(value: Any) -> Iterator[Any]:
    stack = [value]
    while stack:
        found = stack.pop()
        if isinstance(found, list):
            stack.extend(found)
        elif found is not None:
            yield found


def wrong_source(name: str, value: Any, limits: Limits) -> str | None:
    """A path would be opened and a URL fetched by a worker, inside the deployment's network."""
    if isinstance(value, str):
        if value.startswith("data:"):
            return None
        if "media_urls" in limits.allow and value.startswith(_URLS):
            return None
    urls = " or an http(s) URL" if "media_urls" in limits.allow else ""
    return f"{name} must be a data: URI{urls}, got {shown(value, 40)}."


def _tools(name: str, value: Any, limits: Limits) -> str | None:
    for index, tool in enumerate(value or ()):
        why = too_large(tool["function"].get("parameters"))
        if why is not None:
            return f"{name}[{index}].function.parameters {why}."
    return None


def _response_format(name: str, value: Any, limits: Limits) -> str | None:
    if value["type"] == "structural_tag":
        return wrong_tag(name, value)
    if value["type"] != "json_schema":
        return None
    named = value.get("json_schema")
    schema = named.get("schema") if named else value.get("schema")
    if schema is None:
        return "schema_ is required for json_schema response format request."
    if not isinstance(schema, dict):
        return f"{name}.schema must be an object, got {shown(schema)}."
    properties = schema.get("properties")
    if not isinstance(properties, dict | None):
        return f"{name}.schema.properties must be an object, got {shown(properties)}."
    if not named:  # SGLang makes a named one of it
        if not isinstance(schema.get("title", ""), str):
            return f"{name}.schema.title must be a string, got {shown(schema['title'])}."
        strict = (properties or {}).get("strict")
        if not isinstance(strict, dict | None):
            return f"{name}.schema.properties.strict must be an object, got {shown(strict)}."
    return wrong_schema(f"{name}.schema", schema)


def _reasoning(name: str, value: Any, limits: Limits) -> str | None:
    if not isinstance(value, dict):
        return None  # SGLang passes over it
    effort = value.get("effort")
    effort = value.get("reasoning_effort") if effort is None else effort
    if effort is None or effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max"):
        return None
    try:
        if not isinstance(effort, bool) and 0 <= float(effort) <= 0.99:
            return None
    except (ValueError, TypeError, OverflowError):
        pass
    return (
        f"{name}.effort must be none, minimal, low, medium, high, xhigh, max or a number in "
        f"[0, 0.99], got {shown(effort)}."
    )


def _template(name: str, value: Any, limits: Limits) -> str | None:
    if "chat_template" in value:
        return (
            "Request-supplied chat_template is not allowed. Start the server "
            "with --trust-request-chat-template to permit it."
        )
    for key in value:
        if not isinstance(key, str) or key in RENDERING or key.startswith("_"):
            return f"{name} must not have {shown(key)}: it is no variable of the template."
    spaces = value.get("spaces_between_special_tokens", True)
    if not isinstance(spaces, bool):
        return f"{name}.spaces_between_special_tokens must be true or false, got {shown(spaces)}."
    return None


def _nothing(name: str, value: Any, limits: Limits) -> str | None:
    return None


PROMPT = Rule("not empty; token ids in the vocabulary", _prompt)
TEXT = Rule("not an empty list", _text)
MESSAGES = Rule("not empty", _messages)
MEDIA = Rule("data: URIs; http(s) URLs with media_urls; never paths", _media)
TOOLS = Rule(f"parameters of at most {MAX_DEPTH} levels and {MAX_NODES} parts", _tools)
RESPONSE_FORMAT = Rule("its schema: see sampling_params.json_schema", _response_format)
REASONING = Rule("effort as in reasoning_effort", _reasoning)
TEMPLATE = Rule("none of apply_chat_template's own arguments", _template)
SAMPLING_PARAMS = Rule("an object, or a list with one for each prompt", _nothing)
