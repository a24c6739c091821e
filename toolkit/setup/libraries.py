"""The shared libraries that the Mooncake transfer engine (KV transfer) loads."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from typing import Dict, List

from toolkit.setup import say

# Library as the loader knows it -> Debian and Ubuntu package that carries it.
PACKAGES: Dict[str, str] = {
    "libibverbs.so.1": "libibverbs1",
    "libnl-3.so.200": "libnl-3-200",
    "libnl-route-3.so.200": "libnl-route-3-200",
}


def missing() -> List[str]:
    """Debian packages whose library the dynamic loader does not find."""
    return [package for library, package in PACKAGES.items() if not _loads(library)]


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def advice(packages: List[str], is_root: bool, has_apt: bool) -> str:
    """What to do about `packages`, for somebody whom the set-up cannot help itself."""
    names = " ".join(packages)
    if has_apt and not is_root:
        return (
            f"System libraries are missing ({names}), and installing them takes root. Run\n"
            f"    sudo apt-get update && sudo apt-get install -y {names}\n"
            "once, or have it run for you, then the same command again."
        )
    if has_apt:
        return f"`apt-get install {names}` failed, in its own words above. Mend that and try again."
    return (
        f"System libraries are missing: {', '.join(PACKAGES)}. This system has no apt-get: install "
        "what carries them with its own package manager (Fedora, RHEL: libibverbs libnl3), "
        "then run the same command again."
    )


def ensure() -> None:
    """Installs what is missing when this is root on a system with apt-get.

    Raises:
        SetupError: with what to run instead.
    """
    absent = missing()
    if not absent:
        return
    is_root, has_apt = os.geteuid() == 0, shutil.which("apt-get") is not None
    if not (is_root and has_apt):
        raise say.SetupError(advice(absent, is_root, has_apt))
    with say.step(f"system libraries by apt-get: {' '.join(absent)}"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update", "-qq"], ["install", "-y", "-qq", *absent]):
            # A failed update may be one stale source: the install tells whether it matters.
            subprocess.run(
                ["apt-get", *command], env=environment, stdin=subprocess.DEVNULL, check=False
            )
    if missing():
        raise say.SetupError(advice(missing(), is_root, has_apt))
