"""Patterns of Python's `re` in RE2's syntax, with the same meaning, and how much they cost."""

import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from dataclasses import dataclass
from re import ASCII, DOTALL, IGNORECASE, MULTILINE, UNICODE
from typing import Any

_TYPES = int(ASCII | UNICODE)
_LAST = 0x10FFFF
MAX_REPEAT = 1000
"""RE2's own limit."""
_REPEATS = {codes.MAX_REPEAT, codes.MIN_REPEAT}
_REFUSED = {
    codes.GROUPREF: "a back reference",
    codes.GROUPREF_EXISTS: "a back reference",
    codes.ASSERT: "a look-around",
    codes.ASSERT_NOT: "a look-around",
    codes.FAILURE: "a look-around",
    codes.POSSESSIVE_REPEAT: "a possessive repetition",
    codes.ATOMIC_GROUP: "an atomic group",
}
_WORD, _DIGIT, _SPACE = codes.CATEGORY_WORD, codes.CATEGORY_DIGIT, codes.CATEGORY_SPACE
_NOT = {
    codes.CATEGORY_NOT_WORD: _WORD,
    codes.CATEGORY_NOT_DIGIT: _DIGIT,
    codes.CATEGORY_NOT_SPACE: _SPACE,
}
_SPACES = [
    (0x9, 0xD), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
    (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000),
]  # fmt: skip
"""`str.isspace`."""
_RANGES = {
    (_WORD, True): [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
    (_DIGIT, True): [(0x30, 0x39)],
    (_SPACE, True): [(0x9, 0xD), (0x20, 0x20)],
    (_SPACE, False): _SPACES,
}
"""Categories by range: which, and whether in ASCII alone."""
_WORDS = r"\p{L}\p{N}_"
"""The word characters of Unicode: those of `re`, as far as it knows them."""
_DOTTED = (0x49, 0x69, 0x130, 0x131)
"""The letters I, with dot and without. They are one under IGNORECASE in `re`, two in RE2."""
_IOTAS = (0x345, 0x399, 0x3B9, 0x1FBE)
"""The other cases of an iota. The first is an accent, no letter."""
_EMPTY = r"[^\x{0}-\x{10ffff}]"


class WrittenError(ValueError):
    """What RE2 cannot do, or would do otherwise; says how to mend it."""


@dataclass(frozen=True, slots=True)
class Re2Pattern:
    """A pattern in RE2's syntax. `size`: characters that it stands for, with its repetitions
    written out; `longest`: characters of its longest match, None where there is no longest."""

    text: str
    size: int
    longest: int | None


def written(pattern: str) -> Re2Pattern:
    """
    Raises:
        WrittenError: RE2 cannot match it, or not with the same meaning.
        re.error, OverflowError, RecursionError: it is no pattern of `re`.
    """
    tree = parser.parse(pattern)
    return _sequence(tree, tree.state.flags, last=True)


def _sequence(nodes: Any, flags: int, last: bool) -> Re2Pattern:
    """`last`: nothing of the pattern comes behind it."""
    end = len(nodes) - 1
    parts = [
        _node(code, value, flags, last and at == end) for at, (code, value) in enumerate(nodes)
    ]
    lengths = [part.longest for part in parts]
    return Re2Pattern(
        "".join(part.text for part in parts),
        sum(part.size for part in parts),
        sum(each or 0 for each in lengths) if None not in lengths else None,
    )


def _node(code: Any, value: Any, flags: int, last: bool) -> Re2Pattern:
    if code in _REFUSED:
        raise WrittenError(f"has {_REFUSED[code]}, which no linear search can do: do without")
    if code in _REPEATS:
        low, high, inner = value
        return _repeat(low, high, inner, flags)
    if code is codes.SUBPATTERN:
        _, added, removed, inner = value
        if added & _TYPES:
            flags &= ~_TYPES
        found = _sequence(inner, (flags | added) & ~removed, last)
        return Re2Pattern(f"(?:{found.text})", found.size, found.longest)
    if code is codes.BRANCH:
        return _choice([_sequence(way, flags, last) for way in value[1]])
    if code is codes.AT:
        return Re2Pattern(_place(value, flags, last), 1, 1 if value is codes.AT_END else 0)
    return Re2Pattern(_character(code, value, flags), 1, 1)


def _repeat(low: Any, high: Any, inner: Any, flags: int) -> Re2Pattern:
    found = _sequence(inner, flags, last=False)
    endless = high == codes.MAXREPEAT
    most = max(low, 1) if endless else high
    if most > MAX_REPEAT:
        raise WrittenError(f"repeats something {most} times, and at most {MAX_REPEAT} are matched")
    longest = None if endless or found.longest is None else found.longest * most
    if found.longest == 0 or most == 0:
        longest = 0
    bounds = f"{low}," if endless else f"{low},{high}"
    return Re2Pattern(f"(?:{found.text}){{{bounds}}}", max(found.size, 1) * max(most, 1), longest)


def _choice(ways: list[Re2Pattern]) -> Re2Pattern:
    lengths = [way.longest for way in ways]
    return Re2Pattern(
        "(?:" + "|".join(way.text for way in ways) + ")",
        sum(way.size for way in ways),
        max(each or 0 for each in lengths) if None not in lengths else None,
    )


def _place(value: Any, flags: int, last: bool) -> str:
    if value is codes.AT_BEGINNING and flags & MULTILINE:
        return "(?m:^)"
    if value is codes.AT_BEGINNING or value is codes.AT_BEGINNING_STRING:
        return r"\A"
    if value is codes.AT_END_STRING:
        return r"\z"
    if value is codes.AT_END:
        if flags & MULTILINE:
            return "(?m:$)"
        if not last:
            raise WrittenError("has a $ that is not at its end: use \\Z, or (?m) for ends of lines")
        return r"(?:\n?\z)"  # also before a last line feed
    if not flags & ASCII:
        raise WrittenError(
            "has \\b or \\B, which a linear search knows for ASCII alone: begin it with (?a), "
            "which makes \\b, \\w, \\d and \\s those of ASCII"
        )
    return r"\b" if value is codes.AT_BOUNDARY else r"\B"


def _character(code: Any, value: Any, flags: int) -> str:
    if code is codes.ANY:
        return "(?s:.)" if flags & DOTALL else r"[^\n]"
    if code is codes.LITERAL:
        return _set([(codes.LITERAL, value)], flags)
    if code is codes.NOT_LITERAL:
        return _set([(codes.NEGATE, None), (codes.LITERAL, value)], flags)
    if code is codes.IN:
        return _set(value, flags)
    raise WrittenError(f"has {code}, which is not known here")


def _set(items: Any, flags: int) -> str:
    ranges: list[tuple[int, int]] = []
    named = ""
    word = no_word = negated = False
    ascii_only = bool(flags & ASCII)
    for code, value in items:
        if code is codes.NEGATE:
            negated = True
        elif code is codes.LITERAL:
            ranges.append((value, value))
        elif code is codes.RANGE:
            ranges.append(value)
        elif (listed := _RANGES.get((_NOT.get(value, value), ascii_only))) is not None:
            ranges += _others(listed) if value in _NOT else listed
        elif _NOT.get(value, value) is _DIGIT:
            named = r"\p{Nd}\P{Nd}" if named else r"\P{Nd}" if value in _NOT else r"\p{Nd}"
        else:
            word, no_word = word or value not in _NOT, no_word or value in _NOT
    ignore = bool(flags & IGNORECASE)
    if ignore and ascii_only:
        ranges += _other_case(ranges)
    elif ignore and _holds(ranges, _DOTTED):
        ranges += [(each, each) for each in _DOTTED]
    iota = _holds(ranges, _IOTAS)
    text = "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in ranges) + named
    folded = "i" if ignore and not ascii_only else ""
    sign = "^" if negated else ""
    if not (word or no_word):
        return f"(?{folded}:[{sign}{text}])"
    if word and no_word:
        return _EMPTY if negated else "(?s:.)"
    if not text:
        return f"[{'' if negated == no_word else '^'}{_WORDS}]"
    if not negated:
        return f"(?:(?{folded}:[{text}])|[{'^' if no_word else ''}{_WORDS}])"
    if no_word:
        raise WrittenError("has \\W beside others in a negated set: name what it is to match")
    others = f"(?{folded}:[^{text}{_WORDS}])"
    # RE2 takes this one for a letter, as it is the other case of one.
    return others if iota or not folded else f"(?:{others}|\\x{{345}})"


def _holds(ranges: list[tuple[int, int]], letters: tuple[int, ...]) -> bool:
    return any(low <= each <= high for low, high in ranges for each in letters)


def _others(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found, begin = [], 0
    for low, high in ranges:
        if begin < low:
            found.append((begin, low - 1))
        begin = high + 1
    return [*found, (begin, _LAST)]


def _other_case(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The letters of ASCII in the other case."""
    found = []
    for low, high in ranges:
        for first, last, shift in ((0x41, 0x5A, 32), (0x61, 0x7A, -32)):
            begin, end = max(low, first), min(high, last)
            if begin <= end:
                found.append((begin + shift, end + shift))
    return found
