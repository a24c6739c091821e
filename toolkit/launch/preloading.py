"""The preloaded process of a run: SGLang's imports, paid once for all its CPU workers."""

import contextlib
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

from toolkit.launch import trees
from toolkit.launch.guard import LauncherGuard
from toolkit.launch.logpipes import LogPipes
from toolkit.launch.process import Managed, start
from toolkit.preloaded.client import Preloaded

PRELOADED = "preloaded"
"""The name of its log."""
MODULE = "patches.preloaded"


def preloaded(
    workers: Sequence[Managed],
    logs: LogPipes,
    guard: LauncherGuard,
    run_id: str,
    selector: selectors.BaseSelector,
    changed: Callable[[str], None],
    wait_limit: float,
) -> Preloaded | None:
    """For these workers; None when there are none, or the kernel does not do what it takes."""
    if not workers:
        return None
    command = (sys.executable, "-m", MODULE)

    def begin(theirs: socket.socket) -> subprocess.Popen[bytes]:
        # What all workers have: for whom a variable differs that is read at import, it is no use.
        first, *others = [m.environment(run_id).items() for m in workers]
        environment = dict(first)
        for other in others:
            environment = dict(environment.items() & other)
        number = theirs.fileno()
        process = start((*command, str(number)), environment, logs.output(PRELOADED), [number])
        seen = trees.look(process.pid)
        guard.add(process.pid, seen.start if seen else 0)
        return process

    with contextlib.suppress(OSError):
        return Preloaded(begin, guard.forget, selector, changed, wait_limit)
    return None
