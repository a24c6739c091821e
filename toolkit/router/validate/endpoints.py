"""The fields of each endpoint: what becomes of them, and why."""

from __future__ import annotations

from toolkit.router.validate.anthropic import COUNT_TOKENS, MESSAGES
from toolkit.router.validate.field import Fate, Field
from toolkit.router.validate.generate import GENERATE
from toolkit.router.validate.openai import CHAT, COMPLETIONS
from toolkit.router.validate.responses import RESPONSES
from toolkit.router.validate.whole import CLASSIFY, EMBEDDINGS, RERANK, SCORE

ENDPOINTS: dict[str, dict[str, Field]] = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "generate": GENERATE,
    "messages": MESSAGES,
    "responses": RESPONSES,
    "count_tokens": COUNT_TOKENS,
    "embeddings": EMBEDDINGS,
    "rerank": RERANK,
    "score": SCORE,
    "classify": CLASSIFY,
}
NOT_ELSEWHERE = frozenset(
    name
    for rows in (CHAT, COMPLETIONS, GENERATE)
    for name, field in rows.items()
    if field.policy is not Fate.PASS
)
"""What one of these does not let through is dropped where SGLang does not know the field."""
