"""Rows of how tokens are drawn, where an answer ends and what guides it.

`sampling_params` are /generate's: null is a parameter's default there, except of n.
"""

from __future__ import annotations

from typing import Any

from toolkit.router.validate import content, guided, reasons, rules
from toolkit.router.validate.field import Fate, ValueRule, row
from toolkit.router.validate.handover import (
    ALIKE,
    BEAMS,
    BUDGET,
    GUIDED,
    MARKED,
    PARAMETERS,
    PATTERN,
    PROCESSOR,
    SEEDED,
    TEXT,
)
from toolkit.router.validate.limits import MAX_TOKENS, BodyLimits
from toolkit.router.validate.refusal import shown
from toolkit.router.validate.stop_regex import STOP_REGEX

TEMPERATURE = rules.number(
    0, 1e6, "of at least 0", "temperature must be a non-negative finite number, got {}."
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


def _custom(name: str, value: Any, limits: BodyLimits) -> str | None:
    if wrong := rules.OBJECT.wrong(name, value, limits):
        return wrong
    budget = value.get("thinking_budget")
    if budget is not None and (type(budget) is not int or not 0 <= budget <= MAX_TOKENS):
        return f"{name}.thinking_budget must be an integer of at least 0, got {shown(budget)}."
    return None


CUSTOM = ValueRule("object; keys toolkit* and __* are dropped, at any depth", _custom)
_OPENAI = "chat completions sampling_params"
_ALL = f"{_OPENAI} messages responses"


def _positive(value: Any) -> bool:
    return type(value) is int and value > 0


DRAWN = (
    row("temperature", _ALL, reasons.DRAWN, rule=TEMPERATURE, handover=ALIKE),
    row("top_p", _ALL, reasons.DRAWN, rule=TOP_P, handover=ALIKE),
    row("top_k", _ALL, "it goes into a 32-bit tensor: more would kill a scheduler", rule=TOP_K,
        handover=ALIKE),
    row("min_p", f"{_OPENAI} responses", reasons.DRAWN, rule=MIN_P, handover=ALIKE),
    row("frequency_penalty", f"{_OPENAI} responses", reasons.DRAWN, rule=FREQUENCY,
        handover=ALIKE),
    row("presence_penalty", f"{_OPENAI} responses", reasons.DRAWN, rule=PRESENCE, handover=ALIKE),
    row("repetition_penalty", f"{_OPENAI} responses", reasons.DRAWN, rule=REPETITION,
        handover=ALIKE),
    row("logit_bias", _OPENAI, reasons.LOGITS, rule=rules.BIAS, handover=ALIKE),
    row("seed", "chat completions", reasons.DRAWN, rule=SEED, handover=SEEDED),
    row("sampling_seed", "sampling_params", reasons.DRAWN, rule=SEED, handover=SEEDED),
    row("n", _OPENAI, "the router makes a request of each sample", rule=SAMPLES, handover=ALIKE),
    row("best_of", "completions", "SGLang does not rank samples", handover=ALIKE),
    row("beam_width", "sampling_params",
        "SGLang refuses more than 1 under prefill and decode apart",
        rule=rules.integer(1, MAX_TOKENS, "beam_width must be at least 1, got {}."),
        handover=BEAMS),
    row("watermark", _OPENAI, reasons.MARK, rule=rules.OBJECT, handover=MARKED),
    row("watermark", "generate", reasons.MARK, rule=rules.OBJECTS, handover=MARKED, each=True),
    row("custom_params", _OPENAI, "logit processors and the workers' patches read it", rule=CUSTOM,
        handover=PARAMETERS),
    row("custom_params", "messages responses count_tokens", "SGLang reads none here", Fate.DROP),
    row("custom_logit_processor", "chat completions generate", "pickled code that schedulers run",
        Fate.REFUSE, allow="logit_processor", handover=PROCESSOR, each=True),
    row("sampling_params", "generate", "each parameter has a row of its own",
        rule=content.SAMPLING_PARAMS, quick=lambda value: type(value) is dict, handover=ALIKE,
        each=True),
)  # fmt: skip
ENDED = (
    row("max_tokens", "chat completions messages", reasons.LENGTH, rule=MOST, quick=_positive,
        handover=ALIKE),
    row("max_completion_tokens", "chat", reasons.LENGTH, rule=MOST, handover=ALIKE),
    row("max_new_tokens", "sampling_params", reasons.LENGTH, rule=MOST, handover=ALIKE),
    row("max_output_tokens", "responses",
        "a client's choice of where its answer ends; SGLang takes 2 off it",
        rule=rules.integer(2, MAX_TOKENS), handover=ALIKE),
    row("min_tokens", "chat completions", reasons.LEAST, rule=LEAST, handover=ALIKE),
    row("min_new_tokens", "sampling_params", reasons.LEAST, rule=LEAST, handover=ALIKE),
    row("max_thinking_tokens", "generate", "workers say whether they can",
        rule=rules.integer(0, MAX_TOKENS), handover=BUDGET),
    row("require_reasoning", "generate", "it says when guided output begins", handover=BUDGET),
    row("ignore_eos", _OPENAI, "a client's choice of where its answer ends", rule=rules.FLAG,
        handover=ALIKE),
    row("stop", f"{_OPENAI} responses", reasons.STOPS, rule=rules.STOP, handover=TEXT),
    row("stop_sequences", "messages", reasons.STOPS, rule=rules.STOP, handover=TEXT),
    row("stop_token_ids", _OPENAI, reasons.LOGITS, rule=rules.STOP_IDS, handover=TEXT),
    row("stop_regex", _OPENAI,
        "the scheduler searches them after each token: a slow pattern would hold everybody up",
        rule=STOP_REGEX, handover=PATTERN),
    row("stop_strs stop_regex_strs stop_str_max_len stop_regex_max_len is_normalized "
        "ebnf_full_assistant", "sampling_params",
        "set by SGLang from others; a client's own would pass by its checks", Fate.REFUSE),
)  # fmt: skip
"""max_tokens of at most 2**31 - 1 reach the worker, which knows the prompt's length."""
GUIDES = (
    row("json_schema", "completions sampling_params", reasons.GUIDES, rule=guided.JSON_SCHEMA,
        handover=GUIDED),
    row("regex", _OPENAI, reasons.GUIDES, rule=guided.REGEX, handover=GUIDED),
    row("ebnf", _OPENAI, reasons.GUIDES, rule=guided.EBNF, handover=GUIDED),
    row("structural_tag", "sampling_params", reasons.GUIDES, rule=guided.STRUCTURAL_TAG,
        handover=GUIDED),
    row("response_format", "chat completions", reasons.GUIDES, kept=True,
        rule=content.RESPONSE_FORMAT, handover=GUIDED),
    row("text", "responses", reasons.GUIDES, unread=True, rule=content.TEXT_FORMAT,
        handover=GUIDED),
)  # fmt: skip
