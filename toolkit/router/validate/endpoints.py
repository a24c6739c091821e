"""The fields of each endpoint: what becomes of them, and why."""

from __future__ import annotations

from toolkit.router.validate import answers, declared, prompts, sampling
from toolkit.router.validate.field import Fate, Field, tables
from toolkit.router.validate.internal import INTERNAL
from toolkit.router.validate.whole import WHOLE

ENDPOINTS: dict[str, dict[str, Field]] = tables(
    *sampling.DRAWN, *sampling.ENDED, *sampling.GUIDES,
    *prompts.PROMPT, *prompts.TEMPLATE, *prompts.MEDIA,
    *answers.WRITTEN, *answers.COMPUTED, *answers.WHOSE, *answers.KEPT,
    *INTERNAL, *WHOLE,
)  # fmt: skip
SAMPLING = ENDPOINTS.pop(declared.SAMPLING)
"""The parameters within `sampling_params` of /generate."""
NOT_ELSEWHERE = frozenset(
    name
    for endpoint in ("chat", "completions", "generate")
    for name, field in ENDPOINTS[endpoint].items()
    if field.policy is not Fate.PASS
)
"""What one of these does not let through is dropped where SGLang does not know the field."""
