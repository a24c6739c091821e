"""`toolkit bench suite` on real workers: variants come and go, and it says what it found."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e import calls, lending
from tests.e2e.commands import STARTS as STARTS  # what `setup.touched` counts as run here
from tests.e2e.deployments import shipped
from tests.e2e.workers import state
from toolkit.bench.hosted import hosted
from toolkit.bench.source import Source
from toolkit.bench.suite.expert_questions import INTERVAL
from toolkit.bench.suite.placements import place_experts
from toolkit.bench.suite.play import Hosts, Suite
from toolkit.bench.suite.questions import questions_for
from toolkit.bench.suite.traffic import SuiteLoad
from toolkit.bench.suite.written import write_page
from toolkit.launch.resolve import resolve
from toolkit.launch.running import Running
from toolkit.settings.deployment import Deployment
from toolkit.settings.document import absolute, normal
from toolkit.settings.load import load_deployment

pytestmark = [pytest.mark.e2e, pytest.mark.touched("bench-command")]


MARK = "TOOLKIT_TEST_OF_THE_SUITE"
"""In the environment of all that a suite starts: its folder."""


def suite(
    name: str | None, out: Path, timeout_s: float, *more: str, module: str = "toolkit"
) -> subprocess.CompletedProcess[str]:
    named = () if name is None else (name,)
    return subprocess.run(
        [sys.executable, "-m", module, "bench", "suite", *named, "--out", str(out), *more],
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
    assert found["stopped"] == {}
    assert resolve(load_deployment(out / f"{name}.yaml")).workers
    page = (out / "suite.html").read_text()
    assert all(system in page for system in systems)
    return answers


@pytest.mark.timeout(400)
def test_a_small_one_asks_what_one_decode_worker_can_answer(tmp_path: Path) -> None:
    sizes = ("--rounds", "4", "--requests", "6", "--concurrency", "3", "--max-tokens", "8")
    lent = "tests.e2e.lent_command"
    done = suite("cpu-classes", tmp_path, 360, "--minutes", "5", *sizes, module=lent)
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


EXPERTS: dict[str, Any] = shipped(
    "cpu-experts", decode={"args": {INTERVAL: 60}}, router={"decode_policy": "shortest_queue"}
)
"""Few steps between two looks at the load, so that experts move within a small round or two."""


def asked_of_experts(subject: str, folder: Path, arms: set[str]) -> Suite:
    """A small suite of one question, with these alternatives alone."""
    document = absolute(normal(EXPERTS), folder)
    placed = place_experts(Deployment.model_validate(document), folder)
    asked = questions_for(document, placed=placed)
    asked.only([subject])
    (question,) = asked.questions
    others = tuple(arm for arm in question.others if arm.name in arms)
    assert len(others) == len(arms), [arm.name for arm in question.others]
    asked.questions = [replace(question, others=others, also=())]
    load = SuiteLoad(Source(max_tokens=16), requests=16, concurrency=8, rounds=4)
    return Suite(document, asked, load, folder, minutes=60.0, placed=placed)


def hosts(most: int, suite: Suite) -> Hosts:
    """So many starts, then Ctrl-C."""

    @contextmanager
    def host(path: Path, run_dir: Path | None) -> Iterator[Running]:
        if suite.starts > most:
            raise KeyboardInterrupt
        with ExitStack() as ends:
            with lending.lent():
                up = ends.enter_context(hosted(path, run_dir))
            yield up

    return host


@pytest.mark.timeout(600)
def test_relocation_is_asked_against_experts_that_sglang_moves(tmp_path: Path) -> None:
    """Experts move in every arm that says so, and the load between ranks is told."""
    suite = asked_of_experts("relocated experts", tmp_path, {"EPLB every 60", "experts in order"})
    said: list[str] = []
    suite.run(hosts(3, suite), said.append)
    assert [line.split(":")[0] for line in said if line.startswith("starting")] == [
        "starting base", "starting relocated", "starting EPLB every 60", "starting EPLB every 60"
    ], said  # fmt: skip
    (verdict,) = suite.verdicts()
    assert suite.stopped == {} and verdict.answer == "undecided" and verdict.pairs == 1
    assert verdict.ratio is not None and 0.1 < verdict.ratio.value < 10
    assert verdict.price is not None
    ours, eplb = suite.moved
    assert eplb.times >= 1, "EPLB is no rival that never looks"
    assert ours.balance is not None
    assert all(1 <= each <= 2 for each in ours.balance), "of two ranks"
    files = {"relocated": False, "EPLB every 60": True, "base": False}
    for name, theirs in files.items():
        decode = json.loads((tmp_path / f"{name}.yaml").read_text())["decode"]
        assert decode["args"].get("enable-eplb", False) is theirs
        assert bool(decode.get("relocate")) is (name == "relocated")
    write_page(tmp_path / "suite.html", suite, [verdict], "Does it pay?")
    page = (tmp_path / "suite.html").read_text()
    assert "Load between experts" in page and f"{ours.balance[0]:.3f}" in page


@pytest.mark.timeout(600)
def test_an_alternative_that_does_not_start_leaves_the_question_open(tmp_path: Path) -> None:
    """Two-batch overlap does not run on a CPU: SGLang dies as the server warms up."""
    suite = asked_of_experts("expert placement", tmp_path, {"with overlap"})
    said: list[str] = []
    suite.run(hosts(2, suite), said.append)
    (verdict,) = suite.verdicts()
    assert set(suite.stopped) == {"with overlap"} and not suite.interrupted
    assert verdict.answer == "undecided" and verdict.settled
    assert "with overlap did not run: TypeError: empty()" in verdict.why, verdict.why
    assert any(line.startswith("with overlap does not run here: TypeError") for line in said)
    assert suite.starts == 2, "who does not start is not tried again, nor who has no rival left"
    ((_, arm),) = suite.played
    assert arm == "placed by the profile"


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}
