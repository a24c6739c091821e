"""The tables of /v1/messages and /v1/messages/count_tokens (Anthropic's, as SGLang serves them).

Their nested parts are not copied here: a worker says what is wrong with one.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator

from toolkit.router.validate import parts, rules, sampling
from toolkit.router.validate.adapters import MODEL
from toolkit.router.validate.field import Field, table
from toolkit.router.validate.handover import ALIKE, OF_TOOLS, TEXT
from toolkit.router.validate.shared import DROP, MEETING


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
    Field("messages", Any, _WORKER, required=True, kept=True, rule=parts.MESSAGES, handover=ALIKE),
    Field("system", Any, _WORKER, kept=True, handover=ALIKE),
    Field("thinking", Any, "goes into the template", kept=True, handover=ALIKE),
    Field("tool_choice", Any, "guided output", kept=True, handover=OF_TOOLS),
    Field("tools", Any, "their schemas can guide output", kept=True, rule=parts.TOOLS,
          handover=OF_TOOLS),
    Field("output_config", Any, "effort goes into the template", kept=True, handover=ALIKE),
    Field("betas", list[str] | None, "SGLang passes over them", handover=ALIKE),
    Field("rid", Any, "anything; the router makes its own for workers", handover=ALIKE),
    Field("custom_params", Any, "SGLang reads none here", DROP),
)  # fmt: skip

COUNT_TOKENS = table(
    Field("model", str, "workers check the name", required=True, rule=MODEL, handover=ALIKE),
    *_COUNTED,
)
MESSAGES = table(
    Field("model", Annotated[str, AfterValidator(_named)], "workers check the name",
          required=True, rule=MODEL, quick=lambda value: type(value) is str and value.isascii()
          and value != "", handover=ALIKE),
    *_COUNTED,
    *MEETING,
    Field("max_tokens", Annotated[int, AfterValidator(_positive)], "the model's context bounds "
          "it too", required=True, rule=sampling.MOST,
          quick=lambda value: type(value) is int and value > 0, handover=ALIKE),
    Field("metadata", dict[str, Any] | None, "user_id: a person, for policies that route by it",
          handover=ALIKE),
    Field("stop_sequences", list[str] | None, "stop strings", rule=rules.STOP, handover=TEXT),
    Field("stream", bool | None, "the router relays the stream", handover=TEXT),
    Field("temperature", float | None, "sampling", rule=sampling.TEMPERATURE, handover=ALIKE),
    Field("top_k", int | None, "sampling", rule=sampling.TOP_K, handover=ALIKE),
    Field("top_p", float | None, "sampling", rule=sampling.TOP_P, handover=ALIKE),
)  # fmt: skip
