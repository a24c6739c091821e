"""`--run`: exactly the run that was named, living ones before ended ones, and never a guess.

A "launcher" here is a process that sleeps, with a state.json of its own.
"""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from toolkit.cli.main import main
from toolkit.launch import trees
from toolkit.launch.state import STATE, new_run_dir

AGES = iter(range(1000))


class Shown(NamedTuple):
    """What a command said."""

    returncode: int
    stdout: str
    stderr: str


class Runs:
    """Run folders under a root, and the processes that stand for their launchers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.launchers: dict[str, subprocess.Popen[bytes]] = {}

    def add(self, folder: str, name: str, phase: str = "ready", lives: bool = True) -> Path:
        """A run; each is newer than the one before it."""
        process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        seen = trees.look(process.pid)
        assert seen is not None
        self.launchers[folder] = process
        path = self.root / folder
        path.mkdir(parents=True)
        state: dict[str, Any] = {
            "name": name,
            "phase": phase,
            "pid": process.pid,
            "start_ticks": seen.start,
            "run_id": f"none-{folder}",
            "guard_pid": 0,
            "router_url": "http://127.0.0.1:1",
            "workers": [],
            "router": None,
        }
        (path / STATE).write_text(json.dumps(state))
        (path / "router.log").write_text(f"log of {folder}\n")
        at = time.time() - 5000 + next(AGES)
        os.utime(path / STATE, (at, at))
        if not lives:
            self.kill(folder)
        return path

    def kill(self, folder: str) -> None:
        self.launchers[folder].kill()
        self.launchers[folder].wait()

    def living(self) -> set[str]:
        return {folder for folder, process in self.launchers.items() if process.poll() is None}

    def toolkit(self, *arguments: str) -> Shown:
        """The command line, in this process (it takes a second to start one)."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TOOLKIT_RUNS", str(self.root))
            patch.setattr("sys.argv", ["toolkit", *arguments])
            with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
                main()
        return Shown(int(ended.value.code or 0), out.getvalue(), err.getvalue())


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path / "runs")
    try:
        yield made
    finally:
        for folder in made.launchers:
            made.kill(folder)


def test_an_abbreviation_stops_nothing_and_lists_what_it_may_mean(runs: Runs) -> None:
    runs.add("prod-eu-20260101-000000", "prod-eu")
    runs.add("prod-us-20260101-000000", "prod-us")
    for meant in ("prod", "prod-eu-2026"):
        stopped = runs.toolkit("stop", "--now", "--run", meant)
        assert stopped.returncode == 1
        assert "no run has exactly that name" in stopped.stderr
        assert "prod-eu-20260101-000000 (deployment prod-eu, ready, pid" in stopped.stderr
        assert "--run FOLDER" in stopped.stderr
    assert len(runs.living()) == 2
    assert "no run 'staging'" in runs.toolkit("stop", "--run", "staging").stderr


def test_stop_by_name_takes_that_deployment_only(runs: Runs) -> None:
    runs.add("prod-20260101-000000", "prod")
    runs.add("prod-eu-20260101-000000", "prod-eu")
    stopped = runs.toolkit("stop", "--now", "--run", "prod")
    assert stopped.returncode == 0, stopped.stderr
    assert runs.living() == {"prod-eu-20260101-000000"}


def test_a_name_that_two_runs_have_is_asked_about(runs: Runs) -> None:
    first, second = runs.add("prod-1", "prod"), runs.add("prod-2", "prod")
    runs.add("prod-3", "prod", lives=False)
    for command in ("stop", "status", "logs"):
        shown = runs.toolkit(command, "--run", "prod")
        assert shown.returncode == 1 and "means 2 runs" in shown.stderr
        assert "prod-1 (" in shown.stderr and "prod-2 (" in shown.stderr
        assert "prod-3 (" not in shown.stderr, "it has ended"
    assert runs.toolkit("stop", "--now", "--run", "prod-1").returncode == 0  # by its folder
    assert runs.living() == {"prod-2"}
    assert runs.toolkit("stop", "--now", "--run", str(second)).returncode == 0  # by its path
    assert not runs.living()
    assert "no process is left" in runs.toolkit("stop", "--run", str(first)).stdout
    ended = runs.toolkit("stop", "--run", "prod")
    assert ended.returncode == 1 and "no run of that name lives" in ended.stderr


