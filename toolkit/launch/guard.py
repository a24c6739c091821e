"""A tiny process that outlives the launcher by one job: leave nothing behind.

It holds the read end of a pipe whose only writer is the launcher. Lines `add PID START` and
`del PID` keep its list of worker trees. When the launcher ends, however it ends, the pipe
closes; whatever then still lives of the run is killed, its folder of temporary files removed, and
the guard goes too. It removes what a worker has left in shared memory, once that is over and at the
end (`memory_files`): the launcher may be gone by then, and has no time to look there.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from toolkit.launch import trees
from toolkit.launch.memory_files import MemoryFiles

LOOK_S = 0.25
"""Seconds between two looks into shared memory. What a worker had for less is not seen."""


def main() -> None:
    """`python -m toolkit.launch.guard RUN_ID FOLDER`, the pipe on standard input."""
    run_id, folder = sys.argv[1:]
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    leaders: dict[int, int] = {}
    memory = MemoryFiles()
    for lines in _read(sys.stdin.fileno()):
        for words in (line.split() for line in lines):
            if words[:1] == ["add"] and len(words) == 3:
                leaders[int(words[1])] = int(words[2])
            elif words[:1] == ["del"] and len(words) == 2:
                leaders.pop(int(words[1]), None)
                with contextlib.suppress(OSError):  # no descriptors now: at the end
                    memory.remove(leaders)
        with contextlib.suppress(OSError):
            memory.look(leaders)
    left = trees.kill_all(leaders, run_id, timeout=30.0)
    shutil.rmtree(folder, ignore_errors=True)
    memory.remove({})
    sys.exit(1 if left else 0)


def _read(pipe: int) -> Iterator[list[str]]:
    """The lines that have come, none after `LOOK_S` in which there were none, until it closes."""
    rest = b""
    while True:
        if not select.select([pipe], [], [], LOOK_S)[0]:
            yield []
            continue
        data = os.read(pipe, 65536)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield [line.decode() for line in lines]


class LauncherGuard:
    """The launcher's handle on its guard; starts another one if somebody kills it."""

    def __init__(self, run_id: str, scratch: Path) -> None:
        self._run_id = run_id
        self._scratch = scratch
        self._leaders: dict[int, int] = {}
        self._process = self._start()

    @property
    def pid(self) -> int:
        """The guard's process id."""
        return self._process.pid

    def add(self, pid: int, start: int) -> None:
        """Watch over the group led by `pid`, which began at `start` (clock ticks)."""
        self._leaders[pid] = start
        self._tell(f"add {pid} {start}\n")

    def forget(self, pid: int) -> None:
        """The group is over and its members are gone."""
        if self._leaders.pop(pid, None) is not None:
            self._tell(f"del {pid}\n")

    def renew(self) -> bool:
        """Start a new guard if this one died; True when it did."""
        if self._process.poll() is None:
            return False
        with contextlib.suppress(OSError):
            self._pipe.close()
        try:
            self._process = self._start()
        except OSError:
            return False  # no memory or descriptors now: the next call tries again
        for pid, start in self._leaders.items():
            self._tell(f"add {pid} {start}\n")
        return True

    def close(self, timeout: float = 35.0) -> None:
        """End the guard (it first kills what is still registered or marked)."""
        with contextlib.suppress(OSError):
            self._pipe.close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def _pipe(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _start(self) -> subprocess.Popen[str]:
        root = str(Path(__file__).resolve().parents[2])
        env = {"PYTHONPATH": root, "PATH": os.environ.get("PATH", "")}
        return subprocess.Popen(
            [sys.executable, "-S", "-m", "toolkit.launch.guard", self._run_id, str(self._scratch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd="/",
            text=True,
            start_new_session=True,
        )

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a dead guard is renewed by the supervisor's loop
            self._pipe.write(line)
            self._pipe.flush()


if __name__ == "__main__":
    main()
