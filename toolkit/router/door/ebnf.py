"""Does an EBNF grammar end? One with a rule that always needs itself can produce no token.

SGLang's grammar backend takes such a grammar (`root ::= root`) and then fails in mid-request.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*)
    |(?P<leaf>"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\])*\])
    |(?P<define>::=)
    |(?P<name>[A-Za-z_][\w.-]*)
    |(?P<count>[*+?]|\{\s*\d*\s*(?:,\s*\d*\s*)?\})
    |(?P<mark>[()|])
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
Rules = dict[str, list[list[str]]]
"""Alternatives of each rule; of each the rules that it cannot do without."""


def endless(grammar: str) -> str | None:
    """The first rule that never ends; None when all do, and where the text is no such grammar
    (the backend says what is wrong with it)."""
    rules = _rules(grammar)
    if rules is None:
        return None
    ends: set[str] = set()
    while True:
        more = {
            name
            for name, ways in rules.items()
            if name not in ends
            and any(all(need in ends or need not in rules for need in way) for way in ways)
        }
        if not more:
            break
        ends |= more
    # A synthetic rule of a group has a name that no client can write.
    return next((name for name in rules if name not in ends and " " not in name), None)


def _rules(grammar: str) -> Rules | None:
    tokens = [
        (match.lastgroup, match.group())
        for match in _TOKEN.finditer(grammar)
        if match.lastgroup != "skip"
    ]
    rules: Rules = {}
    open_groups: list[tuple[str, str]] = []
    rule = ""
    for index, (kind, text) in enumerate(tokens):
        after = tokens[index + 1] if index + 1 < len(tokens) else (None, "")
        if kind == "name" and after[0] == "define":
            if open_groups:
                return None
            rule = text
            rules[rule] = [[]]
        elif kind == "define":
            continue
        elif not rule or kind == "other":
            return None
        elif kind == "name" and not _optional(after):
            rules[rule][-1].append(text)
        elif text == "|":
            rules[rule].append([])
        elif text == "(":
            group = f"{rule} ({index}"
            open_groups.append((rule, group))
            rules[group] = [[]]
            rule = group
        elif text == ")":
            if not open_groups:
                return None
            rule, group = open_groups.pop()
            if not _optional(after):
                rules[rule][-1].append(group)
    return None if open_groups else rules


def _optional(token: tuple[str | None, str]) -> bool:
    kind, text = token
    if kind != "count":
        return False
    return text in "*?" or (text[0] == "{" and text[1:].strip(" 0")[:1] in ",}")
