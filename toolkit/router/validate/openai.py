"""The tables of /v1/chat/completions and /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from toolkit.router.validate import content, guided, rules, sampling, shapes
from toolkit.router.validate.adapters import MODEL
from toolkit.router.validate.field import Field, table
from toolkit.router.validate.shared import CACHE, INSIDE, REFUSE, logit_processor, off
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
    Field("model", str, "workers check the name", rule=MODEL),
    Field("frequency_penalty", float, "sampling", rule=sampling.FREQUENCY),
    Field("presence_penalty", float, "sampling", rule=sampling.PRESENCE),
    Field("logit_bias", dict[str, float] | None, "indexes the logits", rule=rules.BIAS),
    Field("n", int, "the router splits it", rule=sampling.SAMPLES),
    Field("seed", int | None, "sampling", rule=sampling.SEED),
    Field("stop", str | list[str] | None, "stop strings", rule=rules.STOP),
    Field("stream", bool, "the router relays the stream"),
    Field("stream_options", shapes.StreamOptions | None, "the router adds usage up",
          quick=shapes.plain_options),
    Field("user", str | None, "a person, for policies that route by it", rule=rules.NAME),
    off("return_hidden_states", bool | Literal["last"], _HIDDEN, "hidden_states"),
    Field("return_cached_tokens_details", bool, _ANSWER),
    Field("return_spec_tokens_details", bool, _ANSWER),
    Field("return_token_ids", bool, _ANSWER),
    Field("min_tokens", int, "not more than the most", rule=sampling.LEAST),
    Field("regex", str | None, "guided output", rule=guided.REGEX),
    Field("ebnf", str | None, "guided output", rule=guided.EBNF),
    Field("response_format", shapes.AnyResponseFormat | None, "guided output", kept=True,
          rule=content.RESPONSE_FORMAT),
    Field("stop_token_ids", list[int] | None, "index the logits", rule=rules.STOP_IDS),
    Field("stop_regex", str | list[str] | None, "runs in the scheduler", rule=STOP_REGEX),
    Field("no_stop_trim", bool, "text only"),
    Field("ignore_eos", bool, "sampling"),
    Field("skip_special_tokens", bool, "text only"),
    Field("custom_params", dict[Any, Any] | None, "reaches patches and logit processors",
          rule=sampling.CUSTOM),
    Field("lora_path", _LIST_LORA, "which adapters there are is the deployment's business",
          REFUSE, allow="lora", rule=rules.NAMES),
    Field("images_config", dict[Any, Any] | None, _MEDIA, REFUSE, allow="media"),
    Field("rid", Any, "anything; the router makes its own for workers"),
)  # fmt: skip

COMPLETIONS = table(
    Field("prompt", list[int] | list[list[int]] | str | list[str], "its ids index the embedding",
          required=True, rule=content.PROMPT),
    *SHARED,
    logit_processor(str | None),
    Field("best_of", int | None, "SGLang does not rank samples"),
    Field("echo", bool, "the prompt, before the answer"),
    Field("logprobs", int | None, "alternatives; more than the vocabulary kills a scheduler",
          rule=rules.TOP),
    Field("max_tokens", Annotated[int, AfterValidator(_positive)], "the model's context bounds "
          "it too", rule=sampling.MOST, quick=lambda value: type(value) is int and value > 0),
    Field("suffix", str | None, "for models that complete within a text"),
    Field("temperature", float, "sampling", rule=sampling.TEMPERATURE),
    Field("top_p", float, "sampling", rule=sampling.TOP_P),
    Field("top_k", int, "sampling", rule=sampling.TOP_K),
    Field("min_p", float, "sampling", rule=sampling.MIN_P),
    Field("repetition_penalty", float, "sampling", rule=sampling.REPETITION),
    Field("json_schema", str | None, "guided output", rule=guided.JSON_SCHEMA),
)  # fmt: skip

CHAT = table(
    Field("messages", shapes.Messages, "media in it only where allowed", required=True,
          kept=True, rule=content.MESSAGES, quick=shapes.plain_messages),
    *SHARED,
    Field("logprobs", bool, _ANSWER),
    logit_processor(list[str | None] | str | None),
    Field("top_logprobs", int | None, "alternatives", rule=rules.TOP),
    Field("max_tokens", int | None, "the model's context bounds it too", rule=sampling.MOST),
    Field("max_completion_tokens", int | None, "the model's context bounds it too",
          rule=sampling.MOST),
    Field("temperature", float | None, "sampling", rule=sampling.TEMPERATURE),
    Field("top_p", float | None, "sampling", rule=sampling.TOP_P),
    Field("top_k", int | None, "sampling", rule=sampling.TOP_K),
    Field("min_p", float | None, "sampling", rule=sampling.MIN_P),
    Field("repetition_penalty", float | None, "sampling", rule=sampling.REPETITION),
    Field("tools", list[shapes.Tool] | None, "their schemas can guide output", kept=True,
          rule=content.TOOLS),
    Field("tool_choice", shapes.ToolChoice | Literal["auto", "required", "none"] | None,
          "guided output", kept=True),
    Field("parallel_tool_calls", bool, "guided output"),
    Field("return_prompt_token_ids", bool, _ANSWER),
    Field("return_meta_info", bool, _ANSWER),
    Field("return_input_ids_in_sglext", bool, _ANSWER),
    Field("return_output_ids_in_sglext", bool, _ANSWER),
    Field("return_sampling_mask", bool, _ANSWER),
    Field("sampling_logprobs_mode", Literal["selected", "support"] | None, _ANSWER),
    Field("reasoning_effort", shapes.ReasoningEffort, "goes into the template"),
    Field("reasoning", Any, "another spelling of reasoning_effort", rule=content.REASONING),
    Field("task", Literal["action", "query", "authority", "domain", "title", "read_url"] | None,
          "goes into the template"),
    Field("continue_final_message", bool, "goes into the template"),
    Field("separate_reasoning", bool, "how the answer is cut"),
    Field("stream_reasoning", bool, "how the answer is cut"),
    Field("chat_template_kwargs", dict[Any, Any] | None, "variables of the template, and nothing "
          "else of what renders it", rule=content.TEMPLATE),
    Field("max_dynamic_patch", int | None, _MEDIA, REFUSE, allow="media"),
    Field("min_dynamic_patch", int | None, _MEDIA, REFUSE, allow="media"),
    off("use_audio_in_video", bool, _MEDIA, "media"),
    Field("video_config", dict[Any, Any] | None, _MEDIA, REFUSE, allow="media"),
    Field("input_ids", list[int] | None, "index the embedding", rule=rules.IDS),
)  # fmt: skip
"""max_tokens of at most 2**31 - 1 reach the worker, which knows the prompt's length."""
