"""The process that forks a router's other processes, and does it again for one that has ended.

It has imported what they need and runs no event loop, so that a fork takes milliseconds. It holds
the listening sockets: connections that wait while a relay is replaced are not lost. All others end
with it. In an upgrade it becomes new code, and stays the same process (`upgrading`).
"""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from toolkit.router.processes import supervisor_state
from toolkit.router.processes.children import (
    GENERATIONS,
    SIGNALS,
    WRONG_CONFIGURATION,
    RouterChild,
    RouterProcesses,
)
from toolkit.router.processes.shared import SharedRows

if TYPE_CHECKING:
    from toolkit.router.processes.supervisor_state import SupervisorState
    from toolkit.router.processes.upgrading import Upgrading
    from toolkit.settings.router.config import RouterConfig

log = logging.getLogger("toolkit.router")

MEMORY = "/dev/shm"
PREFIX = "toolkit-router-"
LOOK_S = 0.1
HELD_UP_S = 1.0
"""A supervisor that comes round so much later was stopped, and the others with it, maybe."""
HUNG_S = {True: 5.0, False: 30.0}
"""The decider process (True), or a relay, whose event loop does not come round for so long is
ended."""
END_S = 5.0
"""The decider process has so long to end when all relays have."""
DEATHS, SOON_S = 20, 2.0
"""The router ends when so many processes in a row have died so soon after they were forked."""


class ProcessSupervisor:
    """One router."""

    def __init__(self, processes: RouterProcesses, upgrading: Upgrading) -> None:
        self._processes = processes
        self._upgrading = upgrading
        self._asked = self._upgrades = 0
        """How often it was told to end, or to upgrade, and has not begun to."""
        self._woken, self._wakes = socket.socketpair()
        """Where signals show, so that none is waited for in vain."""
        for each in (self._woken, self._wakes):
            each.setblocking(False)
            processes.kept.append(each)
        self._looked_at = monotonic()
        self._looks_from = 0.0
        """Before that no process counts as hung: all may have stood still, this one too."""
        self._deaths = 0
        """In a row, soon after a fork."""
        self._stopping = False
        self._ends_at = 0.0
        """When the decider process, which was told to end, is killed."""
        self._code = 0

    def run(self) -> int:
        """Until all others have ended; the exit code."""
        # Not `sigtimedwait`: of one that SIGCONT interrupts Python tells a signal that never came.
        for number in SIGNALS:
            signal.signal(number, self._signalled)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # this code may follow another one
        if self._processes.by_pid:
            self._upgrading.start()
        else:
            self._processes.fork(decides=True)
            for _ in range(self._processes.relays):
                self._processes.fork(decides=False)
        while self._processes.by_pid:
            select.select([self._woken], [], [], LOOK_S)
            with suppress(BlockingIOError):
                self._woken.recv(64)
            for _ in range(self._asked):
                self._stop()
            self._asked = 0
            if self._upgrades:
                self._upgrading.order(self._stopping)
                self._upgrades = 0
            self._reap()
            self._look()
            self._upgrading.go_on()
        return self._code

    def _signalled(self, number: int, _: object) -> None:
        if number == signal.SIGUSR2:
            self._upgrades += 1
        elif number != signal.SIGCHLD:
            self._asked += 1

    def _stop(self) -> None:
        """The first signal drains, a second one ends the relays at once."""
        if not self._stopping:
            self._stopping = True
            self._upgrading.stop()
            for each in (*self._processes.sockets, *self._processes.admin_sockets):
                each.close()  # ours; the others' stay until they close them
        for child in self._processes:
            if not child.waits and not (child.decides and self._ends_at):
                child.tell(signal.SIGTERM)

    def _reap(self) -> None:
        from toolkit.router import parse_server

        for pid, code in parse_server.ended_children():
            self._ended(pid, code)

    def _ended(self, pid: int, code: int) -> None:
        child = self._processes.ended(pid)
        if child is None:
            self._upgrading.rehearsed(pid, code)
            return
        if self._upgrading.takes(child, code) or self._stopping:
            return
        log.error("%s (%d) ended with %d; another one is started", child.name, pid, code)
        soon = monotonic() - child.forked_at < SOON_S
        self._deaths = self._deaths + 1 if soon else 0
        often = self._deaths == DEATHS
        if often or code == WRONG_CONFIGURATION:
            if often:
                log.error("%d processes in a row ended within %.0f s", DEATHS, SOON_S)
            self._code = code if code == WRONG_CONFIGURATION else 1
            self._stop()
            self._stop()
            return
        self._processes.fork(child.decides, child.row, child.waits, child.former)

    def _look(self) -> None:
        """End a process that hangs, and at the end the decider process."""
        now, before = monotonic(), self._looked_at
        self._looked_at = now
        if now - before > HELD_UP_S:
            self._looks_from = now + HELD_UP_S
        for child in self._processes if now > self._looks_from else ():
            still_s = self._processes.rows.still_s(child.row)
            if still_s > HUNG_S[child.decides]:
                log.error(
                    "process %d has not come round for %.1f s: it is ended", child.pid, still_s
                )
                child.tell(signal.SIGKILL)
        if not self._stopping or not all(child.decides for child in self._processes):
            return
        self._ends_at = self._ends_at or monotonic() + END_S
        for child in self._processes:
            child.tell(signal.SIGKILL if monotonic() > self._ends_at else signal.SIGTERM)


