"""Whether a process still runs. It may end between two questions."""

from __future__ import annotations

import psutil


def lives(process: psutil.Process | int) -> bool:
    """A zombie does not: it has ended, and nobody has asked how."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return bool(found.is_running() and found.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
