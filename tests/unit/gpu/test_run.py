"""The runner: one process a step, resumed, within its limits, with a result whatever happens."""

import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from docs import gpu_tables
from tests.gpu import record, run, together
from tests.gpu.__main__ import chosen, main
from tests.gpu.errors import GpuCheckError
from tests.gpu.plan import STEPS, Step, table
from tests.processes import lives

RESULT = {
    "step": "a", "status": "ok", "seconds": 1.0, "device": {}, "versions": {}, "command": "x",
    "commit": None, "figures": {"x": 1}, "error": "",
}  # fmt: skip
WRITES = f"""
import json, sys
from tests.gpu import record
from pathlib import Path
record.write(Path(sys.argv[1]), {RESULT!r})
"""
FAILS = "import sys; print('some words'); sys.exit('no kernel')"
HANGS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


@dataclass(frozen=True)
class Scripted(run.Settings):
    """Runs these scripts in place of steps."""

    scripts: dict[str, str] = field(default_factory=dict)

    def command(self, step: str) -> list[str]:
        return [sys.executable, "-c", self.scripts[step], str(self.path(step))]


def settings(tmp_path: Path, limit_s: float = 120.0, **scripts: str) -> Scripted:
    return Scripted("cpu", True, tmp_path / "out", tmp_path / "scratch", limit_s, scripts=scripts)


def step(name: str, starts: int = 0, work_s: int = 1) -> Step:
    return Step(name, "a test", starts, work_s, ())


def test_a_step_whose_result_is_there_is_skipped_unless_asked_for_again(tmp_path: Path) -> None:
    mine = settings(tmp_path, a=WRITES, b=FAILS)
    first = run.run([step("a"), step("b")], mine)
    assert first.done == {"a": "ok", "b": "failed"} and first.status == 1
    told = record.read(mine.path("b"))
    assert "no kernel" in told["error"] and "exit status 1" in told["error"]
    second = run.run([step("a"), step("b")], mine)
    assert second.skipped == ["a", "b"] and not second.done and second.status == 0
    third = run.run([step("a"), step("b")], mine, ["failed"])
    assert third.skipped == ["a"] and third.done == {"b": "failed"}
    fourth = run.run([step("a"), step("b")], mine, ["a"])
    assert fourth.done == {"a": "ok"} and fourth.skipped == ["b"]


@pytest.mark.slow
def test_a_step_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    mine = settings(tmp_path, a=HANGS)
    mine.scratch.mkdir()
    begin = time.monotonic()
    assert run.one(step("a"), mine, 5.0) == "timed out"
    assert time.monotonic() - begin < 30
    told = record.read(mine.path("a"))
    assert told["status"] == "timed out" and "ended after 5 s" in told["error"]
    child = int((mine.scratch / "a.log").read_text().split()[0])
    assert not lives(child)


MEASURES = """
import os, signal, sys
from tests.gpu import one_step
from tests.gpu.steps import experts
def measure(context, figures):
    figures["first"] = 1.5
    os.kill(os.getpid(), signal.SIGTERM)  # as the runner does after the step's time
experts.measure = measure
given = ["--device", "cpu", "--tiny", "--scratch", ".", "--out", sys.argv[1]]
sys.exit(one_step.main(["experts", *given]))
"""


@pytest.mark.slow
def test_a_step_that_is_ended_keeps_what_it_has_measured(tmp_path: Path) -> None:
    mine = settings(tmp_path, a=MEASURES)
    mine.scratch.mkdir()
    assert run.one(step("a"), mine, 120.0) == "timed out"
    told = record.read(mine.path("a"))
    assert told["figures"] == {"first": 1.5} and told["error"].startswith("ended after")


def test_what_the_time_does_not_allow_is_left_and_not_begun(tmp_path: Path) -> None:
    mine = settings(tmp_path, limit_s=run.ENDS_S + 10, a=FAILS, b=WRITES)
    outcome = run.run([step("a", starts=1), step("b")], mine)
    assert outcome.left == ["a"] and outcome.done == {"b": "ok"} and outcome.status == 3
    assert not mine.path("a").exists()


