"""The end of a test run's output says what failed, and why."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import record
from toolkit.setup import timings


def test_what_failed_is_told_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.jsonl"
    monkeypatch.setenv(timings.RECORD, str(path))
    record.test("tests/test_a.py::test_it", 1.5)
    record.failure(
        "tests/test_a.py::test_it", ">   assert 1 == two()\nE   assert 1 == 2\nE    +  2"
    )
    record.failure("tests/test_a.py::test_that", "the process was killed")
    timings.tell(path, [("unit tests", 2.0)])
    said = capsys.readouterr().out
    lines = [line.removeprefix("setup: ") for line in said.splitlines()]
    assert lines[lines.index("failed: tests/test_a.py::test_it") :] == [
        "failed: tests/test_a.py::test_it",
        "  assert 1 == 2",
        "  +  2",
        "failed: tests/test_a.py::test_that",
        "  the process was killed",
    ]


def _pytest(path: Path, code: Path, *words: str) -> None:
    root = Path(__file__).resolve().parents[3]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest",
         "--rootdir", str(code.parent), *words, str(code)],
        cwd=root, env={timings.RECORD: str(path), "PATH": ""}, capture_output=True, check=False,
    )  # fmt: skip


def test_pytest_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    code = tmp_path / "test_b.py"
    code.write_text("def test_it():\n    assert 1 == 2\n")
    _pytest(path, code)
    assert timings.read(path).failures == [("test_b.py::test_it", "assert 1 == 2")]


def test_so_it_does_of_a_process_that_dies(tmp_path: Path) -> None:
    path, code = tmp_path / "record.jsonl", tmp_path / "test_b.py"
    code.write_text("import os\n\n\ndef test_it():\n    os._exit(1)\n")
    _pytest(path, code, "-n", "1")
    ((test, why),) = timings.read(path).failures
    assert test == "test_b.py::test_it" and "crashed while running" in why
