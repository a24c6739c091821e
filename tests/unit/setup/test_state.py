"""The lock file, the stamp, the look at what is installed, the test command's steps."""

import importlib.metadata
import random
import string
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from toolkit.setup import __main__ as command
from toolkit.setup import (
    environment,
    kernels,
    lockfile,
    say,
    scopes,
    stamp,
    testing,
    touched,
    verify,
)
from toolkit.setup.layout import SetupLayout, here


@pytest.mark.parametrize("text", ["torch", "torch>=2", "a==1; python_version<'3'", "a==1 b==2"])
def test_anything_but_an_exact_pin_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        lockfile.parse(f"# comment\n{text}\n")


def test_a_name_may_not_be_pinned_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        lockfile.parse("some_name==1\nSome.Name==2\n")


def test_the_shipped_lock_is_lean_and_complete() -> None:
    pins = lockfile.parse(here().requirements.read_text())
    assert pins["sglang"] == "0.5.21" and pins["torch"] == "2.13.0+cpu"
    assert pins["mooncake-transfer-engine-non-cuda"] == "0.3.13.post1"
    heavy = ("nvidia", "cuda", "flashinfer", "cutlass", "tilelang", "sglang-kernel", "sgl-deep")
    assert [n for n in pins if n.startswith(heavy)] == []
    assert {"pytest", "ruff", "mypy", "httptools", "setuptools"} <= set(pins)


def test_what_the_pinned_packages_need_is_pinned_or_left_out_by_name() -> None:
    """`--no-deps` installs nothing else: a forgotten one shows only where nobody had it before."""
    lock = here().requirements
    pins = lockfile.parse(lock.read_text())
    left_out = set(lock.with_name("cpu.excludes").read_text().split())
    # PyPI's builds of these ask for CUDA; the environment of this test may have one of them.
    builds = {"torch", "torchvision"}
    absent = set()
    for name in pins.keys() - builds:
        for text in importlib.metadata.requires(name) or []:
            need = Requirement(text)
            wanted = need.marker is None or need.marker.evaluate({"extra": ""})
            if wanted and lockfile.normalise(need.name) not in {*pins, *left_out}:
                absent.add(f"{name} needs {need.name}")
    assert absent == set()


@pytest.fixture
def place(tmp_path: Path) -> SetupLayout:
    """A checkout with a lock and a project file, and an environment with a Python in it."""
    made = SetupLayout(tmp_path)
    for file in (made.requirements, made.pyproject, made.python):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    made.python.chmod(0o755)
    return made


def test_a_stamp_holds_until_something_changes(place: SetupLayout) -> None:
    assert stamp.read(place) is None
    stamp.write(place, stamp.wanted(place))
    assert stamp.read(place) == stamp.wanted(place)
    place.requirements.write_text("other==1")
    assert stamp.read(place) != stamp.wanted(place)


def test_a_stamp_is_not_trusted_without_its_python(place: SetupLayout) -> None:
    stamp.write(place, stamp.wanted(place))
    place.python.unlink()
    assert stamp.read(place) is None


def test_a_stamp_does_not_travel_to_another_folder(place: SetupLayout, tmp_path: Path) -> None:
    before = stamp.wanted(place)
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("toolkit", "pyproject.toml"):
        (place.root / name).rename(moved / name)
    assert stamp.wanted(SetupLayout(moved)) != before


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_torn_stamp_counts_as_none(place: SetupLayout, text: str) -> None:
    place.stamp.write_text(text)
    assert stamp.read(place) is None


def _install(site: Path, name: str, version: str, files: list[str]) -> None:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file in files:
        (site / file).write_text("")


def test_versions_are_compared_and_a_local_suffix_is_forgiven(tmp_path: Path) -> None:
    _install(tmp_path, "torch", "2.13.0+cpu", ["torch.py"])
    _install(tmp_path, "rich", "14.0", ["rich.py"])
    pins = {"torch": "2.13.0", "rich": "15.0", "absent": "1"}
    assert verify.differing(tmp_path, pins) == ["rich", "absent"]


