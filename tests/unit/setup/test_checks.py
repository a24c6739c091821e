"""Set-up checks: what stops it, and that it says how to mend it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.setup import __main__ as command
from toolkit.setup import checks, installer, libraries, say
from toolkit.setup.layout import SetupLayout

ROOT = Path(__file__).resolve().parents[3]
GIB = checks.GIB


@pytest.mark.parametrize("version", [(3, 8, 10), (3, 10, 0), (3, 13, 0), (4, 0, 0)])
def test_a_wrong_python_is_named_with_the_right_one(version: tuple[int, int, int]) -> None:
    problem = checks.check_python(version)
    assert problem is not None and problem.fatal
    assert ".".join(map(str, version)) in problem.text
    assert "python3.11" in problem.text


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 11, 9), (3, 12, 1)])
def test_a_right_python_passes(version: tuple[int, int, int]) -> None:
    assert checks.check_python(version) is None


def test_low_disk_says_how_much_and_where() -> None:
    problem = checks.check_disk(int(1.5 * GIB), 4.0, "/here")
    assert problem is not None and problem.fatal
    assert "1.5 GiB" in problem.text and "/here" in problem.text and "4 GiB" in problem.text
    assert checks.check_disk(4 * GIB, 4.0, "/here") is None


def test_low_memory_is_said_but_does_not_stop() -> None:
    problem = checks.check_memory(2 * GIB)
    assert problem is not None and not problem.fatal
    assert checks.check_memory(16 * GIB) is None


@pytest.mark.parametrize("machine", [("Darwin", "arm64"), ("Linux", "aarch64")])
def test_other_platforms_are_refused(machine: tuple[str, str]) -> None:
    problem = checks.check_platform(*machine)
    assert problem is not None and problem.fatal and machine[1] in problem.text
    assert checks.check_platform("Linux", "x86_64") is None


def test_missing_ensurepip_names_the_package() -> None:
    problem = checks.check_venv_module(False)
    assert problem is not None and "-venv" in problem.text
    assert checks.check_venv_module(True) is None


def test_without_root_the_command_to_run_is_given() -> None:
    text = libraries.advice(["libibverbs1", "libnl-3-200"], is_root=False, has_apt=True)
    assert "sudo apt-get update && sudo apt-get install -y libibverbs1 libnl-3-200" in text


def test_without_apt_the_libraries_themselves_are_named() -> None:
    text = libraries.advice(["libibverbs1"], is_root=True, has_apt=False)
    assert "libibverbs.so.1" in text


def test_a_library_that_does_not_exist_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(libraries.PACKAGES, "libnosuchthing.so.9", "libnosuchthing9")
    assert "libnosuchthing9" in libraries.missing()


@pytest.mark.parametrize(
    ("output", "word"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("[Errno -3] Temporary failure in name resolution", "no network"),
        ("ReadTimeoutError: Read timed out.", "broke off"),
        ("NewConnectionError: [Errno 111] Connection refused", "does not answer"),
        ("something quite new", "something quite new"),
    ],
)
def test_pip_failures_in_plain_words(output: str, word: str) -> None:
    assert word in installer.explain(output)


@pytest.mark.parametrize(
    "output",
    [
        "ERROR: No matching distribution found for torch==2.13.0+cpu\n",
        "ERROR: ResolutionImpossible: for help visit the documentation\n",  # pip has constraints
    ],
)
def test_the_way_out_without_a_cpu_build_is_told(output: str) -> None:
    assert "PyPI's own build" in installer.explain(output)
    unreachable = f"Temporary failure in name resolution\n{output}"
    assert "no network" in installer.explain(unreachable)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that an install runs; each fails."""
    commands: list[list[str]] = []

    def logged(_: SetupLayout, command: list[str]) -> tuple[int, str]:
        commands.append(command)
        return 1, "no such thing"

    monkeypatch.setattr(installer, "logged", logged)
    return commands


def test_pip_installs_where_uv_cannot_be_had(tmp_path: Path, tried: list[list[str]]) -> None:
    with pytest.raises(say.SetupError, match="no such thing"):
        installer.install(SetupLayout(tmp_path), ["a==1"])
    asked, pip = tried
    assert asked[1:4] == pip[1:4] == ["-m", "pip", "install"]
    assert asked[-2:] == ["--no-deps", installer.UV] and pip[-2:] == ["--no-deps", "a==1"]


def test_uv_comes_first_and_knows_the_folders_of_pip(
    tmp_path: Path, tried: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = SetupLayout(tmp_path)
    uv = place.venv / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.touch()
    monkeypatch.setenv("PIP_FIND_LINKS", "/one /two")
    with pytest.raises(say.SetupError):
        installer.install(place, ["a==1"])
    folders, torch, pip = tried
    assert folders[0] == torch[0] == str(uv) and pip[0] == str(place.python)
    assert "--find-links=/one" in folders and "--find-links=/two" in folders
    assert torch[torch.index("--torch-backend") + 1] == "cpu"
    for words in (folders, torch):
        assert words[words.index("--python") + 1] == str(place.python)
    assert {tuple(words[-2:]) for words in tried} == {("--no-deps", "a==1")}


def test_check_runs_on_a_bare_python() -> None:
    """No package at all (-I -S), as on a machine where nothing is installed yet."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import runpy; "
        "sys.argv = ['setup', '--check']; "
        "runpy.run_module('toolkit.setup', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(ROOT / ".venv") in done.stdout


def test_the_real_command_checks_from_the_checkout() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "toolkit.setup", "--check"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_pytest_arguments_are_forwarded() -> None:
    options = command.parse(["test", "--unit-only", "-k", "router", "-x"])
    assert options.action == "test" and options.unit_only
    assert options.extra == ["-k", "router", "-x"]


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(SystemExit):
        command.parse(["demonstrate"])
