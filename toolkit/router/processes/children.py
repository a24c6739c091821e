"""The processes that a router's supervisor has forked, and how it forks them."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from toolkit.router.processes.shared import SharedRows

if TYPE_CHECKING:
    from toolkit.settings.router.config import RouterConfig

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR2)
"""Of the supervisor."""
WRONG_CONFIGURATION = 2
GENERATIONS = 2
"""That are there at a time, in an upgrade."""


@dataclass(eq=False, slots=True)
class RouterChild:
    """`row`: of the shared numbers; `decides`: it is the decider process, or `waits` to be it;
    `former`: of the generation that an upgrade replaces; `dropped`: of one that came to nothing."""

    pid: int
    row: int
    decides: bool
    waits: bool = False
    former: bool = False
    dropped: bool = False
    forked_at: float = 0.0

    def tell(self, number: int) -> None:
        """Send it a signal, if it is there."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    @property
    def name(self) -> str:
        """For people."""
        return "the deciding process" if self.decides else f"relay {self.row}"


class RouterProcesses:
    """All of them. `relays`: how many there are of a generation; `serial`: how many were ever
    forked; `kept`: what is the supervisor's alone."""

    def __init__(
        self,
        config: RouterConfig,
        relays: int,
        sockets: Sequence[socket.socket],
        admin_sockets: Sequence[socket.socket],
        folder: Path,
        rows: SharedRows,
        serial: int = 0,
    ) -> None:
        self.config = config
        self.relays = relays
        self.sockets = sockets
        self.admin_sockets = admin_sockets
        self.folder = folder
        self.rows = rows
        self.serial = serial
        self.kept: list[socket.socket] = []
        self.by_pid: dict[int, RouterChild] = {}

    def __iter__(self) -> Iterator[RouterChild]:
        return iter(list(self.by_pid.values()))

    def fork(
        self, decides: bool, row: int = -1, waits: bool = False, former: bool = False
    ) -> RouterChild:
        """Another one. `row`: negative: one that is free."""
        if row < 0:
            taken = {child.row for child in self}
            row = next(row for row in range(self.rows.count) if row not in taken)
        self.serial += 1
        child, parent = RouterChild(0, row, decides, waits, former), os.getpid()
        self.rows.clear(row)
        # A signal must not come to the other process while it has this one's handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        child.pid = os.fork()
        if child.pid:
            self.by_pid[child.pid], child.forked_at = child, monotonic()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            return child
        code = 1
        try:
            code = self._live(child, parent)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _live(self, child: RouterChild, parent: int) -> int:
        """The life of another process."""
        import uvloop

        from toolkit.router import parse_server
        from toolkit.router.processes import decider_process, relay_process, serving
        from toolkit.settings.router.config import ConfigError

        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        for each in self.kept:
            each.close()
        parse_server.die_with(parent)
        place = relay_process.ProcessPlace(self.rows, child.row, self.serial, self.folder)
        config = self.config
        try:
            if child.decides:
                serving.called(decider_process.WAITS if child.waits else decider_process.NAME)
                for each in self.sockets:
                    each.close()
                decider = decider_process.serve(config, place, self.admin_sockets, child.waits)
                return int(uvloop.run(decider))
            serving.called(f"tk-relay-{child.row}")
            for each in self.admin_sockets:
                each.close()
            parsers = parse_server.forked()
            served = relay_process.serve(config, place, self.relays, self.sockets, parsers)
            return int(uvloop.run(served))
        except ConfigError as error:
            print(error, file=sys.stderr)
            return WRONG_CONFIGURATION

    def ended(self, pid: int) -> RouterChild | None:
        """It is no more; None: it was none of these."""
        child = self.by_pid.pop(pid, None)
        if child is not None:
            from prometheus_client.multiprocess import mark_process_dead

            self.rows.clear(child.row)
            mark_process_dead(pid, str(self.folder / "metrics"))  # type: ignore[no-untyped-call]
        return child
