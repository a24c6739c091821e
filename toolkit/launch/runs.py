"""Which run is meant by `--run`: exactly one, by path, folder or name, and never by a guess.

A run lives while its launcher or one of the processes that this one started does. Those that live
come first: one that died later than they began does not hide them.
"""

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.launch import trees
from toolkit.launch.errors import LaunchError, Problem
from toolkit.launch.state import STATE, read_state, rows_of, runs_root

HOW = "name one by its folder: --run FOLDER (or its whole path)"


@dataclass(frozen=True)
class Run:
    """A run folder, and what its state says."""

    folder: Path
    state: dict[str, Any]
    written: float

    @property
    def name(self) -> str:
        """The deployment's."""
        return str(self.state.get("name"))

    @property
    def launched(self) -> bool:
        """The launcher that wrote the state lives (not another process with its number)."""
        return _lives(self.state)

    @property
    def lives(self) -> bool:
        """It does, or a process that it started and did not live to end."""
        return any(_lives(row) for row in (self.state, *rows_of(self.state)))

    def __str__(self) -> str:
        how = self.state.get("phase")
        if not self.launched and how not in ("stopped", "failed"):
            how = "launcher gone, processes left" if self.lives else "launcher gone"
        return f"{self.folder.name} (deployment {self.name}, {how}, pid {self.state.get('pid')})"


def every(root: Path | None = None) -> list[Run]:
    """All runs under `root` (default: where runs go), the newest state first."""
    root = root or runs_root()
    found = []
    for path in root.glob(f"*/{STATE}") if root.is_dir() else ():
        try:
            found.append(Run(path.parent, read_state(path.parent), path.stat().st_mtime))
        except (LaunchError, OSError):
            continue  # being removed, or none of ours
    return sorted(found, key=lambda run: (run.written, run.folder.name), reverse=True)


def of_id(run_id: str) -> Run | None:
    """The run with this id, where its folder is known."""
    return next((run for run in every() if run.state.get("run_id") == run_id), None)


def to_read(which: str | None = None) -> Run:
    """The run to show. Without `which` the newest that lives, or, when none does, the newest.

    Raises:
        LaunchError: no run is meant, or several are; it says which, and how to name one.
    """
    if which is not None:
        return _named(which, also_ended=True)
    runs = every()
    if not runs:
        raise LaunchError(
            [Problem(str(runs_root()), "no run yet", "start one: toolkit launch FILE.yaml")]
        )
    return next((run for run in runs if run.lives), runs[0])


def to_stop(which: str | None = None) -> Run:
    """The run to stop. Without `which` the one that lives, if it is the only one.

    Raises:
        LaunchError: as `to_read`, and where it would have to choose.
    """
    if which is not None:
        return _named(which, also_ended=False)
    living = [run for run in every() if run.lives]
    if len(living) == 1:
        return living[0]
    if living:
        raise _several("stop", f"{len(living)} runs live", living)
    repair = "a run in a folder elsewhere is named by its path: --run PATH"
    raise LaunchError([Problem(str(runs_root()), "no run lives here: nothing to stop", repair)])


def _named(which: str, also_ended: bool) -> Run:
    path = Path(which)
    if os.sep in which:
        return _at(path)
    runs = every()
    living = [run for run in runs if run.name == which and run.lives]
    ended = [run for run in runs if run.name == which and not run.lives]
    exact = [run for run in runs if run.folder.name == which]
    if (path / STATE).is_file():
        exact.append(_at(path))
    meant = list({run.folder.resolve(): run for run in [*exact, *living]}.values())
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise _several(f"--run {which}", f"means {len(meant)} runs", meant)
    if ended and also_ended:
        return ended[0]
    if ended:
        what = f"no run of that name lives; the last one was\n  {ended[0]}"
        raise LaunchError([Problem(f"--run {which}", what, HOW)])
    raise _unknown(which, runs)


def _at(folder: Path) -> Run:
    state = read_state(folder)
    return Run(folder.resolve(), state, (folder / STATE).stat().st_mtime)


def _unknown(which: str, runs: Sequence[Run]) -> LaunchError:
    """Nothing is called so: say what begins so, or nearly so."""
    names = {name for run in runs for name in (run.folder.name, run.name)}
    near = set(difflib.get_close_matches(which, names)) | {n for n in names if n.startswith(which)}
    like = [run for run in runs if near & {run.folder.name, run.name}]
    if like:
        return _several(f"--run {which}", "no run has exactly that name; like it", like)
    what = f"no run {which!r} in {runs_root()}"
    repair = "toolkit status shows the one that lives; or start one: toolkit launch FILE.yaml"
    return LaunchError([Problem(f"--run {which}", what, repair)])


def _several(where: str, what: str, runs: Sequence[Run]) -> LaunchError:
    ordered = sorted(runs, key=lambda run: not run.lives)  # a stable sort: else newest first
    shown = "".join(f"\n  {run}" for run in ordered[:20])
    more = f"\n  and {len(ordered) - 20} more" if len(ordered) > 20 else ""
    return LaunchError([Problem(where, f"{what}:{shown}{more}", HOW)])


def _lives(row: dict[str, Any]) -> bool:
    pid, start = row.get("pid"), row.get("start_ticks")
    return isinstance(pid, int) and pid > 0 and trees.is_running(pid, start)
