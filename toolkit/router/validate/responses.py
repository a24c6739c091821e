"""The table of /v1/responses (`ResponsesRequest`).

Its nested parts are not copied here: a worker says what is wrong with one. What needs an answer
that a server keeps is refused: workers do not share state, and the next request may go to another.
"""

from __future__ import annotations

from typing import Any, Literal

from toolkit.router.validate import content, parts, reasons, rules, sampling
from toolkit.router.validate.adapters import BASE_MODEL
from toolkit.router.validate.field import Field, Rule, table
from toolkit.router.validate.guided import wrong_schema
from toolkit.router.validate.handover import ALIKE, GUIDED, LOGPROBS, OF_TOOLS, TEXT, TOOLS
from toolkit.router.validate.limits import MAX_TOKENS, Limits
from toolkit.router.validate.shared import CACHE, DROP, INSIDE, REFUSE

_STATE = "workers keep no answers, and share none: send the whole conversation in `input`"
_OTHERWISE = frozenset({"background", "priority", *(field.name for field in CACHE)})
"""Whose types or fates differ here."""


def _text(name: str, value: Any, limits: Limits) -> str | None:
    form = value.get("format") if isinstance(value, dict) else None
    schema = form.get("schema") if isinstance(form, dict) else None
    return wrong_schema(f"{name}.format.schema", schema) if isinstance(schema, dict) else None


def _kept(name: str, value: Any, limits: Limits) -> str | None:
    return f"store: true is not taken from clients: {_STATE}, and no `store`." if value else None


def _input(name: str, value: Any, limits: Limits) -> str | None:
    if value == []:
        return f"{name} cannot be an empty list."
    return parts.INPUT.wrong(name, value, limits)


NOT_KEPT = Rule("false", _kept)
INPUT = Rule("not an empty list; media only where allowed", _input)
RESPONSES = table(
    *(field for field in INSIDE if field.name not in _OTHERWISE),
    Field("priority", int, "one client could always go before all others", DROP,
          allow="priority", rule=rules.integer(-rules.INT64, rules.INT64 - 1), handover=ALIKE),
    Field("session_id", str | None, reasons.CONVERSATION, rule=rules.NAME,
          handover=ALIKE),
    Field("extra_key", str | None, reasons.APART, rule=rules.NAME,
          handover=ALIKE),
    Field("cache_salt", str | None, reasons.APART, rule=rules.NAME,
          handover=ALIKE),
    Field("background", bool | None, _STATE, REFUSE, default=False),
    Field("store", bool | None, reasons.BACK, rule=NOT_KEPT, handover=ALIKE),
    Field("previous_response_id", str | None, _STATE, REFUSE),
    Field("conversation", Any, _STATE, REFUSE),
    Field("prompt", Any, "SGLang has no stored prompts: send the text in `input`", REFUSE),
    Field("custom_params", Any, "SGLang reads none here", DROP),
    Field("request_id", str, reasons.ANY_ID,
          rule=rules.NAME, handover=ALIKE),
    Field("model", str | None, reasons.NAMED, rule=BASE_MODEL, handover=ALIKE),
    Field("input", Any, reasons.NESTED, required=True, kept=True, rule=INPUT, handover=ALIKE),
    Field("instructions", str | None, reasons.PROMPT, handover=ALIKE),
    Field("include", Any, reasons.ANSWER, kept=True, handover=ALIKE),
    Field("max_output_tokens", int | None,
          "a client's choice of where its answer ends; SGLang takes 2 off it",
          rule=rules.integer(2, MAX_TOKENS), handover=ALIKE),
    Field("max_tool_calls", int | None, reasons.IGNORED, handover=OF_TOOLS),
    Field("metadata", dict[str, Any] | None, reasons.BACK, handover=ALIKE),
    Field("parallel_tool_calls", bool | None, reasons.MAY_GUIDE, handover=OF_TOOLS),
    Field("reasoning", Any, reasons.TEMPLATE, kept=True, handover=ALIKE),
    Field("service_tier", Literal["auto", "default", "flex", "scale", "priority"],
          "it says the class of a request", handover=ALIKE),
    Field("stream", bool | None, reasons.STREAM, handover=TEXT),
    Field("temperature", float | None, reasons.DRAWN, rule=sampling.TEMPERATURE, handover=ALIKE),
    Field("text", Any, reasons.GUIDES, kept=True, rule=Rule("its schema: see sampling_params."
          "json_schema", _text), handover=GUIDED),
    Field("tool_choice", Any, reasons.MAY_GUIDE, kept=True, handover=OF_TOOLS),
    Field("tools", Any, reasons.MAY_GUIDE, kept=True, rule=parts.TOOLS,
          handover=TOOLS),
    Field("top_logprobs", int | None, reasons.ALTERNATIVES, rule=rules.TOP, default=0,
          handover=LOGPROBS),
    Field("top_p", float | None, reasons.DRAWN, rule=sampling.TOP_P, handover=ALIKE),
    Field("truncation", Literal["auto", "disabled"] | None, reasons.IGNORED,
          handover=ALIKE),
    Field("user", str | None, reasons.PERSON, rule=rules.NAME,
          handover=ALIKE),
    Field("chat_template_kwargs", dict[str, Any] | None, reasons.VARIABLES, rule=content.TEMPLATE,
          handover=ALIKE),
    Field("frequency_penalty", float, reasons.DRAWN, rule=sampling.FREQUENCY, handover=ALIKE),
    Field("presence_penalty", float, reasons.DRAWN, rule=sampling.PRESENCE, handover=ALIKE),
    Field("stop", str | list[str] | None, reasons.STOPS, rule=rules.STOP, handover=TEXT),
    Field("top_k", int | None, reasons.DRAWN, rule=sampling.TOP_K, handover=ALIKE),
    Field("min_p", float | None, reasons.DRAWN, rule=sampling.MIN_P, handover=ALIKE),
    Field("repetition_penalty", float | None, reasons.DRAWN, rule=sampling.REPETITION,
          handover=ALIKE),
)  # fmt: skip
