"""The toolkit's own names, which no client may use.

What the router asks of a worker's patches stands under `toolkit` in `custom_params` (signed, see
`toolkit.contract.ticket`). Clients' keys of that name, in every spelling, are taken out where such
things are read: at the top, in `custom_params`, in sampling parameters and in fields that SGLang
does not know, at any depth. They stay in what people write (messages, tools, schemas): a tool may
well have a parameter called toolkit_version.
"""

from __future__ import annotations

import functools
import unicodedata
from typing import Any

from toolkit.router.validate.nested import nested

OURS = "toolkit"
_SGLANG = "__"
"""SGLang keeps things of its own in custom_params under such keys (`__req__`)."""


def is_ours(key: str) -> bool:
    """True for `toolkit...` in any case, width, with any separators: `Tool-Kit_x`, fullwidth."""
    if key.isascii():
        return "".join(filter(str.isalnum, key)).casefold().startswith(OURS)
    letters = ""
    for character in key:
        letters += _letters(character)
        if len(letters) >= len(OURS):
            break
    return letters.startswith(OURS)


@functools.lru_cache(4096)
def _letters(character: str) -> str:
    """The letters and digits that a character stands for: one character at a time, since of
    thousands of accents in a row `normalize` sorts each among the others."""
    plain = unicodedata.normalize("NFKC", character)
    return "".join(filter(str.isalnum, plain)).casefold()


def without_ours(value: Any, sglang: bool = False) -> Any:
    """The value without such keys; itself where there are none. `sglang`: nor SGLang's own."""
    if not isinstance(value, (dict, list)) or not _has(value, sglang):
        return value
    top: list[Any] = [None]
    stack: list[tuple[Any, Any, Any]] = [(top, 0, value)]
    while stack:  # no recursion: clients choose the depth
        place, at, found = stack.pop()
        if isinstance(found, dict):
            place[at] = new = {}
            for key, each in found.items():
                if not _taken(key, sglang):
                    new[key] = each
                    stack.append((new, key, each))
        elif isinstance(found, list):
            place[at] = copy = list(found)
            stack.extend((copy, index, each) for index, each in enumerate(found))
    return top[0]


def _taken(key: str, sglang: bool) -> bool:
    return is_ours(key) or (sglang and key.startswith(_SGLANG))


def _has(value: Any, sglang: bool) -> bool:
    objects = (each for each in nested(value) if isinstance(each, dict))
    return any(_taken(key, sglang) for each in objects for key in each)
