"""Patterns of `stop_regex`, matched in linear time: by the router's validation and by schedulers
alike.

SGLang searches each pattern after every token with Python's `re`, which can go back for ever and
holds the interpreter's lock meanwhile. RE2 never goes back. A pattern is read as `re` reads it and
written anew in RE2's syntax, so that it means what it meant; what RE2 cannot do, or would do
otherwise, is refused. What a search costs is bounded before anything is compiled.
"""

import re
import warnings
from collections.abc import Sequence
from typing import Any

from toolkit.contract.stop_syntax import Re2Pattern, WrittenError, written

MAX_BYTES = 256
"""Of a pattern: SGLang's own limits (srt/sampling/sampling_params.py)."""
MAX_PATTERNS = 32
MAX_ALL = 2048
"""Of all patterns of a request: to read one takes some 5 us a byte."""
MAX_SIZE = 1000
"""Characters that all patterns of a request stand for, repetitions written out."""
MAX_STEPS = 2**17
"""Of a search after one token: the size of the patterns times the characters that they look back. A
step takes at most some 15 ns."""
MAX_CHARACTERS = 4096
"""How far a pattern looks back that has no longest match."""
MAX_TOKENS = 1024
"""How many tokens are decoded for it."""
MAX_STOP = 4096
"""Characters of all stop strings of a request: SGLang compares each beginning of each with the end
of the text, after every token."""
MEMORY = 2**19
"""Bytes that RE2 may take for all patterns of a request: a program beyond is not compiled."""


class StopPatternError(ValueError):
    """Says which pattern cannot be matched, and why."""


class StopPatterns:
    """The compiled patterns of one request.

    `tokens`: so many of an answer's last tokens are enough for a search, besides the newest;
    `characters`: so many of their characters.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        """
        Raises:
            StopPatternError: one cannot be matched in bounded time.
        """
        if len(patterns) > MAX_PATTERNS:
            raise StopPatternError(
                f"at most {MAX_PATTERNS} stop_regex patterns are allowed, got {len(patterns)}"
            )
        size = sum(map(_bytes, patterns))
        if size > MAX_ALL:
            raise StopPatternError(
                f"stop_regex patterns have {size} bytes, and at most {MAX_ALL} together are taken"
            )
        read = [_read(pattern) for pattern in patterns]
        size = sum(each.size for each in read)
        if size > MAX_SIZE:
            raise StopPatternError(
                f"stop_regex patterns stand for {size} characters with their repetitions written "
                f"out, and at most {MAX_SIZE} are matched: repeat fewer times, or use `stop` for "
                "what is a plain text"
            )
        reach = min(MAX_CHARACTERS, MAX_STEPS // max(size, 1))
        for pattern, each in zip(patterns, read, strict=True):
            if each.longest is not None and each.longest > reach:
                raise StopPatternError(
                    f"{_named(pattern)} can match {each.longest} characters, and patterns of this "
                    f"size are searched in the last {reach}: repeat fewer times"
                )
        longest = [each.longest for each in read]
        bounded = max((each for each in longest if each is not None), default=0)
        self.characters = reach if None in longest else bounded
        self.tokens = min(reach, MAX_TOKENS) if None in longest else bounded
        self._compiled = [
            (pattern, _compiled(pattern, each.text, MEMORY // len(patterns)))
            for pattern, each in zip(patterns, read, strict=True)
        ]

    def found(self, text: str, start: int = 0) -> str | None:
        """The first pattern that matches at or behind the character `start`. What is before it is
        seen by `^` and the like, and not matched."""
        data = text.encode("utf-8", "replace")
        at = len(text[:start].encode("utf-8", "replace"))
        for pattern, compiled in self._compiled:
            if compiled.search(data, at) is not None:
                return pattern
        return None


def why_not(patterns: Sequence[str]) -> str | None:
    """Why these patterns cannot stop an answer; None when they can."""
    try:
        StopPatterns(patterns)
    except StopPatternError as error:
        return str(error)
    return None


def _bytes(pattern: str) -> int:
    try:
        size = len(pattern.encode())
    except UnicodeEncodeError:
        raise StopPatternError(f"{_named(pattern)} is no valid Unicode text") from None
    if size > MAX_BYTES:
        raise StopPatternError(f"stop_regex is {size} bytes, over the {MAX_BYTES}-byte limit")
    return size


def _read(pattern: str) -> Re2Pattern:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return written(pattern)
    except WrittenError as error:
        raise StopPatternError(f"{_named(pattern)} {error}") from None
    except (re.error, OverflowError) as error:
        raise StopPatternError(f"{_named(pattern)} is no regular expression: {error}") from None
    except RecursionError:
        raise StopPatternError(f"{_named(pattern)} is nested too deep") from None


def _compiled(pattern: str, text: str, memory: int) -> Any:
    import re2

    options = re2.Options()
    options.max_mem = memory
    options.never_capture = True
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        why = error.args[0] if error.args else ""
        told = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise StopPatternError(
            f"{_named(pattern)} is too large to be matched after every token ({told}): repeat "
            "fewer times, or begin it with (?a), which makes \\w, \\d and \\s those of ASCII"
        ) from None


def _named(pattern: str) -> str:
    text = pattern[:MAX_BYTES].encode("utf-8", "backslashreplace").decode()
    return f"stop_regex {text!r}"
