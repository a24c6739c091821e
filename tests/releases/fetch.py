"""Supported releases of SGLang on this machine: where each lies, and its contract's verdicts."""

import os
import subprocess
import sys
from pathlib import Path

from tests.gpu.packing.wanted import SGLANG
from tests.releases.contract import Verdict, read
from tests.releases.source import Source
from tests.sglang_python import CPU_ENVIRONMENT, PROJECT
from toolkit.setup import layout, releases
from toolkit.setup.releases import PROVEN

WAIT_LIMIT_S = 300.0
FITTED = (SGLANG, *PROVEN)
"""Releases that every contract fits: the proven ones, and the one of the GPU checks. Oldest
first."""


def place(release: str) -> Path:
    """The folder that holds its `sglang`, fetched if need be."""
    where = layout.here()
    found = releases.ensure(where, release)
    return where.site_packages if found is None else found


def source(release: str) -> Source:
    """Its source."""
    return Source(place(release))


def contract(release: str) -> list[Verdict]:
    """Verdicts on every symbol of every patch, from a process that imports that release."""
    return read(said(release, "tests.releases.contract"))


def said(release: str, module: str) -> str:
    """What a module of ours prints in a process that imports that release.

    RuntimeError: it could not be imported.
    """
    path = os.pathsep.join([str(place(release)), str(PROJECT)])
    # It keeps what it compiles: half of the time of the first import.
    own = {"PYTHONPATH": path, "TOOLKIT_PATCHES": "0"}
    environment = layout.tool_environment() | CPU_ENVIRONMENT | own
    done = subprocess.run(
        [sys.executable, "-m", module],
        env=environment,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"SGLang {release} cannot be imported: {done.stderr[-2000:]}")
    return done.stdout
