"""What a deployment was doing when a test failed: a rare failure is only seen once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil

from toolkit.launch.running import Running, RunningWorker

LOG_LINES = 60


def of(up: Running) -> Iterator[tuple[str, str]]:
    """(title, text) of each worker: its TCP sockets, process by process, and the end of its log."""
    for worker in up.workers:
        title = f"{worker.name}: {worker.status}, {worker.restarts} restarts"
        log = worker.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        yield title, "\n".join([*_sockets(worker), *log])


def _sockets(worker: RunningWorker) -> Iterator[str]:
    if worker.pid is None:
        return
    with contextlib.suppress(psutil.Error):  # it may be what the test has killed
        main = psutil.Process(worker.pid)
        for process in (main, *main.children(recursive=True)):
            yield f"{process.pid} {' '.join(process.cmdline())[:60]}"
            for each in process.net_connections("tcp"):
                yield f"  {each.status} {_address(each.laddr)} {_address(each.raddr)}"


def _address(found: tuple[str, int] | tuple[()]) -> str:
    return f"{found[0]}:{found[1]}" if found else "-"
