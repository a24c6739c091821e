"""The note that a finished set-up leaves: while it still holds, there is nothing to do."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Dict, Optional

from toolkit.setup.layout import SetupLayout

FORMAT = 1  # raise it when the set-up does something new that old environments lack


def wanted(layout: SetupLayout) -> Dict[str, object]:
    """What an environment made now would be made from."""
    return {
        "format": FORMAT,
        "root": str(layout.root),  # scripts in .venv/bin carry it
        "python": "%d.%d" % sys.version_info[:2],
        "packages": _digest(layout.requirements),
        "project": _digest(layout.pyproject, layout.root / "setup.py"),
    }


def read(layout: SetupLayout) -> Optional[Dict[str, object]]:
    """The stamp in .venv, or None when there is none to trust."""
    try:
        stamp = json.loads(layout.stamp.read_text())
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) and os.access(layout.python, os.X_OK) else None


def write(layout: SetupLayout, stamp: Dict[str, object]) -> None:
    """At once or not at all: an interrupted set-up must not look finished."""
    temporary = layout.stamp.with_suffix(".new")
    temporary.write_text(json.dumps(stamp, indent=1) + "\n")
    temporary.replace(layout.stamp)


def remove(layout: SetupLayout) -> None:
    layout.stamp.unlink(missing_ok=True)


def _digest(*files: Path) -> str:
    total = hashlib.sha256()
    for file in files:
        total.update(file.read_bytes() if file.exists() else b"")
        total.update(b"\0")
    return total.hexdigest()[:16]