def test_a_result_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.json"
    record.write(path, {**RESULT, "figures": {"x": float("nan"), "y": [0.123456789]}})
    assert record.read(path)["figures"] == {"x": None, "y": [0.123457]}
    assert [each.name for each in path.parent.iterdir()] == ["a.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({**RESULT, "status": "well"})])
def test_a_file_that_is_no_result_is_said_so(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(GpuCheckError, match=r"a\.json"):
        record.read(path)


@pytest.mark.slow
def test_without_a_cuda_device_nothing_is_run_and_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one here")
    assert main(["--out", str(tmp_path)]) == 2
    assert "there is no CUDA device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_plan_names_every_step_in_order_and_adds_up() -> None:
    lines = table()
    assert [line.split()[0] for line in lines[1:-1]] == [step.name for step in STEPS]
    assert int(lines[-2].split()[3]) == sum(step.estimate_s for step in STEPS)
    assert all(step.estimate_s + run.ENDS_S < 540 for step in STEPS), "one call must hold a step"


def test_unknown_steps_are_refused_and_others_keep_their_order() -> None:
    assert [step.name for step in chosen("outputs,experts")] == ["experts", "outputs"]
    with pytest.raises(GpuCheckError, match="nonsense is none of migrate"):
        chosen("nonsense")
    assert main(["--again", "nonsense", "--device", "cpu"]) == 1


def test_every_step_has_its_file() -> None:
    folder = Path(__file__).resolve().parents[2] / "gpu" / "steps"
    lacking = [step.name for step in STEPS if not (folder / f"{step.name}.py").exists()]
    assert not lacking


def test_the_documents_show_what_ran_on_a_gpu_and_nothing_else(tmp_path: Path) -> None:
    assert gpu_tables.results(tmp_path) == "None of the steps has been run on a GPU yet."
    of = {"tiny": False, "device": {"kind": "cuda", "name": "H100"}, "versions": {"sglang": "9.9"}}
    record.write(tmp_path / "a.json", {**RESULT, **of, "figures": {"ratio": 1.25, "at": {"b": 2}}})
    record.write(tmp_path / "b.json", {**RESULT, **of, "status": "failed", "error": "x\nno kernel"})
    record.write(tmp_path / "c.json", {**RESULT, **of, "device": {"kind": "cpu"}})
    record.write(tmp_path / "d.json", {**RESULT, **of, "tiny": True})
    shown = gpu_tables.results(tmp_path)
    assert "ratio 1.25" in shown and "H100, SGLang 9.9" in shown and "no kernel" in shown
    assert len(shown.splitlines()) == 2 + 4  # of the failed one what it had measured, and why


def test_the_table_of_experts_has_a_cell_for_each_batch_that_was_measured(tmp_path: Path) -> None:
    assert gpu_tables.experts(tmp_path) == ""
    cells = [
        {"batch": batch, "prompts": prompts, "step_ms": ms, "distinct": distinct}
        for batch, prompts, ms, distinct in ((8, 1, 1.234, 8.2), (8, 2, 1.5, 16.0), (1, 1, 1, 8))
    ]
    of = {"tiny": False, "device": {"kind": "cuda", "name": "H100"}, "versions": {}}
    record.write(tmp_path / "a.json", {**RESULT, **of, "figures": {"cells": cells}})
    head, _, one, eight = gpu_tables.experts(tmp_path).splitlines()
    assert "1 prompt " in head and "2 prompts" in head
    assert "1.00 (8)" in one and "1.23 (8)" in eight and "1.50 (16)" in eight


@pytest.mark.slow
def test_help_is_there() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu", "--help"], capture_output=True, text=True, check=True
    )
    assert "--pack" in done.stdout and "--list-lines" in done.stdout


IN_TURN = f"""
import json, sys, time
from pathlib import Path
from tests.gpu import record
from tests.gpu.together import waiting_turn
out = Path(sys.argv[1])
time.sleep(float(sys.argv[2]))
with waiting_turn(out.parent.parent / "scratch", out.stem):
    begin = time.time()
    time.sleep(0.5)
    end = time.time()
record.write(out, {RESULT!r} | {{"figures": {{"begin": begin, "end": end}}}})
"""


@dataclass(frozen=True)
class Starting(Scripted):
    """Their starts take this long."""

    starts_s: dict[str, float] = field(default_factory=dict)

    def command(self, step: str) -> list[str]:
        return [*super().command(step), str(self.starts_s.get(step, 0.0))]


def test_steps_that_start_together_measure_in_turns_once_all_are_up(tmp_path: Path) -> None:
    scripts = {"a": IN_TURN, "b": IN_TURN, "c": FAILS}
    starts_s = {"a": 0.0, "b": 2.0}
    mine = Starting(
        "cpu", True, tmp_path / "out", tmp_path / "scratch", 60.0, scripts=scripts,
        starts_s=starts_s,
    )  # fmt: skip
    begin = time.time()
    outcome = run.run_together([step("a"), step("b"), step("c")], mine)
    assert outcome.done == {"a": "ok", "b": "ok", "c": "failed"} and outcome.status == 1
    one, other = (record.read(mine.path(name))["figures"] for name in ("a", "b"))
    first, second = sorted((one, other), key=lambda each: each["begin"])
    assert first["begin"] >= begin + 2.0, "one measured while another was starting"
    assert second["begin"] >= first["end"], "both measured at once"
    assert not together.folder(mine.scratch).exists()
