"""Runs of this project that ended badly, and processes that they left."""

from pathlib import Path
from typing import Any

from toolkit.doctor.finding import Finding
from toolkit.launch import state, trees
from toolkit.launch.errors import LaunchError


def examine(root: Path | None = None) -> list[Finding]:
    """Looks at every run folder under `root` (default: where runs go)."""
    root = root or state.runs_root()
    running: list[str] = []
    stale: list[str] = []
    left: list[int] = []
    for folder in sorted(root.glob(f"*/{state.STATE}")) if root.is_dir() else []:
        run, name = _read(folder.parent), folder.parent.name
        if run is None or run.get("phase") in ("stopped", "failed"):
            continue
        if trees.is_running(run["pid"], run.get("start_ticks")):
            running.append(name)
        else:
            stale.append(name)
            left += [process.pid for process in trees.members(_leaders(run))]
    return [_running(running), _stale(stale, root), _left(left)]


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        return state.read_state(folder)
    except LaunchError:
        return None


def _leaders(run: dict[str, Any]) -> dict[int, int]:
    """Pid -> start time of each process that the launcher started."""
    return {p["pid"]: p["start_ticks"] for p in state.rows_of(run) if p.get("pid")}


def _running(names: list[str]) -> Finding:
    return Finding("running now", "ok", ", ".join(names) if names else "no deployment")


def _stale(names: list[str], root: Path) -> Finding:
    if not names:
        return Finding("broken runs", "ok", "none")
    what = f"{len(names)} whose launcher was killed, last {names[-1]}"
    return Finding("broken runs", "note", what, f"their logs are kept in {root}; remove at will")


def _left(pids: list[int]) -> Finding:
    if not pids:
        return Finding("left-over processes", "ok", "none")
    numbers = " ".join(map(str, pids))
    return Finding("left-over processes", "note", numbers, f"end them: kill -9 {numbers}")
