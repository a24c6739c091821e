"""Rules about models, prompts, messages, tools and templates."""

from __future__ import annotations

from typing import Any, get_args

from toolkit.router.validate import media, rules
from toolkit.router.validate.field import ValueRule
from toolkit.router.validate.guided import wrong_schema, wrong_tag
from toolkit.router.validate.handover import ALIKE, UNTRIED, Handover
from toolkit.router.validate.limits import BodyLimits
from toolkit.router.validate.meanings import meanings
from toolkit.router.validate.refusal import shown
from toolkit.router.validate.schema import MAX_DEPTH, MAX_NODES, too_large
from toolkit.settings.router.permissions import ALLOWABLE

RENDERING = frozenset(
    (
        "add_generation_prompt", "chat_template", "continue_final_message", "conversation",
        "conversations", "max_length", "messages", "padding", "return_assistant_tokens_mask",
        "return_dict", "return_tensors", "self", "tokenize", "tokenizer_kwargs", "tools",
        "truncation",
    )
)  # fmt: skip
"""Arguments of `apply_chat_template` that are no variables of a template."""


def names_adapter(model: Any) -> bool:
    """As SGLang reads it (`_parse_model_parameter`): behind the first colon stands an adapter."""
    return isinstance(model, str) and ":" in model and bool(model.partition(":")[2].strip())


def handover_of_model(model: Any) -> Handover:
    """What a model means for a request that passes from worker to worker."""
    return UNTRIED if names_adapter(model) else ALIKE


def _model(name: str, value: Any, limits: BodyLimits) -> str | None:
    wrong = rules.NAME.wrong(name, value, limits)
    if wrong is None and names_adapter(value) and "lora" not in limits.allow:
        return (
            f"{name} {shown(value)} names a LoRA adapter, which is not allowed by this deployment: "
            "which adapters there are is the deployment's business. Its operator can allow it with "
            f"'lora' in `allow` ({ALLOWABLE['lora']})."
        )
    return wrong


def _no_adapter(name: str, value: Any, limits: BodyLimits) -> str | None:
    if names_adapter(value):
        return (
            f"{name} {shown(value)} names a LoRA adapter, and SGLang's /v1/responses would answer "
            "with the model alone. Use /v1/chat/completions."
        )
    return rules.NAME.wrong(name, value, limits)


def _prompt(name: str, value: Any, limits: BodyLimits) -> str | None:
    if not value or (isinstance(value, list) and all(not part for part in value)):
        return "Prompt cannot be empty"  # SGLang says so of ids that are all 0, too
    return rules.IDS.wrong(name, value, limits)


def _not_empty(name: str, value: Any, limits: BodyLimits) -> str | None:
    return f"{name} cannot be an empty list." if value == [] else None


def _input(name: str, value: Any, limits: BodyLimits) -> str | None:
    return _not_empty(name, value, limits) or media.MESSAGES.wrong(name, value, limits)


def _messages(name: str, value: Any, limits: BodyLimits) -> str | None:
    if not value:
        return "Messages cannot be empty."
    unusual = [each for each in value if len(each) != 2 or type(each.get("content")) is not str]
    if not unusual:
        return None
    for kind, where in media.in_messages(unusual):
        if "media" not in limits.allow:
            kind = "audio_url" if kind == "input_audio" else kind  # SGLang makes one of the other
            return (
                f"Model only supports text input; received unsupported content type '{kind}'. "
                "Media are for workers of mode: plain, with 'media' in `allow` of the deployment."
            )
        if wrong := media.wrong_source(kind, where, limits):
            return wrong
    for message in unusual:
        if wrong := _tools(f"{name}.tools", message.get("tools"), limits):
            return wrong
    return None


def _tools(name: str, value: Any, limits: BodyLimits) -> str | None:
    for index, tool in enumerate(media.dicts(value)):
        for place, holder in (("", tool), (".function", tool.get("function"))):
            if not isinstance(holder, dict):
                continue
            for key in ("input_schema", "parameters"):
                if key in holder and (why := too_large(holder[key])):
                    return f"{name}[{index}]{place}.{key} {why}."
    return None


def _response_format(name: str, value: Any, limits: BodyLimits) -> str | None:
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


def _text_format(name: str, value: Any, limits: BodyLimits) -> str | None:
    form = value.get("format") if isinstance(value, dict) else None
    schema = form.get("schema") if isinstance(form, dict) else None
    return wrong_schema(f"{name}.format.schema", schema) if isinstance(schema, dict) else None


def _reasoning(name: str, value: Any, limits: BodyLimits) -> str | None:
    if not isinstance(value, dict):
        return None  # SGLang passes over it
    effort = value.get("effort")
    effort = value.get("reasoning_effort") if effort is None else effort
    levels = get_args(meanings(limits.release)["ReasoningEffortTier"])
    if effort is None or effort in levels:
        return None
    try:
        if not isinstance(effort, bool) and 0 <= float(effort) <= 0.99:
            return None
    except (ValueError, TypeError, OverflowError):
        pass
    return (
        f"{name}.effort must be {', '.join(levels)} or a number in [0, 0.99], got {shown(effort)}."
    )


def _template(name: str, value: Any, limits: BodyLimits) -> str | None:
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


def _nothing(name: str, value: Any, limits: BodyLimits) -> str | None:
    return None


MODEL = ValueRule("string of at most 4096 characters; `base:adapter` with lora", _model)
BASE_MODEL = ValueRule("string of at most 4096 characters, no `base:adapter`", _no_adapter)
PROMPT = ValueRule("not empty; token ids in the vocabulary", _prompt)
NOT_EMPTY = ValueRule("not an empty list", _not_empty)
INPUT = ValueRule("not an empty list; media only where allowed", _input)
MESSAGES = ValueRule("not empty; media only where allowed", _messages)
TOOLS = ValueRule(f"schemas of at most {MAX_DEPTH} levels and {MAX_NODES} parts", _tools)
RESPONSE_FORMAT = ValueRule("its schema: see sampling_params.json_schema", _response_format)
TEXT_FORMAT = ValueRule("its schema: see sampling_params.json_schema", _text_format)
REASONING = ValueRule("effort as in reasoning_effort", _reasoning)
TEMPLATE = ValueRule("none of apply_chat_template's own arguments", _template)
SAMPLING_PARAMS = ValueRule("an object, or a list with one for each prompt", _nothing)
