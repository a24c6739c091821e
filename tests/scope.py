"""How much of the tests runs: `TOOLKIT_TEST_SCOPE`, set by `python3 -m toolkit.setup test`.

Marks: `sglang` (a process that imports SGLang; set by itself where a module has `run_python`),
`slow` (seconds of computing or waiting), `full` (takes long and rarely breaks).
"""

from __future__ import annotations

import os

import pytest

from toolkit.setup.testing import DEFAULT, FAST, SCOPE

LEFT_OUT = {FAST: ("sglang", "slow", "full", "e2e"), DEFAULT: ("full",)}


def leaves_out(item: pytest.Item) -> bool:
    """Whether this run goes without the test."""
    marks = LEFT_OUT.get(os.environ.get(SCOPE, ""), ())
    return any(item.get_closest_marker(mark) for mark in marks)


def needs_sglang(item: pytest.Item) -> bool:
    """Whether the test's module runs code in a process that has imported SGLang."""
    return hasattr(getattr(item, "module", None), "run_python")


def refuse_sglang() -> None:
    """A fast run starts no SGLang: a test that would has to say so."""
    if os.environ.get(SCOPE) == FAST:
        pytest.fail("this test starts SGLang: mark it `sglang`, a fast run goes without those")
