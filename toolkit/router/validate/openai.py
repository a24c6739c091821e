"""The tables of /v1/chat/completions and /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from toolkit.router.validate import content, guided, reasons, rules, sampling, shapes
from toolkit.router.validate.adapters import MODEL
from toolkit.router.validate.field import Fate, Field, table
from toolkit.router.validate.handover import (
    ALIKE,
    GUIDED,
    INSIDE_MODEL,
    LOGPROBS,
    NO_TEXT,
    OF_LOGPROBS,
    OF_TOOLS,
    PARAMETERS,
    PATTERN,
    SEEDED,
    TEXT,
    TOOLS,
    UNTRIED,
)
from toolkit.router.validate.shared import (
    CACHE,
    INSIDE,
    PROCESSING,
    REFUSE,
    WATERMARK,
    logit_processor,
    off,
)
from toolkit.router.validate.stop_regex import STOP_REGEX

_LIST_LORA = list[str | None] | str | None


def _positive(value: int) -> int:
    if value <= 0:
        raise ValueError("max_tokens must be positive")
    return value


SHARED: tuple[Field, ...] = (
    *INSIDE,
    *CACHE,
    Field("model", str, reasons.NAMED, rule=MODEL, handover=ALIKE),
    Field("frequency_penalty", float, reasons.DRAWN, rule=sampling.FREQUENCY, handover=ALIKE),
    Field("presence_penalty", float, reasons.DRAWN, rule=sampling.PRESENCE, handover=ALIKE),
    Field("logit_bias", dict[str, float] | None, reasons.LOGITS, rule=rules.BIAS,
          handover=ALIKE),
    Field("n", int, reasons.PARTS, rule=sampling.SAMPLES, handover=ALIKE),
    Field("seed", int | None, reasons.DRAWN, rule=sampling.SEED, handover=SEEDED),
    Field("stop", str | list[str] | None, reasons.STOPS, rule=rules.STOP, handover=TEXT),
    Field("stream", bool, reasons.STREAM, handover=TEXT),
    Field("stream_options", shapes.StreamOptions | None,
          "the router adds up the usage of all parts",
          quick=shapes.plain_options, handover=TEXT),
    Field("user", str | None, reasons.PERSON, rule=rules.NAME,
          handover=ALIKE),
    off("return_hidden_states", bool | Literal["last"], reasons.INSIDE, "hidden_states",
        handover=INSIDE_MODEL),
    Field("return_cached_tokens_details", bool, reasons.ANSWER, handover=UNTRIED),
    Field("return_spec_tokens_details", bool, reasons.ANSWER, handover=UNTRIED),
    Field("return_token_ids", bool, reasons.ANSWER, handover=TEXT),
    Field("min_tokens", int, reasons.LEAST, rule=sampling.LEAST, handover=ALIKE),
    Field("regex", str | None, reasons.GUIDES, rule=guided.REGEX, handover=GUIDED),
    Field("ebnf", str | None, reasons.GUIDES, rule=guided.EBNF, handover=GUIDED),
    Field("response_format", shapes.AnyResponseFormat | None, reasons.GUIDES, kept=True,
          rule=content.RESPONSE_FORMAT, handover=GUIDED),
    Field("stop_token_ids", list[int] | None, reasons.LOGITS, rule=rules.STOP_IDS,
          handover=TEXT),
    Field("stop_regex", str | list[str] | None, reasons.PATTERNS, rule=STOP_REGEX,
          handover=PATTERN),
    Field("no_stop_trim", bool, reasons.SHOWN, handover=TEXT),
    Field("ignore_eos", bool, reasons.ENDS, handover=ALIKE),
    Field("skip_special_tokens", bool, reasons.SHOWN, handover=TEXT),
    Field("custom_params", dict[Any, Any] | None, reasons.PARAMETERS,
          rule=sampling.CUSTOM, handover=PARAMETERS),
    Field("lora_path", _LIST_LORA, reasons.ADAPTERS,
          REFUSE, allow="lora", rule=rules.NAMES, handover=UNTRIED),
    Field("images_config", dict[Any, Any] | None, reasons.MEDIA, REFUSE, allow="media",
          handover=NO_TEXT),
    PROCESSING,
    Field("rid", Any, reasons.ANY_ID, handover=ALIKE),
    WATERMARK,
)  # fmt: skip

COMPLETIONS = table(
    Field("prompt", list[int] | list[list[int]] | str | list[str], reasons.EMBEDDING,
          required=True, rule=content.PROMPT, handover=ALIKE),
    *SHARED,
    logit_processor(str | None),
    Field("best_of", int | None, "SGLang does not rank samples", handover=ALIKE),
    Field("echo", bool, "it puts the prompt before the answer", handover=ALIKE),
    Field("logprobs", int | None, reasons.ALTERNATIVES,
          rule=rules.TOP, handover=LOGPROBS),
    Field("max_tokens", Annotated[int, AfterValidator(_positive)], reasons.LENGTH,
          rule=sampling.MOST, quick=lambda value: type(value) is int and value > 0,
          handover=ALIKE),
    Field("suffix", str | None, "models that complete within a text read it", handover=ALIKE),
    Field("temperature", float, reasons.DRAWN, rule=sampling.TEMPERATURE, handover=ALIKE),
    Field("top_p", float, reasons.DRAWN, rule=sampling.TOP_P, handover=ALIKE),
    Field("top_k", int, reasons.DRAWN, rule=sampling.TOP_K, handover=ALIKE),
    Field("min_p", float, reasons.DRAWN, rule=sampling.MIN_P, handover=ALIKE),
    Field("repetition_penalty", float, reasons.DRAWN, rule=sampling.REPETITION, handover=ALIKE),
    Field("json_schema", str | None, reasons.GUIDES, rule=guided.JSON_SCHEMA, handover=GUIDED),
)  # fmt: skip

CHAT = table(
    Field("messages", shapes.Messages,
          "the prompt; media in it only where the deployment allows them", required=True,
          kept=True, rule=content.MESSAGES, quick=shapes.plain_messages, handover=ALIKE),
    *SHARED,
    Field("logprobs", bool, reasons.ANSWER, handover=LOGPROBS),
    logit_processor(list[str | None] | str | None),
    Field("top_logprobs", int | None, reasons.ALTERNATIVES, rule=rules.TOP, default=0,
          handover=LOGPROBS),
    Field("max_tokens", int | None, reasons.LENGTH, rule=sampling.MOST,
          handover=ALIKE),
    Field("max_completion_tokens", int | None, reasons.LENGTH,
          rule=sampling.MOST, handover=ALIKE),
    Field("temperature", float | None, reasons.DRAWN, rule=sampling.TEMPERATURE, handover=ALIKE),
    Field("top_p", float | None, reasons.DRAWN, rule=sampling.TOP_P, handover=ALIKE),
    Field("top_k", int | None, reasons.DRAWN, rule=sampling.TOP_K, handover=ALIKE),
    Field("min_p", float | None, reasons.DRAWN, rule=sampling.MIN_P, handover=ALIKE),
    Field("repetition_penalty", float | None, reasons.DRAWN, rule=sampling.REPETITION,
          handover=ALIKE),
    Field("tools", list[shapes.Tool] | None, reasons.MAY_GUIDE, kept=True,
          rule=content.TOOLS, handover=TOOLS),
    Field("tool_choice", shapes.ToolChoice | Literal["auto", "required", "none"] | None,
          reasons.MAY_GUIDE, kept=True, handover=OF_TOOLS),
    Field("parallel_tool_calls", bool, reasons.MAY_GUIDE, handover=OF_TOOLS),
    Field("return_prompt_token_ids", bool, reasons.ANSWER, handover=TEXT),
    Field("return_meta_info", bool, reasons.ANSWER, handover=UNTRIED),
    Field("return_input_ids_in_sglext", bool, reasons.ANSWER, handover=UNTRIED),
    Field("return_output_ids_in_sglext", bool, reasons.ANSWER, handover=UNTRIED),
    Field("return_sampling_mask", bool, reasons.ANSWER, handover=INSIDE_MODEL),
    Field("sampling_logprobs_mode", Literal["selected", "support"] | None, reasons.ANSWER,
          handover=OF_LOGPROBS),
    Field("return_flat_raw_output_top_logprobs", bool, reasons.ANSWER, handover=OF_LOGPROBS),
    Field("return_flat_raw_top_logprobs_b64", bool, reasons.ANSWER, handover=OF_LOGPROBS),
    Field("reasoning_effort", shapes.ReasoningEffort, reasons.TEMPLATE, handover=ALIKE),
    Field("reasoning", Any, "another spelling of reasoning_effort, for the chat template",
          rule=content.REASONING,
          handover=ALIKE),
    # Clients of other servers send it as a habit, and an older SGLang passes over it.
    Field("thinking", Any, reasons.TEMPLATE, kept=True, handover=ALIKE,
          lacking=Fate.DROP),
    Field("task", Literal["action", "query", "authority", "domain", "title", "read_url"] | None,
          reasons.TEMPLATE, handover=UNTRIED),
    Field("continue_final_message", bool, reasons.TEMPLATE, handover=ALIKE),
    Field("separate_reasoning", bool, reasons.CUT, handover=TEXT),
    Field("stream_reasoning", bool, reasons.CUT, handover=TEXT),
    Field("chat_template_kwargs", dict[Any, Any] | None, reasons.VARIABLES, rule=content.TEMPLATE,
          handover=ALIKE),
    Field("max_dynamic_patch", int | None, reasons.MEDIA, REFUSE, allow="media", handover=NO_TEXT),
    Field("min_dynamic_patch", int | None, reasons.MEDIA, REFUSE, allow="media", handover=NO_TEXT),
    off("use_audio_in_video", bool, reasons.MEDIA, "media", handover=NO_TEXT),
    Field("video_config", dict[Any, Any] | None, reasons.MEDIA, REFUSE, allow="media",
          handover=NO_TEXT),
    Field("input_ids", list[int] | None, reasons.EMBEDDING, rule=rules.IDS, handover=ALIKE),
)  # fmt: skip
"""max_tokens of at most 2**31 - 1 reach the worker, which knows the prompt's length."""
