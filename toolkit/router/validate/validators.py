"""SGLang's own validators, for the models that are made of what it declares.

Which model has which, and of which fields, `declared.json` says. A test names those of a release
that are neither here nor known to need no copy.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable
from typing import Any, Literal, get_args

from pydantic import BaseModel


class StructuralTag(BaseModel):
    """XGrammar's; what its format may be, the worker says."""

    type: Literal["structural_tag"] = "structural_tag"
    format: dict[str, Any]


def _to_audio_url_part(part: Any) -> Any:
    return part  # SGLang makes a data URI of it here; its name is in the errors


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


def validate_max_tokens_positive(cls: Any, value: int) -> int:
    if value <= 0:
        raise ValueError("max_tokens must be positive")
    return value


def _validate_model(cls: Any, value: str) -> str:
    if not value:
        raise ValueError("Model is required")
    return value


def validate_top_n(cls: Any, value: int | None) -> int | None:
    if value is not None and value < 1:
        raise ValueError("Value error, parameter top_n should be larger than 0.")
    return value


def validate_reasoning_effort_type(cls: Any, value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("reasoning_effort must not be a boolean")
    return value


def validate_payload(self: Any) -> Any:
    if (self.thinking is None) == (self.text is None):
        raise ValueError("thinking parts require exactly one of 'thinking' or 'text'")
    return self


def _default_detail_is_auto(cls: Any, value: Any) -> Any:
    return "auto" if value == "default" else value


def _normalize_role(cls: Any, value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("'role' must be a string")
    lower, roles = value.lower(), _roles(cls)
    if lower not in roles:
        allowed = ", ".join(map(repr, roles))
        raise ValueError(f"'role' must be one of {allowed} (case-insensitive).")
    return lower


@functools.cache
def _roles(kind: type[BaseModel]) -> tuple[Any, ...]:
    return get_args(kind.model_fields["role"].annotation)


def validate_thinking_parts_role(self: Any) -> Any:
    parts = self.content if isinstance(self.content, list) else ()
    if self.role != "assistant" and any(part.type in ("thinking", "reasoning") for part in parts):
        raise ValueError("thinking content parts are only valid in assistant messages")
    return self


def _capture_key_order(cls: Any, data: Any) -> Any:
    """What a client says of `key_order` itself counts for nothing."""
    return {**data, "key_order": list(data)} if isinstance(data, dict) else data


OF_TYPES: dict[str, Any] = {
    "StructuralTag": StructuralTag,
    "_to_audio_url_part": _to_audio_url_part,
    "validate_optional_list_i64_1d_2d": ids,
}
"""What SGLang's types name and other modules make."""
TAKEN: dict[str, Callable[..., Any]] = {
    "completions.validate_max_tokens_positive": validate_max_tokens_positive,
    "messages._validate_max_tokens": validate_max_tokens_positive,
    "messages._validate_model": _validate_model,
    "rerank.validate_top_n": validate_top_n,
    "chat.validate_reasoning_effort_type": validate_reasoning_effort_type,
    "ChatCompletionMessageContentThinkingPart.validate_payload": validate_payload,
    "ChatCompletionMessageContentImageURL._default_detail_is_auto": _default_detail_is_auto,
    "ChatCompletionMessageGenericParam._normalize_role": _normalize_role,
    "ChatCompletionMessageGenericParam.validate_thinking_parts_role": validate_thinking_parts_role,
    "ChatCompletionMessageUserParam.validate_thinking_parts_role": validate_thinking_parts_role,
    "Function._capture_key_order": _capture_key_order,
}
"""By the model's place and the validator's name."""
