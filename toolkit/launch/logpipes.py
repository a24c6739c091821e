"""The launcher's side of the logs: a pipe for each process, and the pump that empties them.

The pipes live as long as the launcher, beyond the death of a process or of the pump; a new pump
goes on with what is in them. The launcher itself only writes a line at each start, and never waits:
stopped or hung, it keeps no worker from writing.
"""

import contextlib
import fcntl
import os
import select
import selectors
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from toolkit.settings.processes import LogFiles

CAPACITY = 1 << 20
"""Bytes that a pipe is to hold: what an unprivileged process may ask for."""
WAIT_LIMIT = 2.0
"""Seconds that a pipe may stay more than half full before the pump counts as hung."""


class LogPipes:
    """Pipes and pump of one run. Used by one thread."""

    def __init__(
        self,
        files: Mapping[str, Path],
        limits: LogFiles,
        selector: selectors.BaseSelector,
        changed: Callable[[str], None],
    ) -> None:
        self._limits = limits
        self._files = dict(files)
        self._selector = selector
        self._changed = changed
        self._reads: dict[str, int] = {}
        self._writes: dict[str, int] = {}
        self._own: dict[str, int] = {}
        self._capacity = 1 << 16
        for name in files:
            self._pipe(name)
        self._failing: dict[str, str] = {}
        self._words = b""
        self._asked = self._settled = 0
        self._full_since: float | None = None
        self._ended = False
        self._pump = self._start()

    @property
    def pid(self) -> int:
        """The pump's process id."""
        return self._pump.pid

    def output(self, name: str) -> int:
        """What the process `name` gets as its standard output and error."""
        return self._writes[name]

    def say(self, name: str, line: str) -> None:
        """Add a line of the launcher's to a log; dropped when the pipe is full."""
        with contextlib.suppress(OSError):
            os.write(self._own[name], f"{line}\n".encode())

    def settle(self, timeout: float = 1.0) -> None:
        """Wait until what was written before is in the files, `timeout` s at most."""
        self._asked += 1
        with contextlib.suppress(OSError, ValueError):
            self._stdin.write(f"settle {self._asked}\n".encode())
            self._stdin.flush()
        deadline = time.monotonic() + timeout
        while self._settled < self._asked and (left := deadline - time.monotonic()) > 0:
            if not select.select([self._stdout], [], [], left)[0] or not self._listen():
                return

    def tick(self, now: float) -> None:
        """Start another pump when this one is dead or no longer empties the pipes."""
        if self._ended or self._pump.poll() is not None:
            self._pump.kill()
            self._pump.wait()
            self._renew("was gone")
            return
        if all(_waiting(fd) * 2 <= self._capacity for fd in self._reads.values()):
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        elif now - self._full_since > WAIT_LIMIT:
            self._pump.kill()
            self._renew("hung")

    @property
    def timer(self) -> float | None:
        """When (monotonic s) `tick` has something to do beside its turn."""
        return None if self._full_since is None else self._full_since + WAIT_LIMIT

    def close(self, timeout: float = 6.0) -> None:
        """Close the pipes and wait for the last words; for when all processes are gone."""
        for fd in (*self._writes.values(), *self._own.values()):
            os.close(fd)
        try:
            self._pump.wait(timeout)
        except subprocess.TimeoutExpired:
            self._pump.kill()
            self._pump.wait(1.0)
        self._forget_pump()
        for fd in self._reads.values():
            os.close(fd)

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._pump.stdin is not None
        return self._pump.stdin

    @property
    def _stdout(self) -> IO[bytes]:
        assert self._pump.stdout is not None
        return self._pump.stdout

    def _pipe(self, name: str) -> None:
        read, write = os.pipe()
        with contextlib.suppress(OSError):  # beyond the user's share of pipe memory: stays small
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, CAPACITY)
        self._capacity = fcntl.fcntl(write, fcntl.F_GETPIPE_SZ)
        self._reads[name], self._writes[name] = read, write
        # Another description of the same pipe: the workers' one must go on waiting when it is full.
        self._own[name] = os.open(f"/proc/self/fd/{write}", os.O_WRONLY | os.O_NONBLOCK)

    def _start(self) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).resolve().parents[2])
        limits = [str(int(self._limits.max_mib * 2**20)), str(self._limits.keep)]
        files = [f"{self._reads[name]}:{name}:{path}" for name, path in self._files.items()]
        pump = subprocess.Popen(
            [sys.executable, "-S", "-m", "toolkit.launch.logpump", *limits, *files],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=tuple(self._reads.values()),
            env={"PYTHONPATH": root, "PATH": os.environ.get("PATH", "")},
            cwd="/",
            start_new_session=True,
        )
        assert pump.stdout is not None and pump.stdin is not None
        os.set_blocking(pump.stdout.fileno(), False)
        os.set_blocking(pump.stdin.fileno(), False)
        self._selector.register(pump.stdout, selectors.EVENT_READ, self._listen)
        self._full_since = None
        self._ended = False
        return pump

    def _renew(self, why: str) -> None:
        self._forget_pump()
        self._failing.clear()
        try:
            self._pump = self._start()
        except OSError:
            return  # no memory or descriptors now: the next tick tries again
        self._changed(f"the process that writes the logs {why}; started a new one")

    def _forget_pump(self) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._stdout)
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(OSError, ValueError):
                pipe.close()
        self._words = b""

    def _listen(self) -> bool:
        """Take in what the pump said; False when it has ended."""
        try:
            data = os.read(self._stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        except (OSError, ValueError):
            return False
        if not data:
            self._selector.unregister(self._stdout)
            self._ended = True  # `tick` starts another one
            return False
        *lines, self._words = (self._words + data).split(b"\n")
        for line in lines:
            self._heard(line.decode("utf-8", "replace"))
        return True

    def _heard(self, line: str) -> None:
        what, _, rest = line.partition(" ")
        name, _, more = rest.partition(" ")
        if what == "settled":
            self._settled = max(self._settled, int(name))
        elif what == "lost":
            first = not self._failing
            self._failing[name] = more
            if first:
                self._changed(
                    f"logs cannot be written ({more}): what processes say is dropped, they go on"
                )
        elif what == "again" and self._failing.pop(name, None) is not None and not self._failing:
            self._changed("logs are written again")


def _waiting(fd: int) -> int:
    """Bytes that nobody has read from a pipe."""
    answer = fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0")
    return int.from_bytes(answer, sys.byteorder)
