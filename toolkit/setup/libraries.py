"""What comes from Debian: the libraries that KV transfer loads, and a browser for the tests."""

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


BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER_PACKAGE = "chromium-headless-shell"


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
        _apt_install(absent)
    if missing():
        raise say.SetupError(advice(missing(), is_root, has_apt))


def ensure_browser() -> None:
    """Installs a browser for the test of the report page, when root; else says what would."""
    if os.environ.get("TOOLKIT_BROWSER") or any(map(shutil.which, BROWSERS)):
        return
    if os.geteuid() == 0 and shutil.which("apt-get") is not None:
        with say.step(f"a browser for the tests by apt-get: {BROWSER_PACKAGE}"):
            _apt_install([BROWSER_PACKAGE])
    if not any(map(shutil.which, BROWSERS)):
        say.line(
            "no Chromium: the test of the report page is skipped (Debian: sudo apt-get install "
            f"--no-install-recommends {BROWSER_PACKAGE}; or name one in TOOLKIT_BROWSER)"
        )


def _apt_install(packages: List[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends"]):
        # A failed update may be one stale source: the install tells whether it matters.
        names = packages if command[0] == "install" else []
        subprocess.run(
            ["apt-get", *command, *names], env=environment, stdin=subprocess.DEVNULL, check=False
        )
