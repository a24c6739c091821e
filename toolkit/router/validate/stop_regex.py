"""Stop patterns, which a scheduler searches at every token.

Both take a pattern by one rule (`toolkit.contract.stop_patterns`), so what passes here is what a
worker matches, in linear time.
"""

from __future__ import annotations

from typing import Any

from toolkit.contract.stop_patterns import (
    MAX_BYTES,
    MAX_CHARACTERS,
    MAX_PATTERNS,
    MAX_SIZE,
    MAX_TOKENS,
    why_not,
)
from toolkit.router.validate.field import ValueRule
from toolkit.router.validate.limits import BodyLimits
from toolkit.router.validate.refusal import shown


def _stop_regex(name: str, value: Any, limits: BodyLimits) -> str | None:
    patterns = [value] if isinstance(value, str) else value
    if not isinstance(patterns, list) or not all(isinstance(each, str) for each in patterns):
        return f"{name} must be a string or a list of strings, got {shown(value)}."
    return why_not(patterns)


STOP_REGEX = ValueRule(
    f"a pattern or at most {MAX_PATTERNS}, each of at most {MAX_BYTES} bytes, together of at most "
    f"{MAX_SIZE} characters with their repetitions written out, that a linear search can match; "
    f"one without a longest match looks back at most {MAX_TOKENS} tokens and {MAX_CHARACTERS} "
    "characters",
    _stop_regex,
)
