"""Reads cpu.lock: one `name==version` a line, `#` starts a comment."""

from __future__ import annotations

import re
from typing import Dict

_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;]+)")


def parse(text: str) -> Dict[str, str]:
    """Normalised name -> version, in the file's order.

    Raises:
        ValueError: a line that is no exact pin, or a name given twice.
    """
    pins: Dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        content = raw.split("#", 1)[0].strip()
        if not content:
            continue
        match = _PIN.fullmatch(content)
        if match is None:
            raise ValueError(f"line {number}: {content!r} is not NAME==VERSION")
        name = normalise(match.group(1))
        if name in pins:
            raise ValueError(f"line {number}: {name} is pinned twice")
        pins[name] = match.group(2)
    return pins


def normalise(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
