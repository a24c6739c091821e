"""The nested parts of OpenAI requests, as SGLang 0.5.21 declares them.

Same names, types and validators as `srt/entrypoints/openai/protocol.py`, so that the list of
errors that a client gets is the one that SGLang gives. What they validate goes on as it came.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StrictBool,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)


class StreamOptions(BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class JsonSchemaResponseFormat(BaseModel):
    name: str
    description: str | None = None
    schema_: dict[str, object] | None = Field(alias="schema", default=None)
    strict: StrictBool | None = None


class ResponseFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaResponseFormat | None = None


class StructuresResponseFormat(BaseModel):
    begin: str
    schema_: dict[str, object] | None = Field(alias="schema", default=None)
    end: str


class LegacyStructuralTagResponseFormat(BaseModel):
    type: Literal["structural_tag"]
    structures: list[StructuresResponseFormat]
    triggers: list[str]
    at_least_one: bool = False


class StructuralTag(BaseModel):
    """XGrammar's; what its format may be, the worker says."""

    type: Literal["structural_tag"] = "structural_tag"
    format: dict[str, Any]


AnyResponseFormat = ResponseFormat | LegacyStructuralTagResponseFormat | StructuralTag


class ChatCompletionMessageContentTextPart(BaseModel):
    type: Literal["text"]
    text: str


class ChatCompletionMessageContentThinkingPart(BaseModel):
    type: Literal["thinking", "reasoning"]
    thinking: str | None = None
    text: str | None = None

    @model_validator(mode="after")
    def validate_payload(self) -> ChatCompletionMessageContentThinkingPart:
        if (self.thinking is None) == (self.text is None):
            raise ValueError("thinking parts require exactly one of 'thinking' or 'text'")
        return self


class ChatCompletionMessageContentImageURL(BaseModel):
    url: str
    detail: Literal["auto", "low", "high"] | None = "auto"
    max_dynamic_patch: int | None = None
    min_dynamic_patch: int | None = None
    content_hash: str | None = None


class ChatCompletionMessageContentVideoURL(BaseModel):
    url: str
    max_dynamic_patch: int | None = None
    min_dynamic_patch: int | None = None
    fps: float | None = None
    max_frames: int | None = None
    max_tokens_per_frame: int | None = None
    max_image_tokens: int | None = None


class ChatCompletionMessageContentAudioURL(BaseModel):
    url: str


class ChatCompletionMessageContentImagePart(BaseModel):
    type: Literal["image_url"]
    image_url: ChatCompletionMessageContentImageURL
    modalities: Literal["image", "multi-images", "video"] | None = "image"


class ChatCompletionMessageContentVideoPart(BaseModel):
    type: Literal["video_url"]
    video_url: ChatCompletionMessageContentVideoURL


class ChatCompletionMessageContentInputAudio(BaseModel):
    data: str
    format: Literal["wav", "mp3"]


class ChatCompletionMessageContentAudioURLPart(BaseModel):
    type: Literal["audio_url"]
    audio_url: ChatCompletionMessageContentAudioURL


class ChatCompletionMessageContentAudioInlinePart(BaseModel):
    type: Literal["input_audio"]
    input_audio: ChatCompletionMessageContentInputAudio


class ChatCompletionMessageContentToolReferenceBlock(BaseModel):
    type: Literal["tool_reference"]
    name: str


def _to_audio_url_part(part: Any) -> Any:
    return part  # SGLang makes a data URI of it here; its name is in the errors


AudioPart = Annotated[
    ChatCompletionMessageContentAudioURLPart | ChatCompletionMessageContentAudioInlinePart,
    AfterValidator(_to_audio_url_part),
]
ContentPart = (
    ChatCompletionMessageContentTextPart
    | ChatCompletionMessageContentThinkingPart
    | ChatCompletionMessageContentImagePart
    | ChatCompletionMessageContentVideoPart
    | AudioPart
    | ChatCompletionMessageContentToolReferenceBlock
)


class FunctionResponse(BaseModel):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class ToolCall(BaseModel):
    id: str | None = None
    index: int | None = None
    type: Literal["function"] = "function"
    function: FunctionResponse


class Function(BaseModel):
    description: str | None = None
    name: str
    parameters: object | None = None
    strict: bool = False
    defer_loading: bool | None = None


class Tool(BaseModel):
    type: str = "function"
    function: Function
    defer_loading: bool | None = None


class ToolChoiceFuncName(BaseModel):
    name: str | None = None


class ToolChoice(BaseModel):
    function: ToolChoiceFuncName
    type: Literal["function"] = "function"


_Role = Literal["system", "assistant", "tool", "function", "developer", "latest_reminder", "root"]
_ROLES: tuple[str, ...] = get_args(_Role)
_NEW = "root"
"""Of SGLang 0.5.23: a worker of an older release refuses it itself, and does not name it."""


class ChatCompletionMessageGenericParam(BaseModel):
    role: _Role
    content: str | list[ContentPart] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tools: list[Tool] | None = None

    @field_validator("role", mode="before")
    @classmethod
    def _normalize_role(cls, value: Any) -> Any:
        if isinstance(value, str):
            lower = value.lower()
            if lower not in _ROLES:
                allowed = ", ".join(repr(role) for role in _ROLES if role != _NEW)
                raise ValueError(f"'role' must be one of {allowed} (case-insensitive).")
            return lower
        raise ValueError("'role' must be a string")

    @model_validator(mode="after")
    def validate_thinking_parts_role(self) -> ChatCompletionMessageGenericParam:
        if self.role != "assistant":
            _no_thinking(self.content)
        return self


class ChatCompletionMessageUserParam(BaseModel):
    role: Literal["user"]
    content: str | list[ContentPart]

    @model_validator(mode="after")
    def validate_thinking_parts_role(self) -> ChatCompletionMessageUserParam:
        _no_thinking(self.content)
        return self


def _no_thinking(content: Any) -> None:
    if isinstance(content, list) and any(
        isinstance(part, ChatCompletionMessageContentThinkingPart) for part in content
    ):
        raise ValueError("thinking content parts are only valid in assistant messages")


ChatMessage = ChatCompletionMessageGenericParam | ChatCompletionMessageUserParam
_PLAIN = frozenset({*_ROLES, "user"})


def plain_messages(value: Any) -> bool:
    """Conversations of nothing but a role and a text are what they should be: the models take
    30 us a message."""
    if type(value) is not list:
        return False
    for each in value:
        if type(each) is not dict or len(each) != 2 or type(each.get("content")) is not str:
            return False
        role = each.get("role")
        if type(role) is not str or role not in _PLAIN:
            return False
    return True


def _quick(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    return value if plain_messages(value) else handler(value)


def plain_options(value: Any) -> bool:
    """Of `stream_options`: what nearly everybody asks for."""
    return type(value) is dict and len(value) == 1 and type(value.get("include_usage")) is bool


Messages = Annotated[list[ChatMessage], WrapValidator(_quick)]


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("reasoning_effort must not be a boolean")
    return value


ReasoningEffort = Annotated[
    Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
    | Annotated[float, Field(ge=0.0, le=0.99, allow_inf_nan=False)]
    | None,
    BeforeValidator(_no_boolean),
]
