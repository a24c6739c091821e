"""The files of a run folder, kept up to date as far as the disk allows.

Nothing of a run depends on them once it has begun, but that people and `toolkit status` and `stop`
can see it, and that a router that is started again reads `router.json`. So a full disk or a removed
folder costs a warning: the next try comes after a second, then 2, 4 .. `LAST_PAUSE`, and a folder
that was removed is made again with all that belongs into it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toolkit.launch.errors import LaunchError, Problem
from toolkit.launch.logfile import private_folder
from toolkit.launch.state import STATE, write_json

FIRST_PAUSE, LAST_PAUSE = 1.0, 60.0
LOOK_EVERY = 5.0
"""Seconds between two looks whether the files are still there."""


class RunFiles:
    """`fixed` (name -> content) does not change; the state does. Used by one thread."""

    def __init__(self, folder: Path, fixed: Mapping[str, Any], warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._fixed = fixed
        self._warn = warn
        self._failing = False
        self._pause = FIRST_PAUSE
        self._next = 0.0

    def begin(self) -> None:
        """Write what does not change. LaunchError: nothing can be started like this."""
        try:
            self._write_fixed()
        except OSError as error:
            what = f"cannot be written: {error.strerror}"
            repair = (
                "make room there, or name another folder: --run-dir, or the variable TOOLKIT_RUNS"
            )
            raise LaunchError([Problem(str(self._folder), what, repair)]) from error

    def write(self, state: Mapping[str, Any], now: float, last: bool = False) -> None:
        """Replace the state, unless that failed just now; `warn` is called when it begins to fail
        and when it works again. The `last` state is tried in any case, but for a folder that was
        removed."""
        if self._failing and now < self._next and not last:
            return
        try:
            removed = not self._complete()
            if removed and last:
                return
            if removed:
                self._write_fixed()
            write_json(self._folder / STATE, state)
        except OSError as error:
            self._next = now + self._pause
            self._pause = min(2 * self._pause, LAST_PAUSE)
            if not self._failing:
                self._failing = True
                self._warn(
                    f"state cannot be written to {self._folder} ({error.strerror}): workers go on, "
                    "it is tried again; toolkit status and logs show what was"
                )
            return
        self._next, self._pause = now + LOOK_EVERY, FIRST_PAUSE
        if self._failing:
            self._failing = False
            self._warn("state is written again")
        elif removed:
            self._warn(f"files of the run folder {self._folder} were removed; made them again")

    def due(self, now: float) -> bool:
        """True when `write` is to be called though nothing happened."""
        if now < self._next:
            return False
        if self._failing:
            return True
        self._next = now + LOOK_EVERY
        return not (self._complete() and (self._folder / STATE).exists())

    @property
    def timer(self) -> float | None:
        """When (monotonic s) to try again after a failure; None when all is well."""
        return self._next if self._failing else None

    def _complete(self) -> bool:
        return all((self._folder / name).exists() for name in self._fixed)

    def _write_fixed(self) -> None:
        private_folder(self._folder)
        for name, content in self._fixed.items():
            write_json(self._folder / name, content)
