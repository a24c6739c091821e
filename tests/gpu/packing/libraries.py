"""Which shared libraries compiled modules ask for that are not there."""

import os
import subprocess
from pathlib import Path

WATCHED = ("sgl_kernel", "nixl_cu13", "mooncake")
"""Packages whose compiled parts are linked with libraries of the system or of the GPU's driver."""
OF_TORCH = ("libtorch", "libc10", "libcudart", "libcublas", "libnvrtc", "libcuda.so")
"""torch has them loaded before, or the driver brings them."""


def missing(folder: Path, environment: dict[str, str]) -> dict[str, list[str]]:
    """By library: the compiled files below `folder` that lack it. Empty where ldd is not there."""
    found: dict[str, list[str]] = {}
    for package in WATCHED:
        for path in sorted((folder / package).rglob("*.so")):
            for name in _lacking(path, environment):
                found.setdefault(name, []).append(str(path.relative_to(folder)))
    return found


def _lacking(path: Path, environment: dict[str, str]) -> list[str]:
    try:
        done = subprocess.run(
            ["ldd", str(path)],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | environment,
        )
    except FileNotFoundError:
        return []
    names = [line.split()[0] for line in done.stdout.splitlines() if "not found" in line]
    return [name for name in names if not name.startswith(OF_TORCH)]
