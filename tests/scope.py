"""How much of the tests runs: `TOOLKIT_TEST_SCOPE`, set by `python3 -m toolkit.setup test`.

Marks: `sglang` (a process that imports SGLang; set by itself where a module has `run_python` or
`found_by`), `slow` (seconds of computing or waiting), `full` (takes long and rarely breaks; says
why), `touched` (runs where a change touches what it tries: `toolkit.setup.touched`).
"""

import os
from functools import cache
from pathlib import Path

import pytest

from toolkit.setup import touched
from toolkit.setup.scopes import DEFAULT, FAST, SCOPE

ROOT = Path(__file__).resolve().parents[1]

LEFT_OUT = {FAST: ("sglang", "slow", "full", "e2e"), DEFAULT: ("full",)}


def leaves_out(item: pytest.Item) -> bool:
    """Whether this run goes without the test."""
    scope = os.environ.get(SCOPE, "")
    if any(item.get_closest_marker(mark) for mark in LEFT_OUT.get(scope, ())):
        return True
    part = part_of(item)
    return scope == DEFAULT and part is not None and part not in touched_parts()


def part_of(item: pytest.Item) -> str | None:
    """The part of the tests that it belongs to; None where it runs for every change."""
    marked = item.get_closest_marker("touched")
    if marked is not None:
        return str(marked.args[0])
    if item.get_closest_marker("slow") is None:
        return None
    return touched.of_slow(item.path.relative_to(ROOT).as_posix())


@cache
def touched_parts() -> frozenset[str]:
    """Parts of the tests that a change has to run."""
    return frozenset(touched.touched(ROOT))


def needs_sglang(item: pytest.Item) -> bool:
    """Whether the test's module runs code in a process that has imported SGLang."""
    return hasattr(getattr(item, "module", None), "run_python")
