"""The run folder and state.json: what `toolkit status`, `stop` and `logs` know about a run."""

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.bounded_files import read_json
from toolkit.launch.errors import LaunchError, Problem

STATE = "state.json"
LAUNCHER_LOG = "launcher.log"
"""What a detached launcher has as its standard output and error."""


def runs_root() -> Path:
    """Where run folders go: $TOOLKIT_RUNS, else ~/.cache/toolkit/runs."""
    fixed = os.environ.get("TOOLKIT_RUNS")
    return Path(fixed).expanduser() if fixed else Path.home() / ".cache" / "toolkit" / "runs"


def new_run_dir(name: str, root: Path | None = None) -> Path:
    """Create `<root>/<name>-<time>`, for its user only; a number is added when it is taken."""
    root = root or runs_root()
    stamp = time.strftime("%Y%m%d-%H%M%S")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for attempt in range(1000):
        path = root / (f"{name}-{stamp}" + (f"-{attempt}" if attempt else ""))
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return path
    raise LaunchError(f"cannot make a new run folder in {root}")


def prepare_run_dir(folder: Path) -> None:
    """Make the folder, or take one that is there, and close it to other users: logs lie in it.

    A folder with other things in it (somebody's home) is left as it is. LaunchError: there is none
    to be had.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_open = folder.stat().st_mode & 0o077
        if is_open and ((folder / STATE).is_file() or not any(folder.iterdir())):
            folder.chmod(0o700)
    except OSError as error:
        what = f"cannot be the run folder: {error.strerror}"
        raise LaunchError(
            [Problem(str(folder), what, "make room there, or name another with --run-dir")]
        ) from error


def drop_empty(folder: Path) -> None:
    """Remove a run folder of which nothing came."""
    with contextlib.suppress(OSError):  # it holds something
        folder.rmdir()


def write_json(path: Path, data: Any) -> None:
    """`write_whole` of indented JSON."""
    write_whole(path, json.dumps(data, indent=1, default=str) + "\n")


def write_whole(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace `path` atomically: a reader sees the old file or the new one, never a part."""
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as out:
            out.write(text)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_state(run_dir: Path) -> dict[str, Any]:
    """The state of a run. LaunchError when the folder holds none."""
    try:
        state: dict[str, Any] = read_json(run_dir / STATE)
    except (OSError, ValueError) as error:
        what = f"no readable {STATE}: {error}"
        raise LaunchError([Problem(str(run_dir), what, "name another run with --run")]) from error
    return state


def rows_of(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a state says of each process: the workers', then the routers'."""
    return [*(state.get("workers") or ()), *(state.get("routers") or ())]
