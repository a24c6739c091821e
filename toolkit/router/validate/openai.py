"""The tables of /v1/chat/completions and /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from toolkit.router.validate import content, guided, rules, sampling, shapes
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

_MEDIA = "belongs to media"
_ANSWER = "adds to the answer"
_HIDDEN = "the model's inside, and large"
_LIST_LORA = list[str | None] | str | None


def _positive(value: int) -> int:
    if value <= 0:
        raise ValueError("max_tokens must be positive")
    return value


SHARED: tuple[Field, ...] = (
    *INSIDE,
    *CACHE,
    Field("model", str, "workers check the name", rule=MODEL, handover=ALIKE),
    Field("frequency_penalty", float, "sampling", rule=sampling.FREQUENCY, handover=ALIKE),
    Field("presence_penalty", float, "sampling", rule=sampling.PRESENCE, handover=ALIKE),
    Field("logit_bias", dict[str, float] | None, "indexes the logits", rule=rules.BIAS,
          handover=ALIKE),
    Field("n", int, "the router splits it", rule=sampling.SAMPLES, handover=ALIKE),
    Field("seed", int | None, "sampling", rule=sampling.SEED, handover=SEEDED),
    Field("stop", str | list[str] | None, "stop strings", rule=rules.STOP, handover=TEXT),
    Field("stream", bool, "the router relays the stream", handover=TEXT),
    Field("stream_options", shapes.StreamOptions | None, "the router adds usage up",
          quick=shapes.plain_options, handover=TEXT),
    Field("user", str | None, "a person, for policies that route by it", rule=rules.NAME,
          handover=ALIKE),
    off("return_hidden_states", bool | Literal["last"], _HIDDEN, "hidden_states",
        handover=INSIDE_MODEL),
    Field("return_cached_tokens_details", bool, _ANSWER, handover=UNTRIED),
    Field("return_spec_tokens_details", bool, _ANSWER, handover=UNTRIED),
    Field("return_token_ids", bool, _ANSWER, handover=TEXT),
    Field("min_tokens", int, "not more than the most", rule=sampling.LEAST, handover=ALIKE),
    Field("regex", str | None, "guided output", rule=guided.REGEX, handover=GUIDED),
    Field("ebnf", str | None, "guided output", rule=guided.EBNF, handover=GUIDED),
    Field("response_format", shapes.AnyResponseFormat | None, "guided output", kept=True,
          rule=content.RESPONSE_FORMAT, handover=GUIDED),
    Field("stop_token_ids", list[int] | None, "index the logits", rule=rules.STOP_IDS,
          handover=TEXT),
    Field("stop_regex", str | list[str] | None, "runs in the scheduler", rule=STOP_REGEX,
          handover=PATTERN),
    Field("no_stop_trim", bool, "text only", handover=TEXT),
    Field("ignore_eos", bool, "sampling", handover=ALIKE),
    Field("skip_special_tokens", bool, "text only", handover=TEXT),
    Field("custom_params", dict[Any, Any] | None, "reaches patches and logit processors",
          rule=sampling.CUSTOM, handover=PARAMETERS),
    Field("lora_path", _LIST_LORA, "which adapters there are is the deployment's business",
          REFUSE, allow="lora", rule=rules.NAMES, handover=UNTRIED),
    Field("images_config", dict[Any, Any] | None, _MEDIA, REFUSE, allow="media", handover=NO_TEXT),
    PROCESSING,
    Field("rid", Any, "anything; the router makes its own for workers", handover=ALIKE),
    WATERMARK,
)  # fmt: skip

COMPLETIONS = table(
    Field("prompt", list[int] | list[list[int]] | str | list[str], "its ids index the embedding",
          required=True, rule=content.PROMPT, handover=ALIKE),
    *SHARED,
    logit_processor(str | None),
    Field("best_of", int | None, "SGLang does not rank samples", handover=ALIKE),
    Field("echo", bool, "the prompt, before the answer", handover=ALIKE),
    Field("logprobs", int | None, "alternatives; more than the vocabulary kills a scheduler",
          rule=rules.TOP, handover=LOGPROBS),
    Field("max_tokens", Annotated[int, AfterValidator(_positive)], "the model's context bounds "
          "it too", rule=sampling.MOST, quick=lambda value: type(value) is int and value > 0,
          handover=ALIKE),
    Field("suffix", str | None, "for models that complete within a text", handover=ALIKE),
    Field("temperature", float, "sampling", rule=sampling.TEMPERATURE, handover=ALIKE),
    Field("top_p", float, "sampling", rule=sampling.TOP_P, handover=ALIKE),
    Field("top_k", int, "sampling", rule=sampling.TOP_K, handover=ALIKE),
    Field("min_p", float, "sampling", rule=sampling.MIN_P, handover=ALIKE),
    Field("repetition_penalty", float, "sampling", rule=sampling.REPETITION, handover=ALIKE),
    Field("json_schema", str | None, "guided output", rule=guided.JSON_SCHEMA, handover=GUIDED),
)  # fmt: skip

CHAT = table(
    Field("messages", shapes.Messages, "media in it only where allowed", required=True,
          kept=True, rule=content.MESSAGES, quick=shapes.plain_messages, handover=ALIKE),
    *SHARED,
    Field("logprobs", bool, _ANSWER, handover=LOGPROBS),
    logit_processor(list[str | None] | str | None),
    Field("top_logprobs", int | None, "alternatives", rule=rules.TOP, default=0, handover=LOGPROBS),
    Field("max_tokens", int | None, "the model's context bounds it too", rule=sampling.MOST,
          handover=ALIKE),
    Field("max_completion_tokens", int | None, "the model's context bounds it too",
          rule=sampling.MOST, handover=ALIKE),
    Field("temperature", float | None, "sampling", rule=sampling.TEMPERATURE, handover=ALIKE),
    Field("top_p", float | None, "sampling", rule=sampling.TOP_P, handover=ALIKE),
    Field("top_k", int | None, "sampling", rule=sampling.TOP_K, handover=ALIKE),
    Field("min_p", float | None, "sampling", rule=sampling.MIN_P, handover=ALIKE),
    Field("repetition_penalty", float | None, "sampling", rule=sampling.REPETITION, handover=ALIKE),
    Field("tools", list[shapes.Tool] | None, "their schemas can guide output", kept=True,
          rule=content.TOOLS, handover=OF_TOOLS),
    Field("tool_choice", shapes.ToolChoice | Literal["auto", "required", "none"] | None,
          "guided output", kept=True, handover=OF_TOOLS),
    Field("parallel_tool_calls", bool, "guided output", handover=OF_TOOLS),
    Field("return_prompt_token_ids", bool, _ANSWER, handover=TEXT),
    Field("return_meta_info", bool, _ANSWER, handover=UNTRIED),
    Field("return_input_ids_in_sglext", bool, _ANSWER, handover=UNTRIED),
    Field("return_output_ids_in_sglext", bool, _ANSWER, handover=UNTRIED),
    Field("return_sampling_mask", bool, _ANSWER, handover=INSIDE_MODEL),
    Field("sampling_logprobs_mode", Literal["selected", "support"] | None, _ANSWER,
          handover=OF_LOGPROBS),
    Field("return_flat_raw_output_top_logprobs", bool, _ANSWER, handover=OF_LOGPROBS),
    Field("return_flat_raw_top_logprobs_b64", bool, _ANSWER, handover=OF_LOGPROBS),
    Field("reasoning_effort", shapes.ReasoningEffort, "goes into the template", handover=ALIKE),
    Field("reasoning", Any, "another spelling of reasoning_effort", rule=content.REASONING,
          handover=ALIKE),
    # Clients of other servers send it as a habit, and an older SGLang passes over it.
    Field("thinking", Any, "goes into the template", kept=True, handover=ALIKE,
          lacking=Fate.DROP),
    Field("task", Literal["action", "query", "authority", "domain", "title", "read_url"] | None,
          "goes into the template", handover=UNTRIED),
    Field("continue_final_message", bool, "goes into the template", handover=ALIKE),
    Field("separate_reasoning", bool, "how the answer is cut", handover=TEXT),
    Field("stream_reasoning", bool, "how the answer is cut", handover=TEXT),
    Field("chat_template_kwargs", dict[Any, Any] | None, "variables of the template, and nothing "
          "else of what renders it", rule=content.TEMPLATE, handover=ALIKE),
    Field("max_dynamic_patch", int | None, _MEDIA, REFUSE, allow="media", handover=NO_TEXT),
    Field("min_dynamic_patch", int | None, _MEDIA, REFUSE, allow="media", handover=NO_TEXT),
    off("use_audio_in_video", bool, _MEDIA, "media", handover=NO_TEXT),
    Field("video_config", dict[Any, Any] | None, _MEDIA, REFUSE, allow="media", handover=NO_TEXT),
    Field("input_ids", list[int] | None, "index the embedding", rule=rules.IDS, handover=ALIKE),
)  # fmt: skip
"""max_tokens of at most 2**31 - 1 reach the worker, which knows the prompt's length."""
