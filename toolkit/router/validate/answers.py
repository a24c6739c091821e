"""Rows of what comes back, and of whose request it is."""

from __future__ import annotations

from typing import Any

from toolkit.router.validate import reasons, rules
from toolkit.router.validate.field import Fate, ValueRule, row
from toolkit.router.validate.handover import (
    ALIKE,
    INSIDE_MODEL,
    LOGPROBS,
    OF_LOGPROBS,
    TEXT,
    UNTRIED,
)
from toolkit.router.validate.limits import MAX_TOKENS, BodyLimits

_STATE = "workers keep no answers, and share none: send the whole conversation in `input`"
_EXPERTS = "SGLang's own are wrong under prefill and decode apart"
_START = rules.of_each(rules.integer(-1, MAX_TOKENS), "integer from -1 to 2**31 - 1")
_OPENAI = "chat completions"
_SPLIT = f"{_OPENAI} generate"


def _plain_options(value: Any) -> bool:
    """What nearly everybody asks for."""
    return type(value) is dict and len(value) == 1 and type(value.get("include_usage")) is bool


def _not_kept(name: str, value: Any, limits: BodyLimits) -> str | None:
    return f"store: true is not taken from clients: {_STATE}, and no `store`." if value else None


WRITTEN = (
    row("stream", f"{_SPLIT} messages responses", "the router relays the stream", handover=TEXT),
    row("stream_options", _OPENAI, "the router adds up the usage of all parts",
        quick=_plain_options, handover=TEXT),
    row("stream_interval", "sampling_params",
        "the scheduler divides by it: 0 would end the scheduler",
        rule=rules.integer(1, MAX_TOKENS), handover=TEXT),
    row("no_stop_trim skip_special_tokens", f"{_OPENAI} sampling_params", reasons.SHOWN,
        rule=rules.FLAG, handover=TEXT),
    row("spaces_between_special_tokens", "sampling_params", reasons.SHOWN, rule=rules.FLAG,
        handover=TEXT),
    row("return_token_ids", _OPENAI, reasons.ANSWER, handover=TEXT),
    row("return_prompt_token_ids", "chat generate", reasons.ANSWER, handover=TEXT),
    row("return_cached_tokens_details return_spec_tokens_details", _OPENAI, reasons.ANSWER,
        handover=UNTRIED),
    row("return_meta_info return_input_ids_in_sglext return_output_ids_in_sglext", "chat",
        reasons.ANSWER, handover=UNTRIED),
    row("include", "responses", reasons.ANSWER, unread=True, handover=ALIKE),
)  # fmt: skip
COMPUTED = (
    row("logprobs", "chat", reasons.ANSWER, handover=LOGPROBS),
    row("logprobs", "completions", reasons.ALTERNATIVES, rule=rules.TOP, handover=LOGPROBS),
    row("top_logprobs", "chat responses", reasons.ALTERNATIVES, rule=rules.TOP, default=0,
        handover=LOGPROBS),
    row("top_logprobs_num", "generate", reasons.ALTERNATIVES, rule=rules.TOP, default=0,
        handover=LOGPROBS, each=True),
    row("return_logprob", "generate", reasons.ANSWER, handover=LOGPROBS, each=True),
    row("token_ids_logprob", "generate", reasons.LOGITS, rule=rules.LOGPROB_IDS,
        handover=LOGPROBS),
    row("logprob_start_len", "generate", reasons.ANSWER, rule=_START,
        handover=OF_LOGPROBS, each=True),
    row("sampling_logprobs_mode", "chat generate", reasons.ANSWER, handover=OF_LOGPROBS,
        each=True),
    row("return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64", "chat generate",
        reasons.ANSWER, handover=OF_LOGPROBS),
    row("return_text_in_logprobs return_flat_raw_top_logprobs", "generate", reasons.ANSWER,
        handover=OF_LOGPROBS),
    row("return_sampling_mask", "chat generate", reasons.ANSWER, handover=INSIDE_MODEL, each=True),
    row("return_entropy", "generate", reasons.ANSWER, handover=INSIDE_MODEL),
    row("return_hidden_states", _SPLIT, reasons.INSIDE, Fate.REFUSE, allow="hidden_states",
        handover=INSIDE_MODEL, each=True),
    row("return_routed_experts", f"{_SPLIT} responses", _EXPERTS, Fate.REFUSE,
        allow="routed_experts", handover=INSIDE_MODEL),
    row("return_indexer_topk", "generate", _EXPERTS, Fate.REFUSE, allow="routed_experts",
        handover=INSIDE_MODEL),
    row("routed_experts_start_len", f"{_SPLIT} responses", "it acts on return_routed_experts only",
        Fate.DROP, allow="routed_experts", rule=rules.integer(0, MAX_TOKENS),
        handover=INSIDE_MODEL),
)  # fmt: skip
WHOSE = (
    row("rid", f"{_SPLIT} messages count_tokens", reasons.ANY_ID, unread=True, handover=ALIKE),
    row("rid", "embeddings classify rerank score",
        "SGLang names these itself, or wants an id for each input", Fate.DROP),
    row("request_id", "responses", reasons.ANY_ID, rule=rules.NAME, handover=ALIKE),
    row("user", f"{_OPENAI} responses embeddings classify", reasons.PERSON, rule=rules.NAME,
        handover=ALIKE),
    row("metadata", "messages", "user_id names a person, for policies that route by it",
        handover=ALIKE),
    row("metadata", "responses", reasons.BACK, handover=ALIKE),
    row("session_id", f"{_SPLIT} responses", reasons.CONVERSATION, rule=rules.NAME,
        handover=ALIKE),
    row("routing_key conversation_id", "generate", reasons.CONVERSATION, rule=rules.NAME,
        handover=ALIKE),
    row("extra_key cache_salt", f"{_SPLIT} responses", "it keeps prefixes of the cache apart",
        rule=rules.NAMES, handover=ALIKE, each=True),
    row("priority", f"{_SPLIT} responses embeddings classify",
        "one client could always go before all others", Fate.DROP, allow="priority",
        rule=rules.integer(-rules.INT64, rules.INT64 - 1), handover=ALIKE),
    row("service_tier", "responses", "it says the class of a request", handover=ALIKE),
    row("custom_labels", f"{_SPLIT} responses",
        "each value is another series of metrics, kept for ever", Fate.DROP, allow="labels",
        handover=ALIKE),
    row("no_logs", "generate", "it asks for less logging of this request", handover=ALIKE),
    row("betas", "messages count_tokens", reasons.IGNORED, handover=ALIKE),
    row("truncation", "responses", reasons.IGNORED, handover=ALIKE),
)  # fmt: skip
KEPT = (
    row("store", "responses", reasons.BACK, rule=ValueRule("false", _not_kept), handover=ALIKE),
    row("background previous_response_id conversation", "responses", _STATE, Fate.REFUSE),
    row("background", _SPLIT, "SGLang would not look whether the client is still there",
        Fate.DROP),
    row("session_params", f"{_SPLIT} responses",
        "a session lives in one worker, requests go to any", Fate.REFUSE),
)  # fmt: skip