def test_a_half_installed_package_counts_as_absent(tmp_path: Path) -> None:
    _install(tmp_path, "whole", "1", ["whole.py", "whole.pyc"])
    _install(tmp_path, "torn_apart", "1", ["torn.py", "torn_more.py"])
    _install(tmp_path, "listless", "1", ["listless.py"])
    (tmp_path / "whole.pyc").unlink()  # byte code comes back by itself
    (tmp_path / "torn_more.py").unlink()
    (tmp_path / "listless-1.dist-info" / "RECORD").unlink()
    pins = {"whole": "1", "torn-apart": "1", "listless": "1"}
    assert verify.differing(tmp_path, pins) == []
    verify.forget_damaged(tmp_path, pins)
    assert verify.differing(tmp_path, pins) == ["torn-apart", "listless"]


@pytest.mark.slow
def test_an_environment_of_another_place_is_made_anew(tmp_path: Path) -> None:
    made = SetupLayout(tmp_path / "made")
    assert not environment._usable(made)
    subprocess.run([sys.executable, "-m", "venv", made.venv], check=True)
    assert environment._usable(made)
    moved = SetupLayout(tmp_path / "moved")
    made.root.rename(moved.root)
    assert not environment._usable(moved)


def test_two_set_ups_do_not_run_at_once(
    place: SetupLayout, capfd: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import sys; from pathlib import Path; from toolkit.setup import environment\n"
        "from toolkit.setup.layout import SetupLayout\n"
        f"with environment._only_one(SetupLayout(Path({str(place.root)!r}))):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=here().root,
    )  # fmt: skip
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        waiter = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=here().root,
        )  # fmt: skip
        assert waiter.stdout is not None
        assert f"process {holder.pid}" in waiter.stdout.readline()  # waits, and says for whom
        assert waiter.poll() is None
    finally:
        holder.communicate()
    assert waiter.communicate(timeout=30)[0] == "held\n"
    assert waiter.returncode == 0


