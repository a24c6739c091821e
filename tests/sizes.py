"""How much of the same kind a run of the tests tries (`tests/scope.py` says which tests run)."""

from __future__ import annotations

import os

from toolkit.setup.scopes import DEFAULT, FAST, SCOPE


def size(change: int, whole: int) -> int:
    """`whole`, but `change` in the run of a change."""
    return change if os.environ.get(SCOPE) in (FAST, DEFAULT) else whole
