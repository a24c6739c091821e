"""Does an EBNF grammar end? One with a rule that always needs itself can produce no token.

SGLang's grammar backend takes such a grammar (`root ::= root`) and then fails in mid-request.
One pass reads the grammar and one finds the rules that end: both take time linear in its length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from toolkit.router.validate.needs import met

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


@dataclass(slots=True)
class _Rules:
    """A grammar's rules and groups, by number. `ways`: the alternatives of each, and of each
    alternative the rules that it cannot do without; none of a rule that is only named. `defined`:
    the numbers of rules that the text defines, by name and in its order."""

    ways: list[list[list[int]]] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    defined: dict[str, int] = field(default_factory=dict)

    def new(self, ways: list[list[int]]) -> int:
        self.ways.append(ways)
        return len(self.ways) - 1

    def named(self, name: str) -> int:
        number = self.numbers.get(name)
        if number is None:
            number = self.numbers[name] = self.new([])
        return number

    def define(self, name: str) -> list[list[int]]:
        """The alternatives of a rule that begins: an empty one so far."""
        number = self.defined[name] = self.named(name)
        self.ways[number] = [[]]
        return self.ways[number]


def endless(grammar: str) -> str | None:
    """The first rule that never ends; None when all do, and where the text is no such grammar
    (the backend says what is wrong with it)."""
    rules = _rules(grammar)
    if rules is None:
        return None
    ends = met(rules.ways)
    return next((name for name, number in rules.defined.items() if not ends[number]), None)


def _rules(grammar: str) -> _Rules | None:
    rules = _Rules()
    numbers = rules.numbers
    outer: list[tuple[list[list[int]], int]] = []
    ways: list[list[int]] | None = None
    name, group = "", -1  # what came last, where it may be defined or be optional
    for match in _TOKEN.finditer(grammar):
        kind = match.lastgroup
        if kind == "skip":
            continue
        if kind == "define" and name:
            if outer:
                return None
            ways, name = rules.define(name), ""
            continue
        if kind == "count" and _optional(match.group()):
            name, group = "", -1
        if name or group >= 0:
            if ways is None:
                return None
            if name:
                group = numbers[name] if name in numbers else rules.named(name)
            ways[-1].append(group)
            name, group = "", -1
        if kind == "name":
            name = match.group()
        elif kind == "define":
            continue
        elif ways is None or kind == "other":
            return None
        elif kind == "mark":
            text = match.group()
            if text == "|":
                ways.append([])
            elif text == "(":
                inner: list[list[int]] = [[]]
                outer.append((ways, rules.new(inner)))
                ways = inner
            elif not outer:
                return None
            else:
                ways, group = outer.pop()
    if name or group >= 0:
        if ways is None:
            return None
        ways[-1].append(rules.named(name) if name else group)
    return None if outer else rules


def _optional(count: str) -> bool:
    return count in "*?" or (count[0] == "{" and count[1:].strip(" 0")[:1] in ",}")
