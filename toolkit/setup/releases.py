"""SGLang releases besides the pinned one, each in a folder that goes before it on the path.

The pinned set (cpu.lock) is installed once. Of another release SGLang itself is fetched, and what
it cannot do without: its own code runs on the same dependencies on the CPU, where little of what
else differs between releases (kernels, CUDA) is used.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Dict, Optional

from toolkit.setup import installer, lockfile, say
from toolkit.setup.layout import SetupLayout

PROVEN = ("0.5.20", "0.5.21", "0.5.22", "0.5.23")
"""Releases that the patches are proven with, oldest first (docs/pages/releases.md says how far)."""

BESIDE = {"0.5.23": ("openai==2.8.0",)}
"""What a release needs that the pinned set does not have: its /v1/responses is off without."""

_VERSION = re.compile(r"\d+\.\d+\.\d+(\.\w+)?")


def pinned(layout: SetupLayout) -> str:
    """The release that the environment itself has."""
    return lockfile.parse(layout.requirements.read_text())["sglang"]


def folder(layout: SetupLayout, release: str) -> Path:
    """Where a release lies."""
    return layout.venv / "sglang" / release


def ensure(layout: SetupLayout, release: str) -> Optional[Path]:
    """The folder of a release, fetched if it is not there; None for the pinned one.

    Raises:
        SetupError: it is no version, or pip did not get it.
    """
    if not _VERSION.fullmatch(release):
        raise say.SetupError(f"--sglang {release}: give a release's version, such as {PROVEN[-1]}")
    if release == pinned(layout):
        return None
    place = folder(layout, release)
    if place.is_dir():
        return place
    if release not in PROVEN:
        say.line(f"careful: the patches are proven with SGLang {', '.join(PROVEN)} only")
    place.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=place.parent, prefix="new-"))
    try:
        with say.step(f"SGLang {release}, beside the pinned one"):
            wanted = [f"sglang=={release}", *BESIDE.get(release, ())]
            installer.install(layout, ["--target", str(new), *wanted])
        if not place.is_dir():  # or somebody else was quicker
            new.rename(place)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return place


def environment(place: Optional[Path]) -> Dict[str, str]:
    """What a process needs in its environment to run with the release there."""
    if place is None:
        return {}
    parts = [str(place), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(part for part in parts if part)}
