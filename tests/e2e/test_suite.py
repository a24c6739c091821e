"""`toolkit bench suite` on real workers: variants come and go, and it says what it found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.commands import STARTS as STARTS  # what `setup.touched` counts as run here
from toolkit.launch.resolve import resolve
from toolkit.settings.load import load_deployment

pytestmark = [pytest.mark.e2e, pytest.mark.touched("bench-command")]


MARK = "TOOLKIT_TEST_OF_THE_SUITE"
"""In the environment of all that a suite starts: its folder."""


def suite(name: str, out: Path, timeout_s: float, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toolkit", "bench", "suite", name, "--out", str(out), *more],
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