def test_missing_libraries_stop_the_set_up_before_any_download(
    place: SetupLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.setup.libraries.missing", lambda: ["libibverbs1"])
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(environment, "_make_venv", lambda layout: pytest.fail("went on"))
    with pytest.raises(say.SetupError, match="sudo apt-get"):
        environment.ensure(place)


def test_all_problems_are_told_at_once(place: SetupLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    monkeypatch.setattr("toolkit.setup.checks.INSTALL_GIB", 1e9)
    with pytest.raises(say.SetupError, match=r"riscv64(.|\n)*GiB are free"):
        environment.ensure(place)


KERNELS = "numeric tests under other kernels"


@pytest.fixture
def all_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched, "touched", lambda _root: [touched.KERNELS, touched.BROWSER])


@pytest.mark.usefixtures("all_touched")
def test_what_fails_soonest_comes_first_and_the_extra_words_go_to_pytest() -> None:
    lint = [name for name, _ in testing.lint_steps(here())]
    before = ["ruff check", "ruff format", "spelling", "secrets", "import contracts"]
    assert lint == [*before, "documents", "mypy", "checks of the checkout"]
    steps = testing.test_steps(here(), False, scopes.DEFAULT, ["-k", "router"])
    names = ["unit tests", KERNELS, "end-to-end tests"]
    assert [name for name, _ in steps] == names
    unit, kernels, end = (command for _, command in steps)
    words = ["tests/unit", f"--ignore={testing.CHECKOUT}", "-k", "router"]
    assert unit[-4:] == words and "-n" in unit
    assert kernels[-4:] == ["-m", "toolkit.setup.kernels", "-k", "router"]
    assert end[-3:] == ["tests/e2e", "-k", "router"] and "loadgroup" in end
    for unit_only, scope, kept in (
        (True, scopes.DEFAULT, names[:-1]),
        (False, scopes.FAST, names[:1]),
        (False, scopes.FULL, [*names[:2], testing.SEVERAL, names[2]]),
    ):
        assert [name for name, _ in testing.test_steps(here(), unit_only, scope, [])] == kept
    (every,) = (c for n, c in testing.test_steps(here(), True, scopes.FULL, []) if n == KERNELS)
    assert every[-1] == "--every"


@pytest.mark.parametrize(("planted", "status"), [(True, 200), (False, 0)])
def test_a_planted_key_is_found(planted: bool, status: int, tmp_path: Path) -> None:
    """The key is made here, or this file would not pass the step."""
    (command,) = (words for name, words in testing.lint_steps(here()) if name == "secrets")
    key = "ghp_" + "".join(random.Random(7).choices(string.ascii_letters + string.digits, k=36))
    (tmp_path / "client.py").write_text(f"token = {key!r}\n" if planted else "token = None\n")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    assert ("client.py" in done.stdout) is planted and key not in done.stdout


def test_pre_commit_runs_the_lint_steps_and_has_no_list_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = yaml.safe_load((here().root / ".pre-commit-config.yaml").read_text())
    ((hook,),) = [each["hooks"] for each in config["repos"]]
    assert hook["entry"] == "python3 -m toolkit.setup lint" and hook["always_run"]
    monkeypatch.setattr(environment, "ensure", lambda place: None)
    for statuses, expected in (([0, 0], 0), ([0, 3], 1)):
        steps = [(str(code), [sys.executable, "-c", f"exit({code})"]) for code in statuses]

        def found(_: SetupLayout, steps: list[testing.Step] = steps) -> list[testing.Step]:
            return steps

        monkeypatch.setattr(testing, "lint_steps", found)
        assert command.main(hook["entry"].split()[3:]) == expected


def test_named_tests_take_the_place_of_all() -> None:
    file = "tests/unit/setup/test_state.py"
    command = testing.test_steps(here(), False, scopes.DEFAULT, [f"{file}::test_x"])[-1][1]
    assert command[-1] == f"{file}::test_x" and "tests/e2e" not in command


def kernel_runs(*extra: str) -> list[list[str]]:
    """The words that the step of other kernels hands to pytest; nothing where it is left out."""
    steps = testing.test_steps(here(), True, scopes.DEFAULT, extra)
    return [command[3:] for name, command in steps if name == KERNELS]


def test_a_part_that_the_change_does_not_touch_runs_in_a_full_run_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(touched, "touched", lambda _root: [])
    assert kernel_runs() == []
    assert kernel_runs("tests/unit/placement") == [["tests/unit/placement"]]
    full = testing.test_steps(here(), True, scopes.FULL, [])
    assert [name for name, _ in full] == ["unit tests", KERNELS, testing.SEVERAL]


@pytest.mark.usefixtures("all_touched")
def test_other_kernels_get_the_named_unit_tests_alone() -> None:
    one, end = "tests/unit/placement/test_joint.py::test_nodes_come_first", "tests/e2e"
    assert kernel_runs() == [[]]
    assert kernel_runs(one, "-x") == [[one, "-x"]]
    assert kernel_runs(one, end) == [[one]]
    assert kernel_runs("tests") == [["tests"]]
    assert kernel_runs(end) == []
    assert kernel_runs("-m", "e2e") == []


@pytest.fixture
def recorded() -> list[list[str]]:
    """The parts that a run says have passed."""
    return []


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, recorded: list[list[str]]) -> Callable[..., int]:
    """Run these lint and test steps in place of the project's; the exit status."""

    def run(lint: list[testing.Step], tests: list[testing.Step]) -> int:
        monkeypatch.setattr(testing, "lint_steps", lambda *_: lint)
        monkeypatch.setattr(testing, "test_steps", lambda *_: tests)
        monkeypatch.setattr(testing.libraries, "ensure_browser", lambda: None)  # type: ignore[attr-defined]
        monkeypatch.setattr(touched, "now", lambda _root: {"one part": "1", "another": "2"})
        monkeypatch.setattr(touched, "record", lambda _root, passed: recorded.append([*passed]))
        return testing.run(here(), False, [])

    return run


