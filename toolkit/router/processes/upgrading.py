"""An upgrade of the router while it serves, step by step.

The supervisor has the new code rehearsed by a process of its own. If that can be a router, and one
whose processes understand those that run, the supervisor becomes it (it keeps its pid, its children
and its sockets), and forks a new generation: relays that accept beside the former ones, and a
decider process that waits. Until all of them stand, nothing has changed, and what fails is undone.
Then the former relays accept no more and end with their last client, and the former decider process
makes room for the next one, which all relays tell of what runs.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from toolkit.bounded_files import parse_json
from toolkit.router.processes import serving, supervisor_state
from toolkit.router.processes.agreement import Agreement, why_not
from toolkit.router.processes.children import SIGNALS, WRONG_CONFIGURATION
from toolkit.router.processes.shared import ACCEPTS, PLACES
from toolkit.router.processes.supervisor_state import SupervisorState
from toolkit.router.processes.upgrade_file import UpgradeFile

if TYPE_CHECKING:
    from toolkit.router.processes.children import RouterChild, RouterProcesses
    from toolkit.router.processes.upgrade_file import Phase

log = logging.getLogger("toolkit.router")

REHEARSAL = "toolkit.router.rehearsal"
CONFIG, OUT, ERRORS = "rehearsed.json", "rehearsal.out", "rehearsal.err"
"""In the folder that the processes share: the configuration that is tried, and what came of it."""
REHEARSAL_S, START_S = 300.0, 60.0
"""So long a rehearsal may take, and a new generation until all of it stands."""
LEAVE_S = 2.0
"""The former decider process has so long to leave."""
DEATHS = 3
"""Of processes of a new generation before it stands; with one more it has failed."""
TEXT = 2000
"""Characters of what a rehearsal says that are passed on."""


class Upgrading:
    """One upgrade after another. `config_path`: what the router was started with; `agreed`: what
    its processes agree on."""

    def __init__(self, config_path: str, agreed: Agreement, processes: RouterProcesses) -> None:
        self._config_path = config_path
        self._agreed = agreed
        self._processes = processes
        self._file = UpgradeFile(processes.folder)
        self._progress = self._file.read()
        self._rehearsal = 0
        """Its pid."""
        self._deadline = 0.0
        self._deaths = 0

    @property
    def _over(self) -> bool:
        return self._progress.over

    def _now(self, phase: Phase, **more: Any) -> None:
        self._progress = msgspec.structs.replace(self._progress, phase=phase, **more)
        self._file.write(self._progress)

    # The former code.

    def order(self, ending: bool) -> None:
        """Somebody wants one, by the decider process or by a signal. `ending`: the router is."""
        if not self._over:
            log.error("an upgrade is under way already")
            return
        told = self._file.read()
        if told.phase != "ordered":
            told = msgspec.structs.replace(told, number=told.number + 1, drain_s=None)
        self._progress = msgspec.structs.replace(told, why="", cut=0)
        log.info("upgrade %d: the code and the configuration are tried", self._progress.number)
        self._now("rehearsing")
        if ending:
            self.fail("the router is ending")
            return
        try:
            self._rehearse()
        except OSError as error:
            self.fail(f"{self._config_path}: {error.strerror}")

    def _rehearse(self) -> None:
        folder = self._processes.folder
        shutil.copyfile(self._config_path, folder / CONFIG)
        # Its figures are nobody's.
        env = {n: v for n, v in os.environ.items() if n != "PROMETHEUS_MULTIPROC_DIR"}
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._rehearsal = os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", REHEARSAL, str(folder / CONFIG)],
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 1, str(folder / OUT), flags, 0o600),
                (os.POSIX_SPAWN_OPEN, 2, str(folder / ERRORS), flags, 0o600),
            ],
        )
        self._deadline = monotonic() + REHEARSAL_S

    def rehearsed(self, pid: int, code: int) -> None:
        """A process has ended that is none of the router's."""
        if pid != self._rehearsal:
            return
        self._rehearsal = 0
        if self._progress.phase != "rehearsing":
            return
        wrong = self._judged(code)
        if wrong:
            self.fail(wrong)
            return
        log.info("upgrade %d: the supervisor becomes the new code", self._progress.number)
        self._now("starting")
        try:
            supervisor_state.become(self._config_path, self._state(), SIGNALS)
        except OSError as error:
            self._now("rehearsing")
            self.fail(f"the new code cannot be run: {error.strerror}")

    def _judged(self, code: int) -> str:
        """Why the rehearsal has shown that it cannot be; empty: it can."""
        folder = self._processes.folder
        if not code:
            try:
                new = parse_json((folder / OUT).read_bytes().splitlines()[-1])
                wrong = why_not(self._agreed, new)
            except (OSError, ValueError, IndexError, AttributeError, TypeError):
                return "the new code does not say what its processes agree on"
            return wrong and f"{wrong}: this takes a restart"
        said = (folder / ERRORS).read_text("utf-8", "replace")[-TEXT:].strip()
        said = said.replace(str(folder / CONFIG), self._config_path)
        if code == WRONG_CONFIGURATION:
            return said
        log.error("the rehearsal of the new code ended with %d: %s", code, said)
        return f"the new code ended with {code}: {said.rpartition(chr(10))[2]}"

    def _state(self) -> SupervisorState:
        processes = self._processes
        return SupervisorState(
            str(processes.folder), str(processes.folder / CONFIG), processes.relays,
            processes.rows.count, processes.rows.number,
            [each.fileno() for each in processes.sockets],
            [each.fileno() for each in processes.admin_sockets],
            processes.serial, [(each.pid, each.row, each.decides) for each in processes],
        )  # fmt: skip

    # The new code.

    def start(self) -> None:
        """Fork the new generation; the processes that are there are the former one."""
        for child in self._processes:
            child.former = True
        self._processes.fork(decides=True, waits=True)
        for _ in range(self._processes.relays):
            self._processes.fork(decides=False)
        self._deadline = monotonic() + START_S

    def takes(self, child: RouterChild, code: int) -> bool:
        """Whether it is for this upgrade that a process has ended: nobody takes its place."""
        if child.dropped:
            return True
        phase = self._progress.phase
        if phase == "starting" and not child.former:
            self._deaths += 1
            if code == WRONG_CONFIGURATION or self._deaths > DEATHS:
                self.fail(f"{child.name} of the new code ended with {code} (see the router's log)")
                return True
            log.error("%s of the new code ended with %d; again", child.name, code)
            self._processes.fork(child.decides, child.row, child.waits)
            return True
        return child.former and phase in ("replacing", "ending")

    def go_on(self) -> None:
        """What can be done by now."""
        match self._progress.phase:
            case "rehearsing" if monotonic() > self._deadline:
                self.fail(f"the new code was not ready after {REHEARSAL_S:.0f} s")
            case "starting":
                self._see_whether_it_stands()
            case "replacing":
                self._replace_decider()
            case "ending":
                self._see_whether_all_ended()
            case _:
                pass

    def _see_whether_it_stands(self) -> None:
        rows = self._processes.rows
        accepting = rows.serving(ACCEPTS)
        new = [child for child in self._processes if not child.former]
        if all(child.row in accepting for child in new if not child.decides) and self._stands():
            log.info("upgrade %d: the new generation stands", self._progress.number)
            for child in self._processes:
                if child.former:
                    child.tell(serving.RETIRE)
            self._deadline = monotonic() + LEAVE_S
            self._now("replacing")
        elif monotonic() > self._deadline:
            self.fail(f"the new processes were not ready after {START_S:.0f} s")

    def _stands(self) -> bool:
        """Whether the decider process that waits can take over."""
        waiting = [child for child in self._processes if child.waits]
        return all(self._processes.rows.still_s(child.row) for child in waiting)

    def _replace_decider(self) -> None:
        leaving = [child for child in self._processes if child.decides and child.former]
        if leaving:
            if monotonic() > self._deadline:
                leaving[0].tell(signal.SIGKILL)
            return
        if not self._stands():
            return
        for child in self._processes:
            if child.waits:
                child.waits = False
                child.tell(serving.BEGIN)
        self._deadline = monotonic() + (self._progress.drain_s or 0.0)
        self._now("ending")

    def _see_whether_all_ended(self) -> None:
        former, progress = [child for child in self._processes if child.former], self._progress
        if not former:
            log.info("upgrade %d: the former relays have ended", progress.number)
            self._now("done")
            return
        if progress.drain_s is None or monotonic() < self._deadline:
            return
        if not progress.cut:
            rows = self._processes.rows
            self._now("ending", cut=sum(rows.get(child.row, PLACES) for child in former))
        for child in former:
            child.tell(signal.SIGTERM)  # again and again: a second one ends it at once

    def fail(self, why: str) -> None:
        """The former generation serves on."""
        log.error("upgrade %d has failed: %s", self._progress.number, why)
        if self._rehearsal:
            os.kill(self._rehearsal, signal.SIGKILL)
        new = [] if self._progress.phase == "rehearsing" else list(self._processes)
        for child in new:
            if not child.former:
                child.dropped = True
                child.tell(signal.SIGKILL)
            child.former = False
        self._now("failed", why=why)

    def stop(self) -> None:
        """The router ends: what has not begun does not."""
        if self._progress.phase in ("rehearsing", "starting"):
            self.fail("the router is ending")
