"""The fields of each endpoint: what becomes of them, and why."""

from __future__ import annotations

from toolkit.router.door.field import Field, Policy
from toolkit.router.door.generate import GENERATE
from toolkit.router.door.openai import CHAT, COMPLETIONS

ENDPOINTS: dict[str, dict[str, Field]] = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "generate": GENERATE,
}
NOT_ELSEWHERE = frozenset(
    name
    for rows in ENDPOINTS.values()
    for name, field in rows.items()
    if field.policy is not Policy.PASS
)
"""What some endpoint does not let through is dropped where SGLang does not know the field."""
