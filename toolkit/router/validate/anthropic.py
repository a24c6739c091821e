"""The tables of /v1/messages and /v1/messages/count_tokens (Anthropic's, as SGLang serves them).

Their nested parts are not copied here: a worker says what is wrong with one.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator

from toolkit.router.validate import parts, rules, sampling
from toolkit.router.validate.adapters import MODEL
from toolkit.router.validate.field import Field, table
from toolkit.router.validate.shared import DROP


def _positive(value: int) -> int:
    if value <= 0:
        raise ValueError("max_tokens must be positive")
    return value


def _named(value: str) -> str:
    if not value:
        raise ValueError("Model is required")
    return value


_WORKER = "workers take it apart"
_COUNTED: tuple[Field, ...] = (
    Field("messages", Any, _WORKER, required=True, kept=True, rule=parts.MESSAGES),
    Field("system", Any, _WORKER, kept=True),
    Field("thinking", Any, "goes into the template", kept=True),
    Field("tool_choice", Any, "guided output", kept=True),
    Field("tools", Any, "their schemas can guide output", kept=True, rule=parts.TOOLS),
    Field("output_config", Any, "effort goes into the template", kept=True),
    Field("betas", list[str] | None, "SGLang passes over them"),
    Field("rid", Any, "anything; the router makes its own for workers"),
    Field("custom_params", Any, "SGLang reads none here", DROP),
)  # fmt: skip

COUNT_TOKENS = table(
    Field("model", str, "workers check the name", required=True, rule=MODEL),
    *_COUNTED,
)
MESSAGES = table(
    Field("model", Annotated[str, AfterValidator(_named)], "workers check the name",
          required=True, rule=MODEL, quick=lambda value: type(value) is str and value.isascii()
          and value != ""),
    *_COUNTED,
    Field("max_tokens", Annotated[int, AfterValidator(_positive)], "the model's context bounds "
          "it too", required=True, rule=sampling.MOST,
          quick=lambda value: type(value) is int and value > 0),
    Field("metadata", dict[str, Any] | None, "user_id: a person, for policies that route by it"),
    Field("stop_sequences", list[str] | None, "stop strings", rule=rules.STOP),
    Field("stream", bool | None, "the router relays the stream"),
    Field("temperature", float | None, "sampling", rule=sampling.TEMPERATURE),
    Field("top_k", int | None, "sampling", rule=sampling.TOP_K),
    Field("top_p", float | None, "sampling", rule=sampling.TOP_P),
)  # fmt: skip
