"""Bounds of JSON schemas, and schemas that only refer to themselves.

A deep schema takes the grammar backend minutes (1,000 levels: 127 s, 100 levels: 0.2 s, XGrammar
0.2.7); one that is nothing but a reference to itself allows no first token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolkit.router.validate.needs import met
from toolkit.router.validate.nested import nested

MAX_DEPTH = 64
MAX_NODES = 10_000
MAX_DIGITS = 10
"""Of an index in a reference."""


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
    targets: dict[str, Any] = {}
    for found in nested(schema):
        ref = found.get("$ref") if isinstance(found, dict) else None
        if isinstance(ref, str) and ref.startswith("#") and ref not in targets:
            targets[ref] = _target(schema, ref)
    graph = _Graph(targets)
    numbers = {ref: graph.number(target) for ref, target in targets.items()}
    starts = graph.starting()
    return next((ref for ref, at in numbers.items() if at is not None and not starts[at]), None)


class _Graph:
    """What each schema needs before a value of it has a first character. A schema needs what its
    `$ref` means and all parts of `allOf`; of `anyOf` and of `oneOf` it needs one.

    Every object is looked at once, so the work is linear in the schema.
    """

    def __init__(self, targets: dict[str, Any]) -> None:
        self._targets = targets
        self._numbers: dict[int, int] = {}
        self._ways: list[list[list[int]]] = []
        self._new: list[tuple[int, dict[str, Any]]] = []

    def number(self, schema: Any) -> int | None:
        """Of a schema; None for one that needs nothing (`true`, or no schema at all)."""
        if not isinstance(schema, dict):
            return None
        number = self._numbers.get(id(schema))
        if number is None:
            number = self._numbers[id(schema)] = self._thing([[]])
            self._new.append((number, schema))
        return number

    def starting(self) -> list[bool]:
        """Of each number, whether a value has a first character."""
        while self._new:
            number, schema = self._new.pop()
            needs = [each for each in self._needs(schema) if each is not None]
            self._ways[number] = [needs]
        return met(self._ways)

    def _needs(self, schema: dict[str, Any]) -> Iterator[int | None]:
        ref = schema.get("$ref")
        if isinstance(ref, str) and ref in self._targets:
            yield self.number(self._targets[ref])
        for part in _parts(schema, "allOf"):
            yield self.number(part)
        for name in ("anyOf", "oneOf"):
            choices = [self.number(part) for part in _parts(schema, name)]
            if choices and None not in choices:
                yield self._thing([[each] for each in choices if each is not None])

    def _thing(self, ways: list[list[int]]) -> int:
        self._ways.append(ways)
        return len(self._ways) - 1


def _parts(schema: dict[str, Any], name: str) -> list[Any]:
    parts = schema.get(name)
    return parts if isinstance(parts, list) else []


def _target(schema: Any, ref: str) -> Any:
    """What a reference within the schema means; None when it means nothing (the backend says)."""
    if ref != "#" and not ref.startswith("#/"):
        return None  # the name of an anchor
    found = schema
    for part in ref.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isascii() and name.isdigit():
            # no index has more digits, and Python takes no integer of thousands of them
            index = int(name) if len(name) < MAX_DIGITS else len(found)
            found = found[index] if index < len(found) else None
        else:
            return None
    return found
