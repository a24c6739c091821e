"""`toolkit bench suite` on real workers: variants come and go, and it says what it found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e import calls
from tests.e2e.commands import STARTS as STARTS  # what `setup.touched` counts as run here
from tests.e2e.workers import state
from toolkit.launch.resolve import resolve
from toolkit.launch.running import Running
from toolkit.settings.load import load_deployment

pytestmark = [pytest.mark.e2e, pytest.mark.touched("bench-command")]


MARK = "TOOLKIT_TEST_OF_THE_SUITE"
"""In the environment of all that a suite starts: its folder."""


def suite(
    name: str | None, out: Path, timeout_s: float, *more: str
) -> subprocess.CompletedProcess[str]:
    named = () if name is None else (name,)
    return subprocess.run(
        [sys.executable, "-m", "toolkit", "bench", "suite", *named, "--out", str(out), *more],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, MARK: str(out)},
    )


def whole(name: str, out: Path, systems: set[str]) -> dict[str, str]:
    """What a suite leaves behind is all there; its answers by system."""
    found = json.loads((out / "suite.json").read_text())
    answers = {row["system"]: row["answer"] for row in found["verdicts"]}
    assert set(answers) == systems and set(answers.values()) <= {"on", "off", "undecided"}
    assert all(len(arm["rounds"]) >= 2 for arm in found["rounds"])
    assert resolve(load_deployment(out / f"{name}.yaml")).workers
    page = (out / "suite.html").read_text()
    assert all(system in page for system in systems)
    return answers


@pytest.mark.timeout(400)
def test_a_small_one_asks_what_one_decode_worker_can_answer(tmp_path: Path) -> None:
    sizes = ("--rounds", "4", "--requests", "6", "--concurrency", "3", "--max-tokens", "8")
    done = suite("cpu-classes", tmp_path, 360, "--minutes", "5", *sizes)
    assert done.returncode == 0, done.stderr
    whole("cpu-classes", tmp_path, {"late dispatch", "preempted prompts"})
    started = [line for line in done.stderr.splitlines() if line.startswith("starting ")]
    assert [line.split()[1].rstrip(":") for line in started][:3] == ["base", "stops", "chunks"]
    assert "not asked" in done.stdout and "one decode rank" in done.stdout
    assert not [p for p in psutil.process_iter() if _environment(p).get(MARK) == str(tmp_path)]


@pytest.mark.timeout(300)
def test_a_router_that_runs_is_switched_and_left_as_it_was(
    deployment: Running, tmp_path: Path
) -> None:
    sizes = ("--rounds", "4", "--requests", "4", "--concurrency", "4", "--max-tokens", "4")
    before = calls.run(state(deployment.router_url))
    pids = [worker.pid for worker in deployment.workers]
    done = suite(None, tmp_path, 280, "--url", deployment.router_url, "--minutes", "0.1", *sizes)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "suite.json").read_text())
    asked = {row["system"] for row in found["verdicts"]}
    assert asked == {"late dispatch", "level KV", "expert locality"}
    assert {row["system"] for row in found["left_out"]} >= {"moves", "preempted prompts"}
    assert all(len(arm["rounds"]) in (2, 4) for arm in found["rounds"])
    after = calls.run(state(deployment.router_url))
    assert (after["policies"], after["dispatch"]) == (before["policies"], before["dispatch"])
    assert [worker.pid for worker in deployment.workers] == pids
    assert (tmp_path / "suite.html").exists() and not list(tmp_path.glob("*cpu*"))


# The small one above tries the same for a change.
@pytest.mark.full
@pytest.mark.timeout(1200)
def test_all_that_the_demo_can_be_asked_in_fifteen_minutes(tmp_path: Path) -> None:
    done = suite("cpu-demo", tmp_path, 1150, "--minutes", "14")
    assert done.returncode == 0, done.stderr
    systems = {"late dispatch", "level KV", "expert locality", "preempted prompts", "moves"}
    answers = whole("cpu-demo", tmp_path, systems)
    assert answers["preempted prompts"] == "on", done.stdout


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}
