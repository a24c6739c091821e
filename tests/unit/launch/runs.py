"""Launchers as processes of their own, and what a supervisor has told."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from toolkit.launch.command import source_root
from toolkit.launch.progress import Quiet

LAUNCHER = """
import sys
from pathlib import Path
from tests.unit.launch.stand_ins import two_workers
from toolkit.cli.launch import _stop_on_signals
from toolkit.launch.progress import ProgressLines
from toolkit.launch.supervisor import Supervisor
class Report(ProgressLines):
    def event(self, text):
        print(text, flush=True)
supervisor = Supervisor(two_workers(), Path(sys.argv[1]), Report())
_stop_on_signals(supervisor)
supervisor.run()
"""


class Events(Quiet):
    """Lets a test wait for an event instead of sleeping."""

    def __init__(self) -> None:
        self.seen = []  # type: ignore[var-annotated]
        self._changed = threading.Condition()

    def event(self, text: Any) -> None:
        with self._changed:
            self.seen.append(text)
            self._changed.notify_all()

    def wait_for(self, part: Any, count: int = 1, timeout: int = 60) -> None:
        with self._changed:
            found = self._changed.wait_for(
                lambda: sum(part in text for text in self.seen) >= count, timeout
            )
        assert found, f"no {part!r} in {self.seen}"


def toolkit(*arguments: Any) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "toolkit", *arguments],
        cwd=source_root(),
        capture_output=True,
        text=True,
        timeout=120,
    )


def until(condition: Callable[[], object], timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
