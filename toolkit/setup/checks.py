"""What must hold before anything is installed. Each check is a pure function of what it is
told and returns a plain-words problem, or None; `machine_problems` asks the machine."""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path
from typing import List, NamedTuple, Optional, Tuple

OLDEST_PYTHON = (3, 11)
TOO_NEW_PYTHON = (3, 13)
INSTALL_GIB = 4.0  # 2.7 GB stay; the rest is pip unpacking wheels and its download cache
UPDATE_GIB = 0.5
RUN_GIB = 6.0  # 1 prefill + 2 decode + router take about 5
GIB = 1024**3


class SetupProblem(NamedTuple):
    """`fatal` ones stop the set-up; the others are said once, and it goes on."""

    fatal: bool
    text: str


def check_platform(system: str, machine: str) -> Optional[SetupProblem]:
    """`system` and `machine` as platform.system() and platform.machine() give them."""
    if system == "Linux" and machine in ("x86_64", "AMD64"):
        return None
    return SetupProblem(
        True,
        f"This is {system} on {machine}. The pinned packages (PyTorch, the Mooncake transfer "
        "engine) exist for Linux on x86_64 only: use such a machine, a virtual one or a container.",
    )


def check_python(version: Tuple[int, ...]) -> Optional[SetupProblem]:
    if OLDEST_PYTHON <= tuple(version[:2]) < TOO_NEW_PYTHON:
        return None
    found = ".".join(str(part) for part in version[:3])
    return SetupProblem(
        True,
        f"This is Python {found}; the pinned packages need Python 3.11 or 3.12. Install "
        "it (Debian, Ubuntu: apt-get install python3.11 python3.11-venv) and run the same "
        "command with python3.11 in the place of python3.",
    )


def check_disk(free_bytes: int, needed_gib: float, folder: str) -> Optional[SetupProblem]:
    if free_bytes >= needed_gib * GIB:
        return None
    return SetupProblem(
        True,
        f"Only {free_bytes / GIB:.1f} GiB are free at {folder}; the set-up needs "
        f"{needed_gib:g} GiB there. Free some space (`pip cache purge` often helps), or move "
        "the project to a larger disk.",
    )


def check_memory(available_bytes: int) -> Optional[SetupProblem]:
    if available_bytes >= RUN_GIB * GIB:
        return None
    return SetupProblem(
        False,
        f"Only {available_bytes / GIB:.1f} GiB of memory are available; three workers and a "
        f"router take about 5. Close other programs, or expect the demo to be stopped.",
    )


def check_venv_module(has_ensurepip: bool) -> Optional[SetupProblem]:
    """Debian and Ubuntu ship Python without what `python -m venv` needs."""
    if has_ensurepip:
        return None
    name = "python%d.%d-venv" % sys.version_info[:2]
    return SetupProblem(
        True,
        f"This Python cannot make virtual environments: its module ensurepip is missing. "
        f"Run `apt-get install {name}` as root, then the same command again.",
    )


def available_memory() -> int:
    """Bytes that new programs can take without swapping; a huge number when unknown."""
    try:
        for row in Path("/proc/meminfo").read_text().splitlines():
            if row.startswith("MemAvailable:"):
                return int(row.split()[1]) * 1024
    except OSError:
        pass
    return 1 << 62


def machine_problems(root: Path, installed: bool) -> List[SetupProblem]:
    """Every problem of this machine, not only the first; `installed`: .venv is there already."""
    import importlib.util

    found = [
        check_platform(platform.system(), platform.machine()),
        check_python(sys.version_info[:3]),
        check_disk(
            shutil.disk_usage(root).free, UPDATE_GIB if installed else INSTALL_GIB, str(root)
        ),
        check_memory(available_memory()),
    ]
    if not installed:
        found.append(check_venv_module(importlib.util.find_spec("ensurepip") is not None))
    return [problem for problem in found if problem is not None]
