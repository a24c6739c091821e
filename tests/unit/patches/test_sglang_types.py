"""What patches read of SGLang's objects is there in the installed release, by its source text."""

from __future__ import annotations

import importlib.util
import inspect
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Protocol

import pytest

from patches import sglang_types
from patches.sglang_types import flags, models, requests, scheduling, server, snapshots, transfer
from toolkit.setup.layout import here
from toolkit.setup.releases import pinned

MODULES = (flags, models, requests, scheduling, server, snapshots, transfer)
OURS = re.compile("^_?toolkit_|^received$")
"""Fields that patches add."""
ELSEWHERE = {"ServerArgs": "srt/arg_groups/fields", "Req": "srt/disaggregation"}
"""Folders that give a class more fields."""
CLASS = re.compile(r"^class (\w+)(?:\(([^)]*)\))?:", re.M)


def place() -> Path:
    """Where SGLang is; nothing of it is imported."""
    found = importlib.util.find_spec("sglang")
    assert found is not None and found.submodule_search_locations
    return Path(found.submodule_search_locations[0])


@cache
def classes() -> dict[str, tuple[set[Path], set[str]]]:
    """SGLang's classes: by name, the files that have one, and the names of bases."""
    known: dict[str, tuple[set[Path], set[str]]] = {}
    for path in [*place().glob("*.py"), *(place() / "srt").rglob("*.py")]:
        for name, bases in CLASS.findall(path.read_text()):
            files, all_bases = known.setdefault(name, (set(), set()))
            files.add(path)
            all_bases |= set(re.findall(r"\w+", bases))
    return known


def words_of(name: str) -> set[str]:
    """Words of the files of a class and of its bases."""
    files, bases = classes().get(name, (set(), set()))
    more = (place() / ELSEWHERE[name]).rglob("*.py") if name in ELSEWHERE else ()
    words = {word for path in (*files, *more) for word in re.findall(r"\w+", path.read_text())}
    return words.union(*(words_of(base) for base in bases if base != name))


def protocols() -> list[type]:
    """All of them."""
    return [
        value
        for module in MODULES
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]


def named(kind: type) -> list[str]:
    """SGLang's classes that the docstring names."""
    said = (kind.__doc__ or "").split(":")[0]
    return (
        re.findall(r"`(\w+)`", said) if "SGLang's" in said and not issubclass(kind, tuple) else []
    )


def members(kind: type) -> set[str]:
    """Fields and methods of a protocol itself."""
    own = {
        *inspect.get_annotations(kind),
        *(n for n, v in vars(kind).items() if inspect.isfunction(v)),
    }
    own |= {name for name, value in vars(kind).items() if isinstance(value, property)}
    return {name for name in own if not name.startswith("__") and not OURS.match(name)}


@pytest.mark.skipif(
    version("sglang") != pinned(here()), reason="the fields are those of the pinned release"
)
@pytest.mark.parametrize("kind", [k for k in protocols() if named(k)], ids=lambda k: k.__name__)
def test_sglang_s_class_has_the_fields(kind: type) -> None:
    there = [name for name in named(kind) if name in classes()]
    assert there, f"SGLang has no class {' or '.join(named(kind))}"
    assert members(kind) - set().union(*map(words_of, there)) == set()


def test_every_type_is_given_by_the_package() -> None:
    assert {kind.__name__ for kind in protocols()} <= set(sglang_types.__all__)
    assert all(issubclass(kind, Protocol) or kind.__name__ == "Picks" for kind in protocols())


def test_nothing_of_sglang_is_imported_for_them_and_no_patch() -> None:
    for module in MODULES:
        assert isinstance(module, ModuleType)
        text = inspect.getsource(module)
        assert not re.search(r"^\s*(import|from) sglang", text, re.M)
        assert not re.search(r"^\s*(import|from) patches(?!\.sglang_types)", text, re.M)
