"""The fields of each endpoint: what becomes of them, and why."""

from __future__ import annotations

from toolkit.router.door.anthropic import COUNT_TOKENS, MESSAGES
from toolkit.router.door.field import Field, Policy
from toolkit.router.door.generate import GENERATE
from toolkit.router.door.openai import CHAT, COMPLETIONS
from toolkit.router.door.responses import RESPONSES
from toolkit.router.door.whole import CLASSIFY, EMBEDDINGS, RERANK, SCORE

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
    if field.policy is not Policy.PASS
)
"""What one of these does not let through is dropped where SGLang does not know the field."""
