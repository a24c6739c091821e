"""Which releases of SGLang declare which field, and with which type.

`declared.json` says it. `python -m tests.releases.fields --record` writes it from SGLang's sources.
A row of the tables says what becomes of a field; since which release there is one, the file says.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("declared.json")
SAMPLING = "sampling_params"
"""The place of /generate's sampling parameters, beside the endpoints."""
Types = dict[str, str | None]
"""Of a field: its type in the first release that has it and in each that changed it; None: gone."""

_NUMBERS = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_READ: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
RELEASES: tuple[str, ...] = tuple(_READ["releases"])
"""Supported ones, oldest first."""
DECLARED: dict[str, dict[str, Types]] = _READ["fields"]
"""By endpoint (or SAMPLING, or a nested model's name) and name."""


def since(place: str, name: str) -> str:
    """The first supported release that has the field; empty where no release declares it: it is
    read by SGLang otherwise, or it is ours."""
    return next(iter(DECLARED[place].get(name, ())), "")


def type_in(place: str, name: str, release: str) -> str | None:
    """The type as that supported release declares it; None where it does not."""
    found = None
    for changed, kind in DECLARED[place].get(name, {}).items():
        if RELEASES.index(changed) <= RELEASES.index(release):
            found = kind
    return found


def lacks(place: str, name: str, release: str) -> bool:
    """Whether a supported release does not have a field that another one has. False for an empty
    release: nobody knows."""
    declared = DECLARED[place].get(name)
    return bool(declared and release) and type_in(place, name, release) is None


@functools.cache
def missing(place: str, release: str) -> frozenset[str]:
    """The names that a supported release lacks."""
    return frozenset(name for name in DECLARED[place] if lacks(place, name, release))


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
    told = [tuple(map(int, found.groups())) for each in releases if (found := _version(each))]
    if not told:
        return ""
    supported = [each for each in RELEASES if _numbers(each) <= min(told)]
    return supported[-1] if supported else RELEASES[0]


def _version(release: str) -> re.Match[str] | None:
    return _NUMBERS.match(release)


def _numbers(release: str) -> tuple[int, ...]:
    found = _version(release)
    return tuple(map(int, found.groups())) if found else ()
