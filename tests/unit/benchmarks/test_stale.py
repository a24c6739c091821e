"""Records that are older than the code that they measure are found, whatever is wrong with them."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import (
    RESULTS,
    ROOT,
    Record,
    Standing,
    measures,
    records,
    rerecord,
    standing,
    why_not,
)

COMMAND = "tests.benchmarks.speed --record"


class Repository:
    """With one benchmark, which measures `code/`, and `other.py` beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "-q")
        self.git("config", "user.email", "a@example.com")
        self.git("config", "user.name", "A")
        self.write("tests/benchmarks/speed.py", 'MEASURES = ("code",)\n')
        self.write("code/fast.py", "1\n")
        self.write("other.py", "1\n")
        self.first = self.commit()

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=self.folder, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "as it is now")
        return self.git("rev-parse", "--short", "HEAD")

    def standing(self, commit: str | None, command: str = COMMAND) -> Standing:
        return standing(Record("speed", command, commit, "2026-11-28"), self.folder)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_a_record_is_stale_when_what_it_measures_has_changed(repository: Repository) -> None:
    assert not repository.standing(repository.first).stale
    repository.write("other.py", "2\n")
    repository.write("code/README.md", "words\n")
    repository.commit()
    assert not repository.standing(repository.first).stale
    repository.write("code/fast.py", "2\n")
    assert repository.standing(repository.first).changed == ("code/fast.py",), "not committed yet"
    second = repository.commit()
    assert repository.standing(repository.first).stale and not repository.standing(second).stale


def test_what_cannot_be_told_counts_as_stale(repository: Repository) -> None:
    assert "names no commit" in repository.standing(None).unknown
    assert "not in this repository" in repository.standing("0123abc").unknown
    gone = repository.standing(repository.first, "tests.benchmarks.gone --record")
    assert "is not there any more" in gone.unknown
    repository.write("tests/benchmarks/mute.py", "x = 1\n")
    mute = repository.standing(repository.first, "tests.benchmarks.mute")
    assert "does not say what it measures" in mute.unknown


def test_the_last_record_of_a_command_counts_and_the_oldest_comes_first(tmp_path: Path) -> None:
    def row(command: str, commit: str, date: str) -> str:
        return json.dumps(
            {"benchmark": "speed", "command": command, "commit": commit, "date": date}
        )

    (tmp_path / "speed.jsonl").write_text(
        "\n".join(
            [
                row(COMMAND, "aaa", "2026-11-01"),
                row("tests.architectures x", "ccc", "2026-11-02"),
                row(COMMAND, "bbb", "2026-11-20"),
                row("tests.benchmarks.speed --more", "ddd", "2026-11-10"),
            ]
        )
    )
    found = [(record.command, record.commit) for record in records(tmp_path)]
    assert found == [("tests.benchmarks.speed --more", "ddd"), (COMMAND, "bbb")]


def test_a_file_may_name_the_commit_of_all_its_lines(tmp_path: Path) -> None:
    row = {"benchmark": "speed", "command": COMMAND}
    (tmp_path / "old-0123abc.jsonl").write_text(json.dumps(row))
    (record,) = records(tmp_path)
    assert record.commit == "0123abc"


def test_a_command_whose_files_are_not_here_is_left_out_with_the_reason(tmp_path: Path) -> None:
    def reason(words: str) -> str:
        return why_not(Record("speed", f"{COMMAND} {words}", "aaa", ""))

    assert reason(f"--prompts {tmp_path}") == ""
    assert reason("--prompts /not/here.gz") == "/not/here.gz is not there"


def test_nothing_is_recorded_of_a_tree_that_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, stdout=" M toolkit/x.py\n")

    monkeypatch.setattr(subprocess, "run", changed)
    with pytest.raises(SystemExit, match="commit your changes first"):
        rerecord([], (), 1.0)


def test_what_benchmarks_say_that_they_measure_is_there() -> None:
    named = 0
    for path in sorted((ROOT / "tests" / "benchmarks").glob("*.py")):
        if "MEASURES" in [ast.unparse(t) for n in ast.parse(path.read_text()).body
                          if isinstance(n, ast.Assign) for t in n.targets]:  # fmt: skip
            paths = measures(f"tests.benchmarks.{path.stem}")
            assert paths and all((ROOT / each).exists() for each in paths), path.name
            named += 1
    assert named > 20


def test_every_record_of_a_benchmark_with_a_date_can_be_told() -> None:
    dated = [record for record in records(RESULTS) if record.date]
    assert len(dated) > 40
    for record in dated:
        assert record.commit is not None and measures(record.module)
