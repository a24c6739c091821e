"""Bounds of JSON schemas, and schemas that only refer to themselves.

A deep schema takes the grammar backend minutes (1,000 levels: 127 s, 100 levels: 0.2 s, XGrammar
0.2.7); one that is nothing but a reference to itself allows no first token.
"""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 64
MAX_NODES = 10_000
_ALL, _ANY = ("allOf",), ("anyOf", "oneOf")


def too_large(schema: Any) -> str | None:
    """Why a schema (or a structural tag) is too much; None when it is not."""
    level, depth, nodes = [schema], 0, 0
    while level:
        nodes += len(level)
        if depth > MAX_DEPTH:
            return f"is nested more than {MAX_DEPTH} levels deep"
        if nodes > MAX_NODES:
            return f"has more than {MAX_NODES} parts"
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below.extend(each.values())
            elif isinstance(each, list):
                below.extend(each)
        level, depth = below, depth + 1
    return None


def circular(schema: Any) -> str | None:
    """The first `$ref` that leads only back to itself; None when there is none."""
    refs: dict[str, Any] = {}
    stack = [schema]
    while stack:
        found = stack.pop()
        if isinstance(found, dict):
            ref = found.get("$ref")
            if isinstance(ref, str) and ref.startswith("#"):
                refs[ref] = _target(schema, ref)
            stack.extend(each for each in found.values() if isinstance(each, (dict, list)))
        elif isinstance(found, list):
            stack.extend(each for each in found if isinstance(each, (dict, list)))
    good: set[str] = set()
    while True:
        more = {ref for ref in refs if ref not in good and _starts(refs[ref], refs, good)}
        if not more:
            break
        good |= more
    return next((ref for ref in refs if ref not in good), None)


def _starts(schema: Any, refs: dict[str, Any], good: set[str]) -> bool:
    """True when a value of it has a first character. Depth is bounded by `too_large`."""
    if not isinstance(schema, dict):
        return True
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref in refs and ref not in good:
        return False
    for names, of in ((_ALL, all), (_ANY, any)):
        for name in names:
            parts = schema.get(name)
            if (
                isinstance(parts, list)
                and parts
                and not of(_starts(part, refs, good) for part in parts)
            ):
                return False
    return True


def _target(schema: Any, ref: str) -> Any:
    """What a reference within the schema means; None when it means nothing (the backend says)."""
    found = schema
    for part in ref[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isascii() and name.isdigit():
            found = found[int(name)] if int(name) < len(found) else None
        else:
            return None
    return found