def run(config_path: str, relays: int) -> int:
    """Be the router of this configuration; the exit code (see `toolkit.router.__main__`)."""
    state = supervisor_state.inherited()
    folder = _folder() if state is None else Path(state.folder)
    # All processes of the router have it: who may remove the folder sees by it that they live.
    held = hold(folder)
    clear_left(folder.parent)
    # Before anything counts: all processes of the router count together in there.
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder / "metrics")
    from prometheus_client import values

    values.ValueClass = values.get_value_class()  # type: ignore[no-untyped-call]
    try:
        return _run(config_path, relays, folder, state)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _folder() -> Path:
    # In memory, since a full disk would end whoever counts there.
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=memory))
    (folder / "metrics").mkdir()
    return folder


def _run(config_path: str, relays: int, folder: Path, state: SupervisorState | None) -> int:
    from toolkit.router import parse_server
    from toolkit.router.processes import preloading
    from toolkit.router.processes.agreement import agreement
    from toolkit.router.processes.upgrading import Upgrading
    from toolkit.settings.router.config import ConfigError
    from toolkit.settings.router.load import load_config

    try:
        config = load_config(config_path if state is None else state.config)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return WRONG_CONFIGURATION
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if state is None:
        opened = _listen(config, relays)
        if opened is None:
            return 1
        rows = SharedRows(GENERATIONS * (relays + 1))
        processes = RouterProcesses(config, relays, *opened, folder, rows)
    else:
        processes = _taken_over(config, state)
    upgrading = Upgrading(config_path, agreement(config, processes.relays), processes)
    parse_server.prepare()
    preloading.everything(config)
    gc.collect()
    gc.freeze()
    return ProcessSupervisor(processes, upgrading).run()


def _listen(
    config: RouterConfig, relays: int
) -> tuple[list[socket.socket], list[socket.socket]] | None:
    """The sockets of clients and of the admin; None: they cannot be had, and that was said."""
    from toolkit import front
    from toolkit.contract.addresses import host_port, http_url, loopback_like

    where = (config.host, config.port)
    try:
        sockets = front.listen(*where)
        host, port = sockets[0].getsockname()[:2]
        admin: list[socket.socket] = []
        if config.admin_port:
            where = (loopback_like(config.host), config.admin_port)
            admin = front.listen(*where)
    except OSError as error:
        print(f"cannot listen on {host_port(*where)}: {error.strerror}", file=sys.stderr)
        return None
    log.info("listening on %s, with %d relays", http_url(host, port), relays)
    return sockets + front.inherited(), admin


def _taken_over(config: RouterConfig, state: SupervisorState) -> RouterProcesses:
    """What the code before this one has left."""
    rows = SharedRows(state.rows, state.memory)
    sockets, admin = (
        [socket.socket(fileno=number) for number in numbers]
        for numbers in (state.sockets, state.admin_sockets)
    )
    folder = Path(state.folder)
    processes = RouterProcesses(config, state.relays, sockets, admin, folder, rows, state.serial)
    for pid, row, decides in state.children:
        processes.by_pid[pid] = RouterChild(pid, row, decides)
    return processes


def hold(folder: Path) -> int:
    """Have it for this process and those that it forks: a descriptor."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    fcntl.flock(held, fcntl.LOCK_SH)
    return held


def clear_left(beside: Path) -> None:
    """Remove folders of routers that were killed. A process id alone says nothing: containers that
    share the memory have each their own."""
    for folder in beside.glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        with suppress(OSError, ValueError):
            if folder.lstat().st_uid != os.getuid() or Path(f"/proc/{int(pid)}").exists():
                continue
            found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(found)
