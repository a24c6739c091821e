"""The table of /generate (`GenerateReqInput`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import PlainValidator

from toolkit.router.validate import content, reasons, rules, sampling
from toolkit.router.validate.field import Field, table
from toolkit.router.validate.handover import (
    ALIKE,
    BUDGET,
    INSIDE_MODEL,
    LOGPROBS,
    MARKED,
    NO_TEXT,
    OF_LOGPROBS,
    TEXT,
    UNTRIED,
)
from toolkit.router.validate.limits import MAX_TOKENS
from toolkit.router.validate.shared import (
    CACHE,
    DROP,
    INSIDE,
    PROCESSING,
    REFUSE,
    logit_processor,
    off,
)

_MEDIA = "workers open the file or fetch the URL that it names"
_INSIDE = "SGLang's processes tell it each other"
_SCORING = "for scoring models through other endpoints"

Ids = Annotated[list[list[int]] | list[int] | None, PlainValidator(content.ids)]

GENERATE = table(
    *INSIDE,
    *CACHE,
    Field("rid", Any, reasons.ANY_ID, handover=ALIKE),
    Field("text", list[str] | str | None, reasons.PROMPT, rule=content.TEXT, handover=ALIKE),
    Field("input_ids", Ids, reasons.EMBEDDING, rule=rules.IDS, handover=ALIKE),
    Field("input_embeds", list[list[list[float]]] | list[list[float]] | None,
          "it goes past the tokenizer: any numbers into the model", REFUSE, allow="input_embeds",
          handover=NO_TEXT),
    Field("image_data", Any, _MEDIA, REFUSE, allow="media", rule=content.MEDIA, handover=NO_TEXT),
    Field("video_data", Any, _MEDIA, REFUSE, allow="media", rule=content.MEDIA, handover=NO_TEXT),
    Field("audio_data", Any, _MEDIA, REFUSE, allow="media", rule=content.MEDIA, handover=NO_TEXT),
    Field("mm_data_mooncake", Any, _INSIDE, DROP),
    PROCESSING,
    Field("mm_hashes", list[str] | list[list[str]] | None,
          "a client could name the cache entry of another's image", REFUSE),
    Field("mm_content_hashes", list[str | None] | list[list[str | None]] | None,
          "a client could name the cache entry of another's image", REFUSE),
    off("use_audio_in_video", bool, reasons.MEDIA, "media", handover=NO_TEXT),
    Field("video_config", dict[str, Any] | None, reasons.MEDIA, REFUSE, allow="media",
          handover=NO_TEXT),
    Field("sampling_params", list[dict[str, Any]] | dict[str, Any] | None,
          "each parameter has a row of its own", rule=content.SAMPLING_PARAMS,
          quick=lambda value: type(value) is dict,
          handover=ALIKE),
    Field("return_logprob", list[bool] | bool | None, reasons.ANSWER, handover=LOGPROBS),
    Field("logprob_start_len", list[int] | int | None, reasons.ANSWER, rule=rules.each_from(-1),
          handover=OF_LOGPROBS),
    Field("top_logprobs_num", list[int] | int | None, reasons.ALTERNATIVES, rule=rules.TOP,
          default=0, handover=LOGPROBS),
    Field("token_ids_logprob", list[list[int]] | list[int] | None, reasons.LOGITS,
          rule=rules.LOGPROB_IDS, handover=LOGPROBS),
    Field("return_sampling_mask", list[bool] | bool | None, reasons.ANSWER, handover=INSIDE_MODEL),
    Field("sampling_logprobs_mode", list[Literal["selected", "support"] | None]
          | Literal["selected", "support"] | None, reasons.ANSWER, handover=OF_LOGPROBS),
    Field("return_text_in_logprobs", bool, reasons.ANSWER, handover=OF_LOGPROBS),
    Field("return_flat_raw_top_logprobs", bool, reasons.ANSWER, handover=OF_LOGPROBS),
    Field("return_flat_raw_top_logprobs_b64", bool, reasons.ANSWER, handover=OF_LOGPROBS),
    Field("return_flat_raw_output_top_logprobs", bool, reasons.ANSWER, handover=OF_LOGPROBS),
    Field("watermark", Any, reasons.MARK, rule=sampling.OBJECTS,
          handover=MARKED),
    Field("stream", bool, reasons.STREAM, handover=TEXT),
    Field("log_metrics", Any, "would keep a request out of the deployment's figures", DROP),
    off("return_hidden_states", list[bool | Literal["last"]] | bool | Literal["last"],
        reasons.INSIDE, "hidden_states", handover=INSIDE_MODEL),
    off("return_indexer_topk", bool, "SGLang's own are wrong under prefill and decode apart",
        "routed_experts", handover=INSIDE_MODEL),
    Field("modalities", list[str] | None, reasons.MEDIA, REFUSE, allow="media", handover=NO_TEXT),
    Field("lora_path", list[str | None] | str | None, reasons.ADAPTERS, REFUSE, allow="lora",
          rule=rules.NAMES, handover=UNTRIED),
    logit_processor(list[str | None] | str | None),
    Field("lora_id", Any, _INSIDE, DROP),
    Field("positional_embed_overrides", Any,
          "it goes past the tokenizer: any numbers into the model",
          REFUSE),
    Field("bootstrap_pair_key", Any, _INSIDE, DROP),
    Field("decode_tp_size", Any, _INSIDE, DROP),
    Field("routing_key", str | None, reasons.CONVERSATION, rule=rules.NAME,
          handover=ALIKE),
    Field("conversation_id", str | None, reasons.CONVERSATION, rule=rules.NAME, handover=ALIKE),
    Field("http_worker_ipc", Any, _INSIDE + ": where answers go", DROP),
    Field("require_reasoning", bool, "it says when guided output begins", handover=BUDGET),
    Field("max_thinking_tokens", int | None, "workers say whether they can",
          rule=rules.integer(0, MAX_TOKENS), handover=BUDGET),
    Field("no_logs", bool, "it asks for less logging of this request", handover=ALIKE),
    Field("return_bytes", Any, _INSIDE, DROP),
    Field("return_entropy", bool, reasons.ANSWER, handover=INSIDE_MODEL),
    Field("return_prompt_token_ids", bool, reasons.ANSWER, handover=TEXT),
    Field("external_trace_header", Any, "the header traceparent does it", DROP),
    Field("received_time", Any, "of the worker's clock", DROP),
    Field("need_wait_for_mm_inputs", Any, _INSIDE, DROP),
    Field("num_items_assigned", Any, _INSIDE, DROP),
    Field("encoder_urls", Any, _INSIDE + ": workers would fetch from there", DROP),
    Field("max_dynamic_patch", int | None, reasons.MEDIA, REFUSE, allow="media", handover=NO_TEXT),
    Field("min_dynamic_patch", int | None, reasons.MEDIA, REFUSE, allow="media", handover=NO_TEXT),
    Field("image_max_dynamic_patch", int | None, reasons.MEDIA, REFUSE, allow="media",
          handover=NO_TEXT),
    Field("video_max_dynamic_patch", int | None, reasons.MEDIA, REFUSE, allow="media",
          handover=NO_TEXT),
    Field("images_config", dict[Any, Any] | None, reasons.MEDIA, REFUSE, allow="media",
          handover=NO_TEXT),
    Field("multi_item_delimiter_indices", Any, _SCORING, REFUSE),
    Field("token_indices_to_pool", Any, _SCORING, REFUSE),
    Field("kv_hints", Any, "SGLang: never by an application client", DROP),
)  # fmt: skip
