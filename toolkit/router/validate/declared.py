"""What each supported release of SGLang declares of a request's fields.

`declared.json` says it. `python -m tests.releases.fields --record` writes it from SGLang's sources.
A row of the tables says what becomes of a field. Its type, and the releases that have it, the file
says.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("declared.json")
SAMPLING = "sampling_params"
"""The place of /generate's sampling parameters, beside the endpoints."""
Types = dict[str, str | None]
"""Of a name: its text in the first release that has it and in each that changed it; None: gone."""

_NUMBERS = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_READ: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
RELEASES: tuple[str, ...] = tuple(_READ["releases"])
"""Supported ones, oldest first."""
DECLARED: dict[str, dict[str, Types]] = _READ["fields"]
"""By endpoint (or SAMPLING, or a nested model's name) and name: a type, and a default behind it."""
CHECKS: dict[str, dict[str, Types]] = _READ["checks"]
"""By the same and a validator's name: its decorator, and a digest of its code."""
NAMES: dict[str, Types] = _READ["names"]
"""What names in those texts mean."""
_ELSEWHERE = ("chat", "completions", "generate")


def in_release(texts: Types, release: str) -> str | None:
    """The text of that supported release; None where it has none. Of no release (nobody knows): of
    the newest that has one."""
    if not release:
        return [text for text in texts.values() if text is not None][-1]
    found = None
    for changed, text in texts.items():
        if RELEASES.index(changed) <= RELEASES.index(release):
            found = text
    return found


def since(place: str, name: str) -> str:
    """The first supported release that has the field; empty where no release declares it: it is
    read by SGLang otherwise, or it is ours."""
    return next(iter(DECLARED[place].get(name, ())), "")


def lacks(place: str, name: str, release: str) -> bool:
    """Whether a supported release does not have a field that another one has. False for an empty
    release: nobody knows."""
    declared = DECLARED[place].get(name)
    return declared is not None and in_release(declared, release) is None


@functools.cache
def missing(place: str, release: str) -> frozenset[str]:
    """The names that a supported release lacks."""
    return frozenset(name for name in DECLARED[place] if lacks(place, name, release))


def declaration(place: str, name: str, release: str) -> str:
    """How a release declares a field: its type, and a default behind it. As the newest does where
    it does not have it; as at another endpoint where this one passes over it; of any type where
    none knows it."""
    places = (place, *_ELSEWHERE)
    found = [DECLARED[each][name] for each in places if name in DECLARED[each]]
    texts: Types = found[0] if found else {RELEASES[0]: "Any = None"}
    return in_release(texts, release) or in_release(texts, "") or ""


def default(place: str, name: str) -> Any:
    """The value that SGLang takes where there is none; None where it says none that is plain."""
    with suppress(ValueError, SyntaxError):
        return ast.literal_eval(declaration(place, name, "").partition(" = ")[2])
    return None


def not_in_release(place: str, name: str, release: str) -> str:
    """What a client is told who asks for such a field."""
    first = since(place, name)
    when = f"came with {first}" if first != RELEASES[0] else "went with a newer release"
    return (
        f"{name} is not taken: SGLang {release}, which workers of this deployment run, does not "
        f"know it. It {when}."
    )


@functools.lru_cache(256)
def oldest(releases: AbstractSet[str]) -> str:
    """The supported release that stands for these workers: the newest one that the oldest of them
    is not older than. Empty where none says a version."""
    told = [numbers for each in releases if (numbers := _numbers(each))]
    if not told:
        return ""
    supported = [each for each in RELEASES if _numbers(each) <= min(told)]
    return supported[-1] if supported else RELEASES[0]


def _numbers(release: str) -> tuple[int, ...]:
    found = _NUMBERS.match(release)
    return tuple(map(int, found.groups())) if found else ()
