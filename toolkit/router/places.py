"""Where things lie on the workers' machines: paths and addresses, which no client is told.

The texts of failures (an exception of a worker, a refused connection) name them.
"""

from __future__ import annotations

import re

MOST = 64 * 1024
"""Bytes of a text that are looked through; a longer one is not passed on."""
_PLACE = re.compile(
    rb"""
      \b(?:file|ipc|tcp|https?)://[^\s"'\\<>()]+                         # a URL
    | \(?'?(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\d)(?:'?[:,][ ]?\d{1,5}\b\)?)?   # IPv4
    | \(?'?\[?(?<![\w:])(?=[0-9a-fA-F:]{0,37}::|(?:[0-9a-fA-F]{1,4}:){4})
      (?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:])
      (?:(?:\]:|'[ ]?,[ ]?)\d{1,5}\b(?:,[ ]0){0,2}\)?)?                  # IPv6
    | (?<![\w.-])[A-Za-z][\w.-]*+:\d{2,5}\b                              # a name and a port
    | (?<![^\s"'(=\[:,])/(?!v1/|toolkit/)(?:[^\s"'\\/:,;()<>\[\]{}]+/)+[^\s"'\\/:,;()<>\[\]{}]*
    """,
    re.VERBOSE,
)
HIDDEN = b"(hidden)"


def without_places(text: bytes) -> bytes | None:
    """The text without them; None where it is too long to be looked through."""
    return _PLACE.sub(HIDDEN, text) if len(text) <= MOST else None


def without_places_in(text: str) -> str:
    """The same of a string; of a long one its beginning."""
    found = without_places(text.encode("utf-8", "replace")[:MOST]) or b""
    return found.decode("utf-8", "replace")
