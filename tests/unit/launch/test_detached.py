"""`--detach` waits for the launcher that it has started, whatever lies in the folder."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.launch.runs import LAUNCHER
from tests.unit.launch.stand_ins import wait_gone
from toolkit.launch import trees
from toolkit.launch.command import python_env, source_root
from toolkit.launch.detached import Detached
from toolkit.launch.state import STATE, read_state

FILE = "name: one\nmode: plain\nmodel: {path: /nowhere}\n"
"""Refused at once: no such model."""


def ready_by(pid: int, start: int) -> str:
    """The state of a run of somebody else that is ready."""
    state = {"name": "old", "phase": "ready", "pid": pid, "start_ticks": start, "run_id": "old"}
    return json.dumps(state | {"router_url": "http://127.0.0.1:1", "workers": []})


def detach(folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder.parent / "one.yaml"
    file.write_text(FILE)
    command = [sys.executable, "-m", "toolkit", "launch", str(file), "--no-check", "--detach"]
    return subprocess.run(
        [*command, "--run-dir", str(folder)],
        cwd=source_root(),
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.slow
def test_an_old_ready_does_not_count(tmp_path: Path) -> None:
    """Neither that of a launcher that was killed nor that of one that lives."""
    me = trees.look(os.getpid())
    assert me is not None
    for pid, start in ((2**22 - 1, 5), (me.pid, me.start)):
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        (folder / STATE).write_text(ready_by(pid, start))
        (folder / "launcher.log").write_text("what an earlier launcher said\n")
        started = detach(folder)
        assert started.returncode == 1
        assert "is ready" not in started.stdout
        assert "/nowhere" in started.stderr
        assert "an earlier launcher" not in started.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    (path / STATE).write_text(ready_by(1, 1))
    return path


def launched(folder: Path) -> Detached:
    command = [sys.executable, "-c", LAUNCHER, str(folder)]
    return Detached(command, folder, {**os.environ, **python_env()})


@pytest.mark.slow
def test_it_waits_for_this_start(folder: Path) -> None:
    launcher = launched(folder)
    try:
        state = launcher.wait_ready()
        assert state is not None, launcher.said()
        assert state["name"] == "stand-in" and state["pid"] == launcher.process.pid
        # A second launcher into the folder of a living one is refused, and that is reported.
        second = launched(folder)
        assert second.wait_ready() is None
        assert second.process.returncode == 1
        said = second.said()
        assert f"is the folder of run {folder} (deployment stand-in, launcher pid " in said
        assert str(launcher.process.pid) in said
        assert read_state(folder)["pid"] == launcher.process.pid
        assert (folder / "launcher.log").stat().st_mode & 0o777 == 0o600
    finally:
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.process.wait(60) == 0


def test_a_launcher_that_dies_is_reported(folder: Path) -> None:
    launcher = launched(folder)
    launcher.process.kill()
    assert launcher.wait_ready() is None
    assert launcher.process.returncode == -signal.SIGKILL
    wait_gone(trees.members({}, read_state(folder)["run_id"]))
