"""Shared memory of what this test process has started: noted while it is mapped, missed when those
who had it are gone.

Its own code, so that it finds what the launcher's (`toolkit.launch.memory_files`) does not know: a
file of whatever name, that any descendant had mapped at any time.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")
LOOK_S = 0.25
GOES_S = 10.0
"""A worker that has just died may be on its way out, and its guard behind it."""

File = tuple[str, int]
"""Its name and its inode."""


class MemoryWatch:
    """Looks from a thread while it is open. A look costs a `stat` where nothing has changed."""

    def __init__(self) -> None:
        self._had: set[File] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-watch", daemon=True)
        self._thread.start()

    def left(self) -> list[str]:
        """Names of what is there though nobody has it mapped any more."""
        deadline = time.monotonic() + GOES_S
        while found := self._unused():
            if time.monotonic() > deadline:
                return sorted(name for name, _ in found)
            time.sleep(0.1)
        return []

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        changed, looks = -1, 0
        while not self._over.wait(LOOK_S):
            now = SHARED_MEMORY.stat().st_mtime_ns
            # A file is made first and mapped then.
            changed, looks = now, (2 if now != changed else max(0, looks - 1))
            if looks:
                had = mapped_by(psutil.Process().children(recursive=True))
                with self._lock:
                    self._had |= had

    def _unused(self) -> set[File]:
        with self._lock:
            self._had &= there()
            had = set(self._had)
        return had - mapped_by(psutil.process_iter()) if had else had


def there() -> set[File]:
    """All that is there."""
    with os.scandir(SHARED_MEMORY) as entries:
        return {(entry.name, entry.inode()) for entry in entries}


def mapped_by(processes: Iterable[psutil.Process]) -> set[File]:
    """What these processes have mapped of it; of a file in a folder, the folder."""
    device = SHARED_MEMORY.stat().st_dev
    shown = f" {os.major(device):02x}:{os.minor(device):02x} "
    inodes, names = set(), set()
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended
            for line in Path(f"/proc/{process.pid}/maps").read_text(errors="replace").splitlines():
                if shown in line:
                    inode, path = line.split(None, 5)[4:]
                    inodes.add(int(inode))
                    if path.startswith(f"{SHARED_MEMORY}/"):
                        names.add(path.removeprefix(f"{SHARED_MEMORY}/").partition("/")[0])
    return {each for each in there() if each[1] in inodes or each[0] in names}
