"""Which bodies are checked on the router's event loop: those whose checks cannot take long.

A trip to another process costs more than the checks of an ordinary chat. So an ordinary body stays:
texts and numbers, a conversation, token ids, and a little of anything else. Where there is more to
look at than that, or a text that something compiles (a grammar, a pattern, a schema), the body goes
to a parsing process (`toolkit.router.parsing`), whatever its size. What is looked at is the decoded
body, so that no spelling of a key hides it.
"""

from __future__ import annotations

from typing import Any

from toolkit.router.validate.prompts import plain_messages

COMPILED = frozenset({"regex", "ebnf", "json_schema", "structural_tag", "stop_regex"})
"""Fields whose value is a program of its own: what it costs does not follow from its size."""
PARTS = 256
"""Values of a body, plain conversations and token ids apart. The types of some are compared with
several that they may have, and prompts become requests of their own: some 20 us each."""
KEY = 64
"""Characters of a name: what is done with names is not linear in C (NFKC), nor fast in Python."""
_IDS = {int}
_SCALARS = frozenset({str, int, float, bool, type(None)})


def usual(body: Any) -> bool:
    """Whether looking at this body takes the loop no more than a few ms."""
    if type(body) is not dict:
        return True  # refused at once
    left = PARTS - len(body)
    inside = []
    for name, value in body.items():
        if type(value) in _SCALARS:
            if (name in COMPILED and value) or len(name) > KEY:
                return False
        elif name != "messages" or not plain_messages(value):
            inside.append((name, value))
    for name, value in inside:
        if name in COMPILED or len(name) > KEY:
            return False
        left = _walk(value, left)
    return left >= 0


def _walk(value: Any, left: int) -> int:
    """What is left of so many parts after this value; below 0: it has more, or is not usual."""
    stack = [value]
    while stack and left >= 0:
        found = stack.pop()
        if type(found) is dict:
            left -= len(found)
            for name, each in found.items():
                if (name in COMPILED and each) or len(name) > KEY:
                    return -1
                if type(each) not in _SCALARS:
                    stack.append(each)
        elif set(map(type, found)) != _IDS:
            left -= len(found)
            if left >= 0:
                stack += [each for each in found if type(each) not in _SCALARS]
    return left
