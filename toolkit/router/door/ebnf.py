"""Does an EBNF grammar end? One with a rule that always needs itself can produce no token.

SGLang's grammar backend takes such a grammar (`root ::= root`) and then fails in mid-request.
One pass reads the grammar and one finds the rules that end: both take time linear in its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

# Nothing in it goes back (`*+`), and whoever reads tokens stops at the first `other`: else each of
# many brackets that are never closed would be looked at up to the end of the text.
_TOKEN = re.compile(
    r"""(?P<skip>\s++|\#[^\n]*+)
    |(?P<leaf>"(?:\\.|[^"\\\n])*+"|\[(?:\\.|[^\]\\])*+\])
    |(?P<define>::=)
    |(?P<name>[A-Za-z_][\w.-]*+)
    |(?P<count>[*+?]|\{\s*+(?:\d++\s*+)?(?:,\s*+(?:\d++\s*+)?)?\})
    |(?P<mark>[()|])
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
Token = tuple[str, str]
"""Its kind and its text."""


@dataclass(slots=True)
class _Rules:
    """A grammar's rules and groups, by number. `ways`: the alternatives of each, and of each
    alternative the rules that it cannot do without; none of a rule that is only named. `defined`:
    the numbers of rules that the text defines, by name and in its order."""

    ways: list[list[list[int]]] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    defined: dict[str, int] = field(default_factory=dict)

    def new(self) -> int:
        self.ways.append([])
        return len(self.ways) - 1

    def named(self, name: str) -> int:
        number = self.numbers.get(name)
        if number is None:
            number = self.numbers[name] = self.new()
        return number


def endless(grammar: str) -> str | None:
    """The first rule that never ends; None when all do, and where the text is no such grammar
    (the backend says what is wrong with it)."""
    rules = _rules(grammar)
    if rules is None:
        return None
    ends = _ending(rules.ways)
    return next((name for name, number in rules.defined.items() if not ends[number]), None)


def _ending(ways: list[list[list[int]]]) -> list[bool]:
    """Which rules end: those with an alternative of nothing but rules that end."""
    ends = [not alternatives for alternatives in ways]  # the backend knows what is not defined
    unmet: list[int] = []
    owner: list[int] = []
    waiting: list[list[int]] = [[] for _ in ways]
    for rule, alternatives in enumerate(ways):
        for needs in alternatives:
            for need in needs:
                waiting[need].append(len(unmet))
            unmet.append(len(needs))
            owner.append(rule)
            ends[rule] = ends[rule] or not needs
    found = [rule for rule, does in enumerate(ends) if does]
    while found:
        for way in waiting[found.pop()]:
            unmet[way] -= 1
            if not unmet[way] and not ends[owner[way]]:
                ends[owner[way]] = True
                found.append(owner[way])
    return ends


def _tokens(grammar: str) -> Iterator[Token]:
    for match in _TOKEN.finditer(grammar):
        if match.lastgroup != "skip":
            yield match.lastgroup or "", match.group()


def _rules(grammar: str) -> _Rules | None:
    rules = _Rules()
    open_groups: list[tuple[int, int]] = []
    rule = -1
    tokens = _tokens(grammar)
    after: Token | None = next(tokens, None)
    while after is not None:
        (kind, text), after = after, next(tokens, None)
        if kind == "name" and after is not None and after[0] == "define":
            if open_groups:
                return None
            rule = rules.defined[text] = rules.named(text)
            rules.ways[rule] = [[]]
        elif kind == "define":
            continue
        elif rule < 0 or kind == "other":
            return None
        elif kind == "name" and not _optional(after):
            rules.ways[rule][-1].append(rules.named(text))
        elif text == "|":
            rules.ways[rule].append([])
        elif text == "(":
            group = rules.new()
            open_groups.append((rule, group))
            rules.ways[group] = [[]]
            rule = group
        elif text == ")":
            if not open_groups:
                return None
            rule, group = open_groups.pop()
            if not _optional(after):
                rules.ways[rule][-1].append(group)
    return None if open_groups else rules


def _optional(token: Token | None) -> bool:
    if token is None or token[0] != "count":
        return False
    text = token[1]
    return text in "*?" or (text[0] == "{" and text[1:].strip(" 0")[:1] in ",}")
