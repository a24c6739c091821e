"""The tables of /v1/messages and /v1/messages/count_tokens (Anthropic's, as SGLang serves them).

Their nested parts are not copied here: a worker says what is wrong with one.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator

from toolkit.router.validate import parts, reasons, rules, sampling
from toolkit.router.validate.adapters import MODEL
from toolkit.router.validate.field import Field, table
from toolkit.router.validate.handover import ALIKE, OF_TOOLS, TEXT, TOOLS
from toolkit.router.validate.shared import DROP, MEETING


def _positive(value: int) -> int:
    if value <= 0:
        raise ValueError("max_tokens must be positive")
    return value


def _named(value: str) -> str:
    if not value:
        raise ValueError("Model is required")
    return value


_COUNTED: tuple[Field, ...] = (
    Field("messages", Any, reasons.NESTED, required=True, kept=True, rule=parts.MESSAGES,
          handover=ALIKE),
    Field("system", Any, reasons.NESTED, kept=True, handover=ALIKE),
    Field("thinking", Any, reasons.TEMPLATE, kept=True, handover=ALIKE),
    Field("tool_choice", Any, reasons.MAY_GUIDE, kept=True, handover=OF_TOOLS),
    Field("tools", Any, reasons.MAY_GUIDE, kept=True, rule=parts.TOOLS,
          handover=TOOLS),
    Field("output_config", Any, reasons.TEMPLATE, kept=True, handover=ALIKE),
    Field("betas", list[str] | None, reasons.IGNORED, handover=ALIKE),
    Field("rid", Any, reasons.ANY_ID, handover=ALIKE),
    Field("custom_params", Any, "SGLang reads none here", DROP),
)  # fmt: skip

COUNT_TOKENS = table(
    Field("model", str, reasons.NAMED, required=True, rule=MODEL, handover=ALIKE),
    *_COUNTED,
)
MESSAGES = table(
    Field("model", Annotated[str, AfterValidator(_named)], reasons.NAMED,
          required=True, rule=MODEL, quick=lambda value: type(value) is str and value.isascii()
          and value != "", handover=ALIKE),
    *_COUNTED,
    *MEETING,
    Field("max_tokens", Annotated[int, AfterValidator(_positive)], reasons.LENGTH, required=True,
          rule=sampling.MOST,
          quick=lambda value: type(value) is int and value > 0, handover=ALIKE),
    Field("metadata", dict[str, Any] | None,
          "user_id names a person, for policies that route by it",
          handover=ALIKE),
    Field("stop_sequences", list[str] | None, reasons.STOPS, rule=rules.STOP, handover=TEXT),
    Field("stream", bool | None, reasons.STREAM, handover=TEXT),
    Field("temperature", float | None, reasons.DRAWN, rule=sampling.TEMPERATURE, handover=ALIKE),
    Field("top_k", int | None, reasons.DRAWN, rule=sampling.TOP_K, handover=ALIKE),
    Field("top_p", float | None, reasons.DRAWN, rule=sampling.TOP_P, handover=ALIKE),
)  # fmt: skip
