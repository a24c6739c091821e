"""`toolkit doctor`: its verdicts, its exit status, its look at broken runs."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.doctor import machine, recipes, runs, software
from toolkit.launch import trees

ROOT = Path(__file__).resolve().parents[3]
GIB = 1 << 30


@pytest.mark.parametrize(
    ("available", "level"), [(16 * GIB, "ok"), (int(5.5 * GIB), "note"), (GIB, "missing")]
)
def test_memory_stops_the_demo_only_when_it_cannot_fit(available: int, level: str) -> None:
    assert machine.memory(available).level == level


def test_small_shared_memory_names_the_container_flag() -> None:
    finding = machine.shared_memory(1 << 20)
    assert finding.level == "missing" and "--shm-size" in finding.repair
    assert machine.shared_memory(1 << 30).level == "ok"


def test_open_files() -> None:
    assert machine.open_files(1024).level == "note"
    assert machine.open_files(resource.RLIM_INFINITY).level == "ok"


def test_missing_libraries_are_named_with_the_command() -> None:
    finding = machine.transfer_libraries(["libibverbs1"])
    assert finding.level == "missing" and "libibverbs1" in finding.what and finding.repair


def test_a_wrong_python_is_missing() -> None:
    assert machine.python((3, 9, 1)).level == "missing"


def test_no_gpu_is_only_a_note() -> None:
    assert machine.gpus((), ()).level == "note"
    assert "80" in machine.gpus(("0",), (81920,)).what


def test_sglang_absent_other_and_proven() -> None:
    assert software.sglang(None).level == "missing"
    assert software.sglang("0.5.30").level == "note"
    assert software.sglang(software.PROVEN[-1]).level == "ok"  # type: ignore[attr-defined]


def test_without_the_plugin_workers_would_refuse() -> None:
    assert software.plugin(["other:thing"]).level == "missing"
    assert software.plugin(["patches:register"]).level == "ok"


def test_differing_packages_are_shortened() -> None:
    finding = software.packages(100, [f"p{i}" for i in range(50)], cuda=False)
    assert "50 of 100" in finding.what and "..." in finding.what and "p49" not in finding.what


def test_the_shipped_recipes_are_judged_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.launch.hardware.visible_gpus", lambda: ())
    monkeypatch.setattr("toolkit.launch.checks.possible.memory", lambda plan: [])
    recipe_checks = {recipe_check.recipe: recipe_check for recipe_check in recipes.examine()}
    assert recipe_checks["cpu-demo.yaml"].why == ()
    for name, recipe_check in recipe_checks.items():
        if recipe_check.device == "cuda":
            assert any("GPUs" in reason for reason in recipe_check.why), name
    assert any(recipe_check.device == "cuda" for recipe_check in recipe_checks.values())


def test_a_broken_recipe_is_told_not_raised(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: bad\nnonsense_key: 1\n")
    (recipe_check,) = recipes.examine(tmp_path)
    assert recipe_check.why and "nonsense_key" in recipe_check.why[0]


def _run(folder: Path, phase: str, pid: int, ticks: int, workers: list[dict[str, int]]) -> None:
    folder.mkdir()
    state = {"pid": pid, "start_ticks": ticks, "phase": phase, "workers": workers, "router": None}
    (folder / "state.json").write_text(json.dumps(state))


def test_a_killed_launcher_and_what_it_left_are_found(tmp_path: Path) -> None:
    left = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        row = trees.look(left.pid)
        me = trees.look(os.getpid())
        assert row is not None and me is not None
        worker = {"pid": left.pid, "start_ticks": row.start}
        _run(tmp_path / "stale-1", "ready", os.getpid(), me.start + 1, [worker])
        _run(tmp_path / "alive-1", "ready", os.getpid(), me.start, [])
        _run(tmp_path / "done-1", "stopped", 1, 1, [])
        running, stale, leftover = runs.examine(tmp_path)
        assert running.what == "alive-1"
        assert stale.level == "note" and "stale-1" in stale.what
        assert leftover.level == "note" and str(left.pid) in leftover.what
    finally:
        left.kill()
        left.wait()


def test_no_runs_at_all(tmp_path: Path) -> None:
    assert [finding.level for finding in runs.examine(tmp_path / "none")] == ["ok"] * 3


def _doctor(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toolkit", "doctor", *words],
        cwd=ROOT,
        env={**os.environ, "TOOLKIT_RUNS": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_command_tells_the_same_in_json_and_by_exit_status(tmp_path: Path) -> None:
    done = _doctor(tmp_path, "--json")
    report = json.loads(done.stdout)
    demo = next(row for row in report["recipes"] if row["recipe"] == "cpu-demo.yaml")
    good = demo["runs_here"] and all(f["level"] != "missing" for f in report["findings"])
    assert done.returncode == (0 if good else 1), done.stderr
    assert {"Python", "memory", "SGLang", "GPU"} <= {f["topic"] for f in report["findings"]}


def test_the_table_names_every_recipe(tmp_path: Path) -> None:
    done = _doctor(tmp_path)
    for recipe in (ROOT / "launch").glob("*.yaml"):
        assert recipe.stem in done.stdout


def test_ports_that_cannot_be_narrowed_come_with_the_rule_that_closes_them() -> None:
    assert machine.narrow_ports().level == "ok"
    wrong = machine.judged_ports("Operation not permitted")
    assert wrong.level == "note" and "tcp dport 15000-17000 drop" in wrong.repair
