"""The heartbeat of a worker's process: a small file that it writes and that others read.

A process that hangs cannot say so, and a thread of it can neither: native code may hold the
interpreter's lock, and a stopped process (SIGSTOP) has no thread that runs. So the loop itself
counts its rounds, in a file that it maps into memory; whoever reads the file from outside sees that
the count stands still. `toolkit.decide.watchdog` judges what is read.

The files of a worker are in the folder that HEARTBEAT_VARIABLE names: `scheduler-N` of DP rank N,
`follower-PID` of each scheduler that follows another one's requests (other ranks of its tensor
parallelism, maybe on another node), and `http` of the process that serves HTTP.
"""

import math
import mmap
import os
import re
import struct
from pathlib import Path
from typing import NamedTuple

HTTP = "http"
"""The file of the process that serves HTTP."""
DOING_BYTES = 40
LONGEST_S = 3600.0
"""No forward is expected to take longer; what says so is taken for this."""
_LAYOUT = struct.Struct(f"<QQd{DOING_BYTES}s")
"""Rounds, whether it holds work, expected seconds, what it does."""
_SCHEDULER = re.compile(r"scheduler-(\d{1,5})")
_KNOWN = re.compile(rf"{_SCHEDULER.pattern}|follower-\d+|{HTTP}")


class Beat(NamedTuple):
    """`beats`: rounds since the process began. `works`: whether it holds requests. `doing`: what it
    has begun and announced, empty between two such things. `expected_s`: how long that takes, or a
    round where nothing is announced, by the process's own measure; 0 where it cannot say."""

    beats: int
    works: bool = False
    doing: str = ""
    expected_s: float = 0.0


class HeartbeatFile:
    """The file of this process. Writing one costs less than a microsecond and never waits."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, _LAYOUT.size)
            self._memory = mmap.mmap(descriptor, _LAYOUT.size)
        finally:
            os.close(descriptor)

    def write(self, beat: Beat) -> None:
        """Replace what the file says."""
        doing = beat.doing.encode("ascii", "replace")[:DOING_BYTES]
        self._memory[:] = _LAYOUT.pack(beat.beats, beat.works, beat.expected_s, doing)


def read(path: Path) -> Beat | None:
    """What a process last wrote; None where there is no such file, or none that makes sense."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) != _LAYOUT.size:
        return None
    beats, works, expected_s, doing = _LAYOUT.unpack(data)
    name = doing.rstrip(b"\0").decode("ascii", "replace")
    return Beat(beats, bool(works), name, sane_seconds(expected_s))


def sane_seconds(seconds: float) -> float:
    """An expectation that another process has told: 0 unless it is one, LONGEST_S at most."""
    return min(seconds, LONGEST_S) if math.isfinite(seconds) and seconds > 0 else 0.0


def scheduler(dp_rank: int) -> str:
    """The name of a DP rank's file."""
    return f"scheduler-{dp_rank}"


def follower(pid: int) -> str:
    """The name of the file of a scheduler that follows another one's requests."""
    return f"follower-{pid}"


def rank_of(name: str) -> int | None:
    """The DP rank whose file has this name; None of another file."""
    found = _SCHEDULER.fullmatch(name)
    return int(found[1]) if found else None


def read_all(folder: Path) -> dict[str, Beat]:
    """What all processes of a worker last wrote, by the names of their files."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 (asked every half a second)
    except OSError:
        return {}
    found = {name: read(folder / name) for name in names if _KNOWN.fullmatch(name)}
    return {name: beat for name, beat in found.items() if beat is not None}
