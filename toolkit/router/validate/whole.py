"""Rows of /v1/embeddings, /v1/rerank, /v1/score and /v1/classify alone, which workers of
`mode: plain` answer where their model can."""

from __future__ import annotations

from toolkit.router.validate import media, reasons, rules
from toolkit.router.validate.field import Fate, row
from toolkit.router.validate.limits import MAX_TOKENS

_CHANGES = "it changes this answer only"

WHOLE = (
    row("input", "embeddings", reasons.NESTED, unread=True, rule=media.EMBEDDED),
    row("input", "classify", reasons.NESTED, unread=True),
    row("encoding_format", "embeddings",
        "it changes how this answer is written: float or base64"),
    row("dimensions", "embeddings", "models that can give so many dimensions",
        rule=rules.integer(1, MAX_TOKENS)),
    row("embed_override_token_id", "embeddings score", "it acts on overrides of embeddings only",
        Fate.REFUSE),
    row("embed_overrides", "embeddings", reasons.EMBEDS, Fate.REFUSE),
    row("query_embed_overrides item_embed_overrides", "score", reasons.EMBEDS, Fate.REFUSE),
    row("query documents", "rerank", reasons.NESTED, unread=True, rule=media.DOCUMENTS),
    row("instruct", "rerank", reasons.PROMPT),
    row("top_n", "rerank", _CHANGES, rule=rules.integer(1, MAX_TOKENS)),
    row("return_documents", "rerank", reasons.ANSWER),
    row("query items", "score", reasons.NESTED, unread=True),
    row("label_token_ids", "score", reasons.LOGITS, unread=True),
    row("apply_softmax", "score", _CHANGES),
    row("temperature", "score", _CHANGES,
        rule=rules.number(0, 1e6, "above 0",
                          "temperature must be a positive finite number, got {}.", above=True)),
    row("return_token_logprobs", "score", reasons.ANSWER),
    row("item_first", "score", reasons.PROMPT),
    row("return_pooled_hidden_states", "score", reasons.INSIDE, Fate.REFUSE,
        allow="hidden_states"),
    row("score_extraction_token", "score", "it says where in the prompt the score is read",
        rule=rules.NAME),
)  # fmt: skip
