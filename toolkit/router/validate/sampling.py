"""Sampling parameters: the table of /generate's, and the rules that the OpenAI endpoints share."""

from __future__ import annotations

from typing import Any

from toolkit.router.validate import guided, reasons, rules
from toolkit.router.validate.field import Fate, Field, Rule, table
from toolkit.router.validate.handover import (
    ALIKE,
    BEAMS,
    GUIDED,
    MARKED,
    PARAMETERS,
    PATTERN,
    SEEDED,
    TEXT,
)
from toolkit.router.validate.limits import MAX_TOKENS, Limits
from toolkit.router.validate.refusal import shown
from toolkit.router.validate.stop_regex import STOP_REGEX

TEMPERATURE = rules.number(
    0,
    1e6,
    "of at least 0",
    "temperature must be a non-negative finite number, got {}.",
)
TOP_P = rules.number(0, 1, "in (0, 1]", "top_p must be in (0, 1], got {}.", above=True)
MIN_P = rules.number(0, 1, "in [0, 1]", "min_p must be in [0, 1], got {}.")
TOP_K = rules.integer(1, MAX_TOKENS, "top_k must be -1 (disable) or at least 1, got {}.", also=-1)
FREQUENCY = rules.number(-2, 2, "in [-2, 2]", "frequency_penalty must be in [-2, 2], got {}.")
PRESENCE = rules.number(-2, 2, "in [-2, 2]", "presence_penalty must be in [-2, 2], got {}.")
REPETITION = rules.number(
    0,
    2,
    "in (0, 2]",
    "repetition_penalty must be in (0, 2] (1.0 = no penalty), got {}.",
    above=True,
)
MOST = rules.integer(0, MAX_TOKENS, "max_new_tokens must be at least 0, got {}.")
LEAST = rules.integer(0, MAX_TOKENS, "min_new_tokens must be in [0, max_new_tokens], got {}.")
SEED = rules.integer(-rules.INT64, rules.INT64 - 1)
SAMPLES = rules.integer(1, 2**20, "n must be at least 1, got {}.")


def _custom(name: str, value: Any, limits: Limits) -> str | None:
    if not isinstance(value, dict):
        return f"{name} must be an object, got {shown(value)}."
    budget = value.get("thinking_budget")
    if budget is not None and (type(budget) is not int or not 0 <= budget <= MAX_TOKENS):
        return f"{name}.thinking_budget must be an integer of at least 0, got {shown(budget)}."
    return None


CUSTOM = Rule("object; keys toolkit* and __* are dropped, at any depth", _custom)


def _object(name: str, value: Any, limits: Limits) -> str | None:
    return None if isinstance(value, dict) else f"{name} must be an object, got {shown(value)}."


def _objects(name: str, value: Any, limits: Limits) -> str | None:
    each = value if isinstance(value, list) else [value]
    return next(
        (why for one in each if one is not None and (why := _object(name, one, limits))), None
    )


OBJECT = Rule("object", _object)
OBJECTS = Rule("object, or a list with one for each prompt", _objects)

_SENT = "set by SGLang from others; a client's own would pass by its checks"

SAMPLING = table(
    Field("max_new_tokens", int | None, reasons.LENGTH, rule=MOST,
          handover=ALIKE),
    Field("stop", str | list[str] | None, reasons.STOPS, rule=rules.STOP, handover=TEXT),
    Field("stop_token_ids", set[int] | None, reasons.LOGITS, rule=rules.STOP_IDS,
          handover=TEXT),
    Field("stop_regex", str | list[str] | None, reasons.PATTERNS, rule=STOP_REGEX,
          handover=PATTERN),
    Field("temperature", float, reasons.DRAWN, rule=TEMPERATURE, handover=ALIKE),
    Field("top_p", float, reasons.DRAWN, rule=TOP_P, handover=ALIKE),
    Field("top_k", int, "it goes into a 32-bit tensor: more would kill a scheduler", rule=TOP_K,
          handover=ALIKE),
    Field("min_p", float, reasons.DRAWN, rule=MIN_P, handover=ALIKE),
    Field("frequency_penalty", float, reasons.DRAWN, rule=FREQUENCY, handover=ALIKE),
    Field("presence_penalty", float, reasons.DRAWN, rule=PRESENCE, handover=ALIKE),
    Field("repetition_penalty", float, reasons.DRAWN, rule=REPETITION, handover=ALIKE),
    Field("min_new_tokens", int, reasons.LEAST, rule=LEAST, handover=ALIKE),
    Field("n", int, reasons.PARTS, rule=SAMPLES, handover=ALIKE),
    Field("beam_width", int | None, "SGLang refuses more than 1 under prefill and decode apart",
          rule=rules.integer(1, MAX_TOKENS, "beam_width must be at least 1, got {}."),
          handover=BEAMS),
    Field("json_schema", str | None, reasons.GUIDES, rule=guided.JSON_SCHEMA, handover=GUIDED),
    Field("regex", str | None, reasons.GUIDES, rule=guided.REGEX, handover=GUIDED),
    Field("ebnf", str | None, reasons.GUIDES, rule=guided.EBNF, handover=GUIDED),
    Field("structural_tag", str | None, reasons.GUIDES, rule=guided.STRUCTURAL_TAG,
          handover=GUIDED),
    Field("ignore_eos", bool, reasons.ENDS, rule=rules.FLAG, handover=ALIKE),
    Field("skip_special_tokens", bool, reasons.SHOWN, rule=rules.FLAG, handover=TEXT),
    Field("spaces_between_special_tokens", bool, reasons.SHOWN, rule=rules.FLAG, handover=TEXT),
    Field("no_stop_trim", bool, reasons.SHOWN, rule=rules.FLAG, handover=TEXT),
    Field("stream_interval", int | None, "the scheduler divides by it: 0 would end the scheduler",
          rule=rules.integer(1, MAX_TOKENS),
          handover=TEXT),
    Field("logit_bias", dict[str, float] | None, reasons.LOGITS,
          rule=rules.BIAS, handover=ALIKE),
    Field("sampling_seed", int | None, reasons.DRAWN, rule=SEED, handover=SEEDED),
    Field("custom_params", dict[str, Any] | None, reasons.PARAMETERS,
          rule=CUSTOM, handover=PARAMETERS),
    Field("watermark", dict[str, Any] | None, reasons.MARK,
          rule=OBJECT, handover=MARKED),
    Field("stop_strs", Any, _SENT, Fate.REFUSE),
    Field("stop_regex_strs", Any, _SENT, Fate.REFUSE),
    Field("stop_str_max_len", Any, _SENT, Fate.REFUSE, default=0),
    Field("stop_regex_max_len", Any, _SENT, Fate.REFUSE, default=0),
    Field("is_normalized", Any, _SENT, Fate.REFUSE, default=False),
    Field("ebnf_full_assistant", Any, _SENT, Fate.REFUSE, default=False),
)  # fmt: skip
"""`sampling_params` of /generate; null is a parameter's default, except of n."""
