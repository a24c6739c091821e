"""One supervised process: its command, its log file, its present life and its past deaths."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from toolkit.contract.variables import DEVICE_VARIABLE, RUN_ID_VARIABLE
from toolkit.launch import trees
from toolkit.launch.orders import What
from toolkit.preloaded.client import Different, Forked, Preloaded

REFUSED = 78
"""Exit status of a worker whose patches did not all apply: starting it again cannot help."""

WORKER = "patches.worker"
"""What is run for an SGLang worker."""

CHILD = str(Path(__file__).with_name("child.py"))


class Status(StrEnum):
    """Where a process is in its life."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    STUCK = "stuck"
    RESTARTING = "restarting"
    RESTING = "resting"
    REFUSED = "refused"
    FAILED = "failed"
    STOPPED = "stopped"


RETRIED = frozenset({Status.RESTARTING, Status.RESTING})
"""Dead, and started again at `next_start`."""
FINAL = frozenset({Status.REFUSED, Status.FAILED, Status.STOPPED})


@dataclass
class Managed:
    """A process that the supervisor keeps alive."""

    name: str
    role: str
    url: str | None
    health_url: str
    command: Sequence[str]
    env: Mapping[str, str]
    log: Path
    after: Sequence[str] = ()
    without: Collection[str] = ()
    """Variables of the launcher that are not for it: others' keys."""
    passed: Sequence[int] = ()
    """Descriptors that it inherits."""
    settle: Callable[[], None] = lambda: None
    """Waits until what the process has said is in its log."""
    status: Status = Status.WAITING
    note: str = ""
    probed: str = ""
    """What the last probe found of one that is not ready."""
    restarts: int = 0
    deaths: list[float] = field(default_factory=list)
    """Times (monotonic s) of the latest deaths that count against it."""
    rests: int = 0
    """How often it has rested since it last ran well."""
    poison: int = 0
    """How many of its deaths the router has ascribed to poisonous requests, when last asked."""
    next_start: float = 0.0
    started: float = 0.0
    ready_after: float | None = None
    usual_start_s: float | None = None
    """The slowest of its last starts, until it was ready; None: it never was."""
    stuck: str = ""
    """Why it is ended: it makes no step."""
    probing: bool = False
    popen: subprocess.Popen[bytes] | Forked | None = None
    start_ticks: int = 0
    ordered: What | None = None
    """What it is ended for, when somebody has ordered that."""

    @property
    def pid(self) -> int | None:
        """Process id of the present life; None between lives."""
        return self.popen.pid if self.popen else None

    @property
    def leaders(self) -> dict[int, int]:
        """This process as `trees` wants it: pid -> start time."""
        return {self.popen.pid: self.start_ticks} if self.popen else {}

    def environment(self, run_id: str) -> dict[str, str]:
        """All variables that it gets."""
        mine = {name: value for name, value in os.environ.items() if name not in self.without}
        return {**mine, **self.env, RUN_ID_VARIABLE: run_id}

    @property
    def forkable(self) -> bool:
        """Whether it can be forked from a process that has imported SGLang for the CPU: it is run
        by the same Python and computes on the CPU. (CUDA does not survive a fork.)"""
        return (
            tuple(self.command[:3]) == (sys.executable, "-m", WORKER)
            and self.env.get(DEVICE_VARIABLE) == "cpu"
            and not self.passed
        )

    def spawn(self, run_id: str, output: int, preloaded: Preloaded | None = None) -> str:
        """Start it as a process group that writes to the descriptor `output`. The calling thread
        must outlive it (PDEATHSIG). OSError: it cannot be started now.

        Returns why it was not forked from `preloaded`; empty if it was, or was not to be.
        """
        env = self.environment(run_id)
        self.popen, why = None, ""
        if preloaded is not None:
            try:
                self.popen = preloaded.fork(WORKER, tuple(self.command), env, output)
            except Different as different:
                why = f"SGLang reads at import what differs here: {different}"
            except OSError as error:
                why = error.strerror or str(error)
        if self.popen is None:
            self.popen = start(self.command, env, output, self.passed)
        seen = trees.look(self.popen.pid)  # unreaped, so it is there even when dead already
        self.start_ticks = seen.start if seen else 0
        self.started = time.monotonic()
        self.status = Status.STARTING
        self.ready_after, self.stuck = None, ""
        return why

    def tail(self, lines: int = 15) -> str:
        """The last lines of the log."""
        self.settle()
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, self.log.stat().st_size - 65536))
                text = log.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.rstrip().splitlines()[-lines:])


def start(
    command: Sequence[str], env: Mapping[str, str], output: int, passed: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """A process group that ends with the calling thread."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", CHILD, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=env,
        process_group=0,
        pass_fds=tuple(passed),
    )


def describe_exit(code: int) -> str:
    """`exit status 1`, or `killed by SIGKILL` for a negative code."""
    if code >= 0:
        return f"exit status {code}"
    import signal

    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
