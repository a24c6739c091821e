"""A launcher in the background, and the wait until *it* says that its deployment is ready.

The folder may hold the state of an earlier run, ready too when its launcher was killed. So only a
state that the launcher just started has written counts: by pid and start time.
"""

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolkit.launch import trees
from toolkit.launch.errors import LaunchError
from toolkit.launch.state import LAUNCHER_LOG, read_state

POLL_S = 0.2
SHOWN = 4000
"""Characters of the log that are shown when the launcher ends."""


class Detached:
    """`toolkit launch`, in a session of its own; its output goes to launcher.log in `folder`."""

    def __init__(self, command: Sequence[str], folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self._log = folder / LAUNCHER_LOG
        fd = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "ab") as out:
            self._from = out.tell()
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        seen = trees.look(self.process.pid)  # unreaped, so it is there even when dead already
        self._start = seen.start if seen else 0

    def wait_ready(self) -> dict[str, Any] | None:
        """Its state once it is ready; None when it ended instead (`said` tells why)."""
        while self.process.poll() is None:
            state = self._state()
            if state is not None and state["phase"] == "ready":
                return state
            time.sleep(POLL_S)  # another process's file: there is nothing to wait on
        return None

    def said(self) -> str:
        """The end of what this launcher has written, not one before it."""
        with self._log.open("rb") as log:
            if log.seek(0, os.SEEK_END) < self._from:
                self._from = 0  # it was rotated meanwhile
            log.seek(self._from)
            return log.read().decode("utf-8", "replace")[-SHOWN:]

    def _state(self) -> dict[str, Any] | None:
        try:
            state = read_state(self.folder)
        except LaunchError:
            return None  # not written yet
        mine = (state.get("pid"), state.get("start_ticks")) == (self.process.pid, self._start)
        return state if mine else None
