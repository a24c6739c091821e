"""Stop patterns, which SGLang tries with Python's `re` in the scheduler, at every token.

One that backtracks for ever would hold every request of a worker: patterns with a repetition
inside another, with back references or with several unbounded repetitions are refused.
"""

from __future__ import annotations

import re
import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import warnings
from typing import Any

from toolkit.router.door.field import Rule
from toolkit.router.door.limits import Limits
from toolkit.router.door.refusal import shown

MAX_BYTES = 256
"""SGLang's own limits (srt/sampling/sampling_params.py)."""
MAX_PATTERNS = 32
MAX_UNBOUNDED = 2
MAX_REPEAT = 1000
_REPEATS = {codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT}
_REFUSED = {codes.GROUPREF, codes.GROUPREF_EXISTS, codes.ASSERT, codes.ASSERT_NOT}


def _stop_regex(name: str, value: Any, limits: Limits) -> str | None:
    patterns = [value] if isinstance(value, str) else value
    if not isinstance(patterns, list) or not all(isinstance(each, str) for each in patterns):
        return f"{name} must be a string or a list of strings, got {shown(value)}."
    if len(patterns) > MAX_PATTERNS:
        return f"at most {MAX_PATTERNS} stop_regex patterns are allowed, got {len(patterns)}"
    for pattern in patterns:
        size = len(pattern.encode("utf-8", "surrogatepass"))
        if size > MAX_BYTES:
            return f"stop_regex is {size} bytes, over the {MAX_BYTES}-byte limit"
        if why := _why_not(pattern):
            return f"{name} {shown(pattern)} {why}."
    return None


def _why_not(pattern: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = parser.parse(pattern)
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is no regular expression: {error}"
    count = [0]
    return _look(tree, False, count)


def _look(tree: Any, repeated: bool, unbounded: list[int]) -> str | None:
    for code, argument in tree:
        if code in _REFUSED:
            return "has a back reference or a look-around, which could take for ever to match"
        if code in _REPEATS:
            low, high, inner = argument
            if high == codes.MAXREPEAT:
                unbounded[0] += 1
            if repeated and high > 1:
                return "has a repetition within a repetition, which could take for ever to match"
            most = low if high == codes.MAXREPEAT else high
            if unbounded[0] > MAX_UNBOUNDED or most > MAX_REPEAT:
                return (
                    f"has more than {MAX_UNBOUNDED} unbounded repetitions, or one of more than "
                    f"{MAX_REPEAT} times"
                )
            if high > 1 and any(each[0] is codes.BRANCH for each in inner):
                return "repeats a choice, which could take for ever to match"
            wrong = _look(inner, repeated or high > 1, unbounded)
        elif code is codes.BRANCH:
            if repeated:
                return "repeats a choice, which could take for ever to match"
            wrong = next((w for way in argument[1] if (w := _look(way, repeated, unbounded))), None)
        elif code is codes.SUBPATTERN:
            wrong = _look(argument[3], repeated, unbounded)
        elif code is codes.ATOMIC_GROUP:
            wrong = _look(argument, repeated, unbounded)
        else:
            wrong = None
        if wrong:
            return wrong
    return None


STOP_REGEX = Rule(
    f"a pattern or at most {MAX_PATTERNS}, each of at most {MAX_BYTES} bytes, that cannot "
    "backtrack for ever",
    _stop_regex,
)
