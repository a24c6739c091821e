"""The parts of a JSON value, at any depth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def nested(value: Any) -> Iterator[dict[str, Any] | list[Any]]:
    """Every object and list in a value, itself first. No recursion: clients choose the depth."""
    stack = [value]
    while stack:
        found = stack.pop()
        if isinstance(found, (dict, list)):
            yield found
            stack.extend(found.values() if isinstance(found, dict) else found)
