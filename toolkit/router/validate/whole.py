"""The tables of /v1/embeddings, /v1/rerank, /v1/score and /v1/classify, which workers of
`mode: plain` answer where their model can."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator
from pydantic import Field as Bounds

from toolkit.router.validate import parts, reasons, rules
from toolkit.router.validate.adapters import MODEL
from toolkit.router.validate.field import Field, table
from toolkit.router.validate.limits import MAX_TOKENS
from toolkit.router.validate.shared import DROP, REFUSE


def _some(value: int | None) -> int | None:
    if value is not None and value < 1:
        raise ValueError("Value error, parameter top_n should be larger than 0.")
    return value


_OVERRIDES = "it goes past the tokenizer: any numbers into the model"
_TOKEN = "it acts on overrides of embeddings only"
_MODEL = Field("model", str, reasons.NAMED, rule=MODEL)
_PERSON = (
    Field("user", str | None, reasons.PERSON, rule=rules.NAME),
    Field("rid", Any, "SGLang wants one for each input, and the router has none", DROP),
    Field("priority", int | None, "one client could always go before all others", DROP,
          allow="priority", rule=rules.integer(-rules.INT64, rules.INT64 - 1)),
)  # fmt: skip


def _override(name: str) -> Field:
    return Field(name, Any, _OVERRIDES, REFUSE)


EMBEDDINGS = table(
    _MODEL,
    *_PERSON,
    Field("input", Any, reasons.NESTED, required=True, kept=True, rule=parts.EMBEDDED),
    Field("encoding_format", str, "it changes how this answer is written: float or base64"),
    Field("dimensions", int | None, "models that can give so many dimensions",
          rule=rules.integer(1, MAX_TOKENS)),
    Field("lora_path", list[str | None] | str | None, reasons.ADAPTERS, REFUSE, allow="lora",
          rule=rules.NAMES),
    Field("embed_override_token_id", int | None, _TOKEN, REFUSE),
    _override("embed_overrides"),
)  # fmt: skip
CLASSIFY = table(
    _MODEL,
    *_PERSON,
    Field("input", Any, reasons.NESTED, required=True, kept=True),
)
RERANK = table(
    Field("query", Any, reasons.NESTED, required=True, kept=True, rule=parts.DOCUMENTS),
    Field("documents", Any, reasons.NESTED, required=True, kept=True, rule=parts.DOCUMENTS),
    Field("instruct", str | None, reasons.PROMPT),
    Field(
        "top_n",
        Annotated[int | None, AfterValidator(_some)],
        reasons.OF_ANSWER,
        rule=rules.integer(1, MAX_TOKENS),
    ),
    Field("return_documents", bool, reasons.ANSWER),
    Field("rid", Any, "SGLang names these itself", DROP),
)
SCORE = table(
    _MODEL,
    Field("query", Any, reasons.NESTED, kept=True),
    Field("items", Any, reasons.NESTED, kept=True),
    Field("label_token_ids", Any, reasons.LOGITS, kept=True),
    Field("apply_softmax", bool, reasons.OF_ANSWER),
    Field("temperature", Annotated[float, Bounds(gt=0, allow_inf_nan=False)], reasons.OF_ANSWER,
          rule=rules.number(0, 1e6, "above 0",
          "temperature must be a positive finite number, got {}.", above=True)),
    Field("return_token_logprobs", bool, reasons.ANSWER),
    Field("item_first", bool, reasons.PROMPT),
    Field("return_pooled_hidden_states", bool, reasons.INSIDE, REFUSE,
          allow="hidden_states", default=False),
    Field("score_extraction_token", str | None, "it says where in the prompt the score is read",
          rule=rules.NAME),
    Field("embed_override_token_id", int | None, _TOKEN, REFUSE),
    _override("query_embed_overrides"),
    _override("item_embed_overrides"),
    Field("rid", Any, "SGLang names these itself", DROP),
)  # fmt: skip
