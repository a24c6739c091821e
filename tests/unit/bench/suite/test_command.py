"""`toolkit bench suite` says what is wrong before it starts anything, and what it has then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from toolkit.bench import hosted
from toolkit.bench.errors import BenchError
from toolkit.cli.main import app
from toolkit.errors import ToolkitError


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["bench", "suite", *words])


def test_a_file_that_is_no_deployment_is_its_own_error(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("name: a\nrouter: {tau: 7}\n")
    done = run(str(file), "--out", str(tmp_path / "out"))
    assert done.exit_code == 1 and isinstance(done.exception, ToolkitError)
    assert "tau" in str(done.exception) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [(), ("cpu-demo", "--url", "http://127.0.0.1:1")])
def test_either_a_file_or_a_router_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run(*words, "--out", str(tmp_path / "out"))
    assert done.exit_code == 1 and "a deployment FILE, or --url URL" in done.output
    assert not (tmp_path / "out").exists()


def test_a_router_that_is_not_there_is_said(tmp_path: Path) -> None:
    done = run("--url", "http://127.0.0.1:1", "--out", str(tmp_path / "out"))
    assert done.exit_code == 1 and "nothing answers at http://127.0.0.1:1" in done.output
    assert not (tmp_path / "out").exists()


def test_plain_workers_are_told_that_it_is_not_for_them(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("name: a\nmode: plain\n")
    done = run(str(file), "--out", str(tmp_path / "out"))
    assert done.exit_code == 1
    assert "prefill and decode workers behind this project's router" in done.output


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    done = run("cpu-demo", "--out", str(tmp_path / "out"))
    assert done.exit_code == 1 and f"cannot write to {tmp_path / 'out'}" in done.output


def test_a_variant_that_does_not_start_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextmanager
    def none(path: Path, run_dir: Path | None) -> Iterator[Any]:
        raise BenchError(f"{path} did not start: no memory")
        yield

    monkeypatch.setattr(hosted, "hosted", none)
    done = run("cpu-demo", "--out", str(tmp_path))
    assert done.exit_code == 1 and "did not start: no memory" in done.output
    assert (tmp_path / "base.yaml").exists(), "the file that did not start"


@pytest.mark.parametrize(
    ("system", "told"),
    [
        ("stages", "stages: the file has no decode.stages"),
        ("sages", "sages: no such question: late dispatch"),
    ],
)
def test_a_system_that_cannot_be_asked_about_is_said_before_a_start(
    system: str, told: str, tmp_path: Path
) -> None:
    done = run("cpu-demo", "--out", str(tmp_path), "--system", system)
    assert done.exit_code == 1 and told in done.output
    assert not list(tmp_path.glob("*.yaml"))


def test_bench_itself_takes_its_options_as_before() -> None:
    done = CliRunner().invoke(app, ["bench", "--url", "http://127.0.0.1:1"])
    assert done.exit_code == 1 and "nothing answers at http://127.0.0.1:1" in done.output
    assert "suite" in CliRunner().invoke(app, ["bench", "--help"]).output
