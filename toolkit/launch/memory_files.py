"""Files in /dev/shm that the processes of a run have made: noted while they have them, removed once
nobody can need them. Standard library only: the guard imports this.

SGLang, Python's multiprocessing, torch, NCCL and CUDA keep buffers and semaphores there. SGLang
ends its processes by SIGKILL even where it is told to end, and then nobody removes them.

A file, or a router's folder, is removed if all of this holds; any other stays:

- its name begins as those of `MADE` (what a user keeps there, as weights, does not);
- a process of a worker was seen to have it mapped or open. That the worker's process id is in a
  name says nothing: containers that share /dev/shm have the same ids;
- no process of that worker is left;
- it is the same file still, this user's, and no other user may open it;
- no process has it mapped or open.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from toolkit.launch import trees

FOLDER = Path("/dev/shm")
MADE = (
    "sem.mp-",  # semaphores of multiprocessing
    "psm_",  # its shared memory, where nobody has named it; SGLang before 0.5.21
    "sgl_shm_mq_",  # SGLang: messages between the ranks of a worker
    "sgl_shm_nodecheck_",  # which ranks are on one machine
    "sglang_loads_",  # how busy each rank is
    "multi_tokenizer_args_",
    "torch_",  # tensors that processes share by name
    "nccl-",
    "cuda.shm.",
    "toolkit-router-",  # a folder: what the processes of a router count together
)
LOOKS = 2
"""A file is made first and opened then, by others maybe: who has seen nobody looks once more."""


class MemoryFile(NamedTuple):
    """A file that a process of the group led by `leader` had."""

    name: str
    leader: int


class MemoryFiles:
    """Which files are whose, by inode. Used by one thread."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._seen: dict[int, MemoryFile] = {}
        self._looks: dict[int, int] = {}
        """How often it was looked who has a file that nobody of ours has."""
        self._changed = -1
        self._again = 0

    def look(self, leaders: Mapping[int, int]) -> None:
        """Note what the processes below `leaders` (pid -> start time) have. It costs no more than a
        `stat` while no file is made or removed there."""
        if not leaders:
            return
        try:
            changed = self._folder.stat().st_mtime_ns
        except OSError:
            return
        if changed != self._changed:
            self._changed, self._again = changed, LOOKS
        if not self._again:
            return
        self._again -= 1
        there = self._there()
        self._seen = {inode: file for inode, file in self._seen.items() if inode in there}
        self._looks = {n: self._looks.get(n, 0) for n in there if n not in self._seen}
        new = {inode for inode, looks in self._looks.items() if looks < LOOKS}
        if not new:
            return
        for pid, leader in _families(leaders):
            for inode in new & self._had(pid):
                self._seen.setdefault(inode, MemoryFile(there[inode], leader))
        for inode in new:
            self._looks[inode] += 1

    def remove(self, leaders: Mapping[int, int]) -> None:
        """Remove the files of all that are not below `leaders`, which are those who live."""
        left = {inode for inode, file in self._seen.items() if file.leader not in leaders}
        if not left:
            return
        for entry in os.listdir("/proc"):  # noqa: PTH208 (as in trees)
            # Another user's processes cannot be seen, nor may he open these files.
            left -= self._had(int(entry)) if entry.isdigit() else set()
        for inode in left:
            file = self._folder / self._seen.pop(inode).name
            with contextlib.suppress(OSError):
                if _is_private(found := file.lstat()) and found.st_ino == inode:
                    shutil.rmtree(file) if stat.S_ISDIR(found.st_mode) else file.unlink()

    def _there(self) -> dict[int, str]:
        """Names of the files that may be a worker's, by inode."""
        found = {}
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith(MADE):
                    with contextlib.suppress(OSError):  # removed meanwhile
                        if _is_private(seen := entry.stat(follow_symlinks=False)):
                            found[seen.st_ino] = entry.name
        return found

    def _had(self, pid: int) -> set[int]:
        """Inodes of what a process has mapped or open there."""
        return self._mapped(pid) | self._open(pid)

    def _mapped(self, pid: int) -> set[int]:
        device = self._device()
        shown = f"{os.major(device):02x}:{os.minor(device):02x}".encode()
        try:
            with Path(f"/proc/{pid}/maps").open("rb") as maps:
                # A semaphore has another name there: that of its making. The inode is the same.
                rows = [line.split(None, 5)[3:5] for line in maps if shown in line]
        except OSError:  # it has ended, or is another user's
            return set()
        return {int(inode) for where, inode in rows if where == shown}

    def _open(self, pid: int) -> set[int]:
        device, found = self._device(), set()
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
                with contextlib.suppress(OSError):
                    link = f"/proc/{pid}/fd/{number}"
                    # Asked of no other: a file on a network may not answer.
                    if os.readlink(link).startswith(f"{self._folder}/"):  # noqa: PTH115
                        seen = os.stat(link)  # noqa: PTH116
                        found |= {seen.st_ino} if seen.st_dev == device else set()
        return found

    def _device(self) -> int:
        return self._folder.stat().st_dev


def _is_private(found: os.stat_result) -> bool:
    """A file or folder of this user's that no other may open."""
    kind = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return kind and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _families(leaders: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Each process below `leaders`, with its leader."""
    rows = {process.pid: process for process in trees.members(leaders)}
    for pid, process in rows.items():
        above: trees.ProcessRow | None = process
        while above is not None:
            if above.pid in leaders or above.group in leaders:
                yield pid, above.pid if above.pid in leaders else above.group
                break
            above = rows.get(above.ppid)
