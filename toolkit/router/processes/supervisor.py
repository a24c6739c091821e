"""The process that forks a router's other processes, and does it again for one that has ended.

It has imported what they need and runs no event loop, so that a fork takes milliseconds. It holds
the listening sockets: connections that wait while a relay is replaced are not lost. All others end
with it.
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

from toolkit.router.processes.shared import SharedRows

if TYPE_CHECKING:
    from toolkit.settings.router.config import RouterConfig

log = logging.getLogger("toolkit.router")

MEMORY = "/dev/shm"
PREFIX = "toolkit-router-"
DECIDER = 0
"""The row of the decider process; relays follow."""
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
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
WRONG_CONFIGURATION = 2


class ProcessSupervisor:
    """One router. `relays`: how many."""

    def __init__(
        self,
        config: RouterConfig,
        relays: int,
        sockets: list[socket.socket],
        admin_sockets: list[socket.socket],
        folder: Path,
    ) -> None:
        self._config = config
        self._relays = relays
        self._sockets = sockets
        self._admin_sockets = admin_sockets
        self._folder = folder
        self._rows = SharedRows(relays + 1)
        self._rows_of: dict[int, int] = {}
        """By pid."""
        self._serial = 0
        self._asked = 0
        """How often it was told to end, and has not begun to."""
        self._woken, self._wakes = socket.socketpair()
        """Where signals show, so that none is waited for in vain."""
        for each in (self._woken, self._wakes):
            each.setblocking(False)
        self._forked_at: dict[int, float] = {}
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
        for row in range(self._relays + 1):
            self._fork(row)
        while self._rows_of:
            select.select([self._woken], [], [], LOOK_S)
            with suppress(BlockingIOError):
                self._woken.recv(64)
            for _ in range(self._asked):
                self._stop()
            self._asked = 0
            self._reap()
            self._look()
        return self._code

    def _signalled(self, number: int, _: object) -> None:
        if number != signal.SIGCHLD:
            self._asked += 1

    def _fork(self, row: int) -> None:
        self._serial += 1
        serial, parent = self._serial, os.getpid()
        self._rows.clear(row)
        # A signal must not come to the other process while it has this one's handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if pid:
            self._rows_of[pid], self._forked_at[pid] = row, monotonic()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            return
        code = 1
        try:
            code = self._child(row, serial, parent)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _child(self, row: int, serial: int, parent: int) -> int:
        """The life of another process."""
        import uvloop

        from toolkit.router import parse_server
        from toolkit.router.processes import decider_process, relay_process
        from toolkit.settings.router.config import ConfigError

        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        for each in (self._woken, self._wakes):
            each.close()
        parse_server.die_with(parent)
        # As `ps` and `top` show it.
        Path("/proc/self/comm").write_text("tk-decider" if row == DECIDER else f"tk-relay-{row}")
        place = relay_process.ProcessPlace(self._rows, row, serial, self._folder)
        config = self._config
        try:
            if row == DECIDER:
                for each in self._sockets:
                    each.close()
                decider = decider_process.serve(config, place, self._relays, self._admin_sockets)
                return int(uvloop.run(decider))
            for each in self._admin_sockets:
                each.close()
            parsers = parse_server.forked()
            served = relay_process.serve(config, place, self._relays, self._sockets, parsers)
            return int(uvloop.run(served))
        except ConfigError as error:
            print(error, file=sys.stderr)
            return WRONG_CONFIGURATION

    def _stop(self) -> None:
        """The first signal drains, a second one ends the relays at once."""
        if not self._stopping:
            self._stopping = True
            for each in (*self._sockets, *self._admin_sockets):
                each.close()  # ours; the others' stay until they close them
        for pid in self._rows_of:
            if self._rows_of[pid] != DECIDER or not self._ends_at:
                _tell(pid, signal.SIGTERM)

    def _reap(self) -> None:
        from toolkit.router import parse_server

        for pid, code in parse_server.ended_children():
            self._ended(pid, code)

    def _ended(self, pid: int, code: int) -> None:
        row = self._rows_of.pop(pid, None)
        if row is None:
            return
        from prometheus_client.multiprocess import mark_process_dead

        self._rows.clear(row)
        mark_process_dead(pid, str(self._folder / "metrics"))  # type: ignore[no-untyped-call]
        if self._stopping:
            return
        name = "the deciding process" if row == DECIDER else f"relay {row}"
        log.error("%s (%d) ended with %d; another one is started", name, pid, code)
        soon = monotonic() - self._forked_at.pop(pid) < SOON_S
        self._deaths = self._deaths + 1 if soon else 0
        often = self._deaths == DEATHS
        if often or code == WRONG_CONFIGURATION:
            if often:
                log.error("%d processes in a row ended within %.0f s", DEATHS, SOON_S)
            self._code = code if code == WRONG_CONFIGURATION else 1
            self._stop()
            self._stop()
            return
        self._fork(row)

    def _look(self) -> None:
        """End a process that hangs, and at the end the decider process."""
        now, before = monotonic(), self._looked_at
        self._looked_at = now
        if now - before > HELD_UP_S:
            self._looks_from = now + HELD_UP_S
        for pid, row in list(self._rows_of.items()) if now > self._looks_from else ():
            still_s = self._rows.still_s(row)
            if still_s > HUNG_S[row == DECIDER]:
                log.error("process %d has not come round for %.1f s: it is ended", pid, still_s)
                _tell(pid, signal.SIGKILL)
        if not self._stopping or set(self._rows_of.values()) != {DECIDER}:
            return
        (decider,) = self._rows_of
        if not self._ends_at:
            self._ends_at = monotonic() + END_S
            _tell(decider, signal.SIGTERM)
        elif monotonic() > self._ends_at:
            _tell(decider, signal.SIGKILL)


def _tell(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def run(config_path: str, relays: int) -> int:
    """Be the router of this configuration; the exit code (see `toolkit.router.__main__`)."""
    # In memory, since a full disk would end whoever counts there.
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=memory))
    # All processes of the router have it: who may remove the folder sees by it that they live.
    held = hold(folder)
    clear_left(folder.parent)
    metrics = folder / "metrics"
    metrics.mkdir()
    # Before anything counts: all processes of the router count together in there.
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(metrics)
    from prometheus_client import values

    values.ValueClass = values.get_value_class()  # type: ignore[no-untyped-call]
    try:
        return _run(config_path, relays, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _run(config_path: str, relays: int, folder: Path) -> int:
    from toolkit import front
    from toolkit.contract.addresses import host_port, http_url, loopback_like
    from toolkit.router import parse_server
    from toolkit.router.processes import preloading
    from toolkit.settings.router.config import ConfigError
    from toolkit.settings.router.load import load_config

    try:
        config = load_config(config_path)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return WRONG_CONFIGURATION
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
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
        return 1
    sockets += front.inherited()
    parse_server.prepare()
    preloading.everything(config)
    log.info("listening on %s, with %d relays", http_url(host, port), relays)
    gc.collect()
    gc.freeze()
    return ProcessSupervisor(config, relays, sockets, admin, folder).run()


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
