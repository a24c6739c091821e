"""Which `stop_regex` a scheduler may run after every token.

Python's `re` cannot be interrupted, and a pattern that backtracks without end stops the requests
of everybody. So a pattern may be matched only where the work is bounded by a small power of the
text's length: no repetition of varying length within a repetition, and few long ones in a row.
"""

from __future__ import annotations

from typing import Any

LONG = 16
"""A repetition that may come more often than this is a long one."""
MAX_LONG = 2
"""Long repetitions in one pattern: more take more than the square of the text's length."""


def unsafe(pattern: str) -> str | None:
    """Why a scheduler should not run this pattern; None for one that it may."""
    import re
    from re import _parser  # type: ignore[attr-defined]

    try:
        parsed = _parser.parse(pattern)
    except (re.error, OverflowError, RecursionError, ValueError) as error:
        return f"is no regular expression: {error}"
    found = _Repetitions()
    try:
        found.visit(parsed, within=False)
    except RecursionError:
        return "is nested too deep"
    if found.nested:
        return "repeats what has repetitions or alternatives in it, which can take for ever"
    if found.long > MAX_LONG:
        return f"has more than {MAX_LONG} long repetitions, which can take for ever"
    return None


class _Repetitions:
    """Counts the long repetitions of a parsed pattern, and sees what varies within one."""

    def __init__(self) -> None:
        self.long = 0
        self.nested = False

    def visit(self, node: Any, within: bool) -> None:
        """`node`: a piece of what `re` parsed. `within`: a repetition is around it."""
        from re import _constants as codes  # type: ignore[attr-defined]

        for code, value in node:
            if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
                least, most, body = value
                # A fixed number of times matches in one way only: nothing to go back to.
                self.nested |= within and least != most
                self.long += most > LONG and least != most
                self.visit(body, within or most > 1)
            elif code is codes.BRANCH:
                self.nested |= within
                for branch in value[1]:
                    self.visit(branch, within)
            elif code is codes.SUBPATTERN:
                self.visit(value[-1], within)
            elif code in (codes.ASSERT, codes.ASSERT_NOT):
                self.nested |= within
                self.visit(value[1], within)
            elif code is codes.ATOMIC_GROUP:
                self.visit(value, within)
            elif code in (codes.GROUPREF, codes.GROUPREF_EXISTS):
                self.nested |= within or self.long > 0
