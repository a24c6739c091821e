"""Tell people, where that is possible: standard error may be a full disk or closed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.launch.logfile import rotate_own
from toolkit.launch.progress import Reporter
from toolkit.launch.state import LAUNCHER_LOG
from toolkit.settings.processes import LogFiles

if TYPE_CHECKING:
    from toolkit.launch.process import Managed


class Announcer:
    """A reporter that cannot stop the run, whatever becomes of its output; keeps the log of a
    detached launcher as small as `logs` says."""

    def __init__(self, reporter: Reporter, run_dir: Path, logs: LogFiles) -> None:
        self._reporter = reporter
        self._log = run_dir / LAUNCHER_LOG
        self._logs = logs

    def event(self, text: str) -> None:
        """Something worth a line happened."""
        rotate_own(self._log, int(self._logs.max_mib * 2**20), self._logs.keep)
        with contextlib.suppress(OSError, ValueError):
            self._reporter.event(text)

    def refresh(self, phase: str, processes: Iterable[Managed]) -> None:
        """The state now."""
        with contextlib.suppress(OSError):
            self._reporter.refresh(phase, processes)

    def close(self) -> None:
        """No more calls follow."""
        with contextlib.suppress(OSError):
            self._reporter.close()