@pytest.mark.parametrize(
    ("unit", "end_to_end", "status"), [(5, 0, 0), (0, 5, 0), (5, 5, 1), (5, 1, 1)]
)
def test_words_that_choose_tests_of_one_kind_only_are_fine(
    stand_in: Callable[..., int], unit: int, end_to_end: int, status: int
) -> None:
    kinds = {testing.UNIT: unit, testing.END_TO_END: end_to_end}
    steps = [(name, ["sh", "-c", f"exit {code}", "pytest"]) for name, code in kinds.items()]
    assert stand_in([], steps) == status


def test_failing_tests_fail_the_run_but_not_the_later_steps(
    stand_in: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert stand_in([], [("first", ["false"]), ("second", ["echo", "ran"])]) == 1
    said = capfd.readouterr().out
    assert "ran" in said and "FAILED: first (exit 1)" in said


def test_a_run_that_passes_says_so_of_every_part(
    stand_in: Callable[..., int], recorded: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(touched, "recorded", lambda _root: {})
    assert stand_in([], [("tests", ["false"])]) == 1 and recorded == []
    assert stand_in([], [("tests", ["true"])]) == 0
    assert recorded == [["one part", "another"]]


@pytest.mark.parametrize(
    ("status", "said", "kept"),
    [
        (1, ["tests/test_one.py::test_it[a]"], [["another"]]),
        (1, ["tests/test_else.py::test_it"], [["one part", "another"]]),
        (1, [], []),  # what failed is not known
        (2, ["tests/test_one.py::test_it"], []),  # not all tests ran
    ],
)
def test_a_part_without_a_failed_test_has_passed(
    stand_in: Callable[..., int],
    recorded: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    said: list[str],
    kept: list[list[str]],
) -> None:
    monkeypatch.setattr(touched, "recorded", lambda _root: {})
    tests = {"one part": ["tests/test_one.py"], "another": ["tests/test_two.py"]}
    monkeypatch.setattr(touched.Checkout, "_parts", lambda _self: tests)
    say = "import sys; from tests import record; [record.failure(f, 'E 1') for f in sys.argv[2:]];"
    words = [str(here().python), "-c", f"{say} sys.exit(int(sys.argv[1]))", str(status), *said]
    assert stand_in([], [("tests", words), ("others", ["true"])]) == 1
    assert recorded == kept


def test_what_lint_finds_ends_the_run(
    stand_in: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    lint = [("types", ["false"]), ("later", ["echo", "went on"])]
    assert stand_in(lint, [("tests", ["echo", "went on"])]) == 1
    said = capfd.readouterr().out
    assert "went on" not in said and "FAILED: types (exit 1); mend this first" in said


def test_at_the_end_it_says_where_the_time_went(
    stand_in: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    """Tests in several processes write to one file; a line that a kill cut short is no matter."""
    say = (
        "from tests import record; record.test('t::slow', 3); record.test('t::slow', 2.5);"
        "record.test('t::quick', 0.1); record.start('cpu-demo: prefill-0', 41)"
    )
    python = str(here().python)
    cut = ["sh", "-c", 'printf \'{"test": "t::cut\' >> "$TOOLKIT_TEST_RECORD"']
    assert stand_in([], [("tests", [python, "-c", say]), ("cut", cut)]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "1 starts of real workers, 41 s in all: setup: 41.0 s cpu-demo: prefill-0" in said
    assert "the slowest of 2 tests, with their fixtures: setup: 5.5 s t::slow setup: 0.1 s" in said
    assert "s tests setup:" in said and "s in all" in said


@pytest.mark.parametrize(("own", "left"), [("Haswell", 2), ("Zen", 3), ("", 3)])
def test_kernels_that_this_cpu_takes_by_itself_are_left_to_the_other_tests(
    own: str, left: int
) -> None:
    assert len(kernels.without(own, kernels.KERNELS)) == left
    assert kernels.without("Katmai", kernels.KERNELS[2:]) == [kernels.KERNELS[2]], "never none"


def test_the_environment_of_another_folder_is_not_made_anew_through_a_link(
    place: SetupLayout, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    place.venv.rename(other)
    place.venv.symlink_to(other)
    with pytest.raises(say.SetupError, match="is a link to the environment of another folder"):
        environment._make_venv(place)
    assert other.is_dir() and place.venv.is_symlink()
