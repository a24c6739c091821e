"""Find and end whole process trees on Linux. Standard library only: the guard imports this.

A worker is a process group: its leader is what the launcher started, its schedulers are
grandchildren. It is no session: Linux gives each session the same part of the cores, however nice
its threads are (`sched_autogroup_enabled`, sched(7)), and workers that share cores have to be
weighed against each other by thread.

A pid alone proves nothing (pids are recycled), so every process is known by pid and start time,
and is signalled through a pidfd after its start time was looked at again.
"""

import os
import signal
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from toolkit.contract.variables import RUN_ID_VARIABLE as RUN_ID


class ProcessRow(NamedTuple):
    """A row of /proc: `start` is in clock ticks since boot."""

    pid: int
    ppid: int
    group: int
    start: int
    state: str


def look(pid: int) -> ProcessRow | None:
    """The process with this pid now; None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold anything, spaces and parentheses too.
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessRow(pid, int(fields[1]), int(fields[2]), int(fields[19]), fields[0])


def is_running(pid: int, start: int | None = None) -> bool:
    """True when `pid` lives (a zombie does not), and is the one that began at `start`."""
    process = look(pid)
    if process is None or process.state in "ZX":
        return False
    return start is None or process.start == start


def members(leaders: Mapping[int, int], run_id: str | None = None) -> list[ProcessRow]:
    """Live processes of the groups led by `leaders` (pid -> start time), with all descendants,
    and every process marked with `run_id`. Never the calling process."""
    table = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 (a Path per process is 10 times slower)
        if entry.isdigit() and (process := look(int(entry))):
            table[process.pid] = process
    groups = {
        pid
        for pid, start in leaders.items()
        # A leader that is gone keeps its number reserved as long as its group has members; a
        # stranger with another start time means that the number was given anew.
        if pid not in table or table[pid].start == start
    }
    found = {p.pid for p in table.values() if p.group in groups or p.pid in groups}
    if run_id:
        found |= {pid for pid in table if pid not in found and _marked(pid, run_id)}
    grown = True
    while grown:
        more = {p.pid for p in table.values() if p.ppid in found and p.pid not in found}
        found |= more
        grown = bool(more)
    found.discard(os.getpid())
    return [table[pid] for pid in sorted(found) if table[pid].state not in "ZX"]


def send(process: ProcessRow, signum: int) -> bool:
    """Signal exactly this process; False when it is gone already."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not is_running(process.pid, process.start):
            return False
        signal.pidfd_send_signal(fd, signum)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def kill_all(
    leaders: Mapping[int, int],
    run_id: str | None = None,
    timeout: float = 10.0,
    spare: Collection[int] = (),
) -> list[ProcessRow]:
    """SIGKILL all `members` but the pids in `spare`, until none is left or `timeout` s have passed.

    Returns those that are left (stuck in the kernel).
    """
    deadline = time.monotonic() + timeout
    while True:
        left = [p for p in members(leaders, run_id) if p.pid not in spare]
        if not left or time.monotonic() > deadline:
            return left
        for process in left:
            send(process, signal.SIGKILL)
        time.sleep(0.02)


def run_of(pid: int) -> str | None:
    """The run whose mark this process was started with; None: none, or not ours to look at."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    mark = f"{RUN_ID}=".encode()
    marks = [part for part in environ.split(b"\0") if part.startswith(mark)]
    return marks[0].removeprefix(mark).decode("utf-8", "replace") if marks else None


def _marked(pid: int, run_id: str) -> bool:
    return run_of(pid) == run_id