def test_a_folder_may_be_called_as_another_runs_deployment(runs: Runs) -> None:
    runs.add("prod", "staging")
    runs.add("prod-1", "prod")
    stopped = runs.toolkit("stop", "--now", "--run", "prod")
    assert stopped.returncode == 1 and "means 2 runs" in stopped.stderr
    assert len(runs.living()) == 2


def test_stop_does_not_choose_among_those_that_live(runs: Runs) -> None:
    runs.add("a-1", "a")
    runs.add("b-1", "b")
    stopped = runs.toolkit("stop", "--now")
    assert stopped.returncode == 1
    assert "2 runs live" in stopped.stderr and "a-1 (" in stopped.stderr
    assert len(runs.living()) == 2


def test_one_that_lives_is_not_hidden_by_a_newer_one_that_died(runs: Runs) -> None:
    runs.add("a-1", "a")
    runs.add("b-1", "b", lives=False)
    runs.add("c-1", "c", phase="failed", lives=False)
    assert json.loads(runs.toolkit("status", "--json").stdout)["run"].endswith("/a-1")
    assert runs.toolkit("logs").stdout == "log of a-1\n"
    stopped = runs.toolkit("stop", "--now")
    assert stopped.returncode == 0 and stopped.stdout.startswith("a: stopped")
    assert not runs.living()


def test_when_none_lives_the_newest_is_shown_and_nothing_is_stopped(runs: Runs) -> None:
    runs.add("a-1", "a", lives=False)
    runs.add("a-2", "a", lives=False)
    assert json.loads(runs.toolkit("status", "--json").stdout)["run"].endswith("/a-2")
    assert json.loads(runs.toolkit("status", "--json", "--run", "a").stdout)["run"].endswith("/a-2")
    stopped = runs.toolkit("stop")
    assert stopped.returncode == 1 and "nothing to stop" in stopped.stderr


def test_several_that_live_are_said(runs: Runs) -> None:
    runs.add("a-1", "a")
    runs.add("b-1", "b")
    shown = runs.toolkit("status")
    assert (
        "b: ready" in shown.stdout and "others live too, see them with --run: a-1" in shown.stderr
    )


def test_processes_that_a_launcher_left_count_as_a_run_that_lives(runs: Runs) -> None:
    left = runs.add("a-1", "a")
    other = runs.add("b-1", "b", lives=False)
    state = json.loads((left / STATE).read_text())
    orphan = {**json.loads((other / STATE).read_text()), "name": "c", "run_id": "none-c"}
    worker = {k: state[k] for k in ("pid", "start_ticks", "name")}
    orphan["workers"] = [{**worker, "role": "plain", "url": None}]
    (other / STATE).write_text(json.dumps(orphan))
    (left / STATE).unlink()  # its process now is a worker of the other one
    stopped = runs.toolkit("stop", "--run", "c")
    assert stopped.returncode == 0 and "no process is left" in stopped.stdout
    assert not runs.living()


def test_a_recycled_pid_is_no_run_that_lives(runs: Runs) -> None:
    path = runs.add("a-1", "a")
    state = json.loads((path / STATE).read_text())
    (path / STATE).write_text(json.dumps({**state, "start_ticks": state["start_ticks"] - 1}))
    assert "nothing to stop" in runs.toolkit("stop", "--now").stderr
    assert runs.living() == {"a-1"}


def test_a_path_is_only_a_path(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.add("prod", "prod")
    missing = runs.toolkit("stop", "--run", str(tmp_path / "prod"))
    assert missing.returncode == 1 and "no readable state.json" in missing.stderr
    monkeypatch.chdir(runs.root)
    assert runs.toolkit("stop", "--now", "--run", "./prod").returncode == 0


def test_run_folders_are_for_their_user_only(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        folder = new_run_dir("a", tmp_path / "runs")
    finally:
        os.umask(old)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o777 == 0o700
