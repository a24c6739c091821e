"""Commands of the toolkit as a user runs them, and what a launched run consists of."""

import os
import subprocess
import sys
from pathlib import Path

from toolkit.launch import trees
from toolkit.launch.command import source_root
from toolkit.launch.running import Running
from toolkit.launch.state import read_state, rows_of

STARTS = (
    "patches.worker",
    "patches.registry",
    "patches.preloaded",
    "patches.check_args",
    "toolkit.router",
)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toolkit", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "COLUMNS": "120"},
    )


def ordered(deployment: Running, *words: str) -> tuple[int, str]:
    """Give an order to the deployment by a command: exit status, and all that it said."""
    done = subprocess.run(
        [sys.executable, "-m", "toolkit", *words, "--run", str(deployment.run_dir)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.returncode, done.stdout + done.stderr


def everything(run: Path) -> list[trees.ProcessRow]:
    state = read_state(run)
    rows = rows_of(state)
    found = trees.members({r["pid"]: r["start_ticks"] for r in rows}, state["run_id"])
    assert len(found) >= 4  # server, scheduler, detokenizer, router
    guard = trees.look(state["guard_pid"])
    assert guard is not None
    return [*found, guard]


def environment(pid: int) -> dict[str, str]:
    """What a process has in its environment."""
    lines = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)


def toolkit(run: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toolkit", *arguments, "--run", str(run)],
        cwd=source_root(),
        capture_output=True,
        text=True,
        timeout=120,
    )
