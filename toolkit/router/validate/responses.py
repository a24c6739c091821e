"""The table of /v1/responses (`ResponsesRequest`).

Its nested parts are not copied here: a worker says what is wrong with one. What needs an answer
that a server keeps is refused: workers do not share state, and the next request may go to another.
"""

from __future__ import annotations

from typing import Any, Literal

from toolkit.router.validate import content, parts, rules, sampling
from toolkit.router.validate.adapters import BASE_MODEL
from toolkit.router.validate.field import Field, Rule, table
from toolkit.router.validate.guided import wrong_schema
from toolkit.router.validate.handover import ALIKE, GUIDED, LOGPROBS, OF_TOOLS, TEXT
from toolkit.router.validate.limits import MAX_TOKENS, Limits
from toolkit.router.validate.shared import CACHE, DROP, INSIDE, REFUSE

_STATE = "workers keep no answers, and share none: send the whole conversation in `input`"
_WORKER = "workers take it apart"
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
    Field("session_id", str | None, "names a conversation, for routing", rule=rules.NAME,
          handover=ALIKE),
    Field("extra_key", str | None, "keeps prefixes of the cache apart", rule=rules.NAME,
          handover=ALIKE),
    Field("cache_salt", str | None, "keeps prefixes of the cache apart", rule=rules.NAME,
          handover=ALIKE),
    Field("background", bool | None, _STATE, REFUSE, default=False),
    Field("store", bool | None, "comes back in the answer", rule=NOT_KEPT, handover=ALIKE),
    Field("previous_response_id", str | None, _STATE, REFUSE),
    Field("conversation", Any, _STATE, REFUSE),
    Field("prompt", Any, "SGLang has no stored prompts: send the text in `input`", REFUSE),
    Field("custom_params", Any, "SGLang reads none here", DROP),
    Field("request_id", str, "the answer's id; the router makes its own for workers",
          rule=rules.NAME, handover=ALIKE),
    Field("model", str | None, "workers check the name", rule=BASE_MODEL, handover=ALIKE),
    Field("input", Any, _WORKER, required=True, kept=True, rule=INPUT, handover=ALIKE),
    Field("instructions", str | None, "the prompt", handover=ALIKE),
    Field("include", Any, "adds to the answer", kept=True, handover=ALIKE),
    Field("max_output_tokens", int | None, "SGLang takes 2 off it",
          rule=rules.integer(2, MAX_TOKENS), handover=ALIKE),
    Field("max_tool_calls", int | None, "SGLang passes over it", handover=OF_TOOLS),
    Field("metadata", dict[str, Any] | None, "comes back in the answer", handover=ALIKE),
    Field("parallel_tool_calls", bool | None, "guided output", handover=OF_TOOLS),
    Field("reasoning", Any, "effort goes into the template", kept=True, handover=ALIKE),
    Field("service_tier", Literal["auto", "default", "flex", "scale", "priority"],
          "the class of a request", handover=ALIKE),
    Field("stream", bool | None, "the router relays the stream", handover=TEXT),
    Field("temperature", float | None, "sampling", rule=sampling.TEMPERATURE, handover=ALIKE),
    Field("text", Any, "guided output", kept=True, rule=Rule("its schema: see sampling_params."
          "json_schema", _text), handover=GUIDED),
    Field("tool_choice", Any, "guided output", kept=True, handover=OF_TOOLS),
    Field("tools", Any, "their schemas can guide output", kept=True, rule=parts.TOOLS,
          handover=OF_TOOLS),
    Field("top_logprobs", int | None, "alternatives", rule=rules.TOP, default=0, handover=LOGPROBS),
    Field("top_p", float | None, "sampling", rule=sampling.TOP_P, handover=ALIKE),
    Field("truncation", Literal["auto", "disabled"] | None, "SGLang passes over it",
          handover=ALIKE),
    Field("user", str | None, "a person, for policies that route by it", rule=rules.NAME,
          handover=ALIKE),
    Field("chat_template_kwargs", dict[str, Any] | None, "variables of the template, and nothing "
          "else of what renders it", rule=content.TEMPLATE, handover=ALIKE),
    Field("frequency_penalty", float, "sampling", rule=sampling.FREQUENCY, handover=ALIKE),
    Field("presence_penalty", float, "sampling", rule=sampling.PRESENCE, handover=ALIKE),
    Field("stop", str | list[str] | None, "stop strings", rule=rules.STOP, handover=TEXT),
    Field("top_k", int | None, "sampling", rule=sampling.TOP_K, handover=ALIKE),
    Field("min_p", float | None, "sampling", rule=sampling.MIN_P, handover=ALIKE),
    Field("repetition_penalty", float | None, "sampling", rule=sampling.REPETITION, handover=ALIKE),
)  # fmt: skip
