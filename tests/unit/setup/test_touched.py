"""Which parts of the tests a change has to run."""

from pathlib import Path

import pytest

from tests import scope
from toolkit.setup import touched
from toolkit.setup.layout import here

PART = "reports"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with one part: a test, what it imports and what that reads."""
    texts = {
        "tests/__init__.py": "",
        "tests/e2e/conftest.py": "from toolkit import shared\n\n\n@pytest.fixture\ndef up(): ...\n",
        "tests/e2e/test_reports.py": f'@pytest.mark.touched("{PART}")\n'
        "def test_x():\n    from toolkit.report import page\n",
        "tests/e2e/test_other.py": "from toolkit import other\n",
        "tests/unit/plan/test_plan.py": "@pytest.mark.slow\ndef test_x(): ...\n",
        "toolkit/__init__.py": "",
        "toolkit/report/__init__.py": "",
        "toolkit/report/page.py": 'read("page.html")\n',
        "toolkit/report/page.html": "<html>",
        "toolkit/other.py": "",
        "toolkit/shared.py": "",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_without_a_record_every_part_runs(root: Path) -> None:
    assert touched.touched(root) == [touched.PLANNING, PART]
    touched.record(root, touched.now(root))
    assert touched.touched(root) == []
    touched.record(root, {"gone": "x"})
    assert list(touched.recorded(root)) == ["gone", touched.PLANNING, PART]
    touched.record(root, {})
    assert list(touched.recorded(root)) == [touched.PLANNING, PART]


@pytest.mark.parametrize(
    "name",
    ["tests/e2e/test_reports.py", "toolkit/report/page.py", "toolkit/report/page.html"],
)
def test_a_part_runs_where_one_of_its_files_is_another(root: Path, name: str) -> None:
    touched.record(root, touched.now(root))
    (root / "toolkit/other.py").write_text("changed")
    (root / "toolkit/report/new.py").write_text("nobody imports it")
    assert touched.touched(root) == []
    with (root / name).open("a") as file:
        file.write("# changed")
    assert touched.touched(root) == [PART]


def test_what_a_test_imports_anew_is_a_change(root: Path) -> None:
    touched.record(root, touched.now(root))
    (root / "toolkit/report/page.py").write_text("from toolkit import other\n")
    assert touched.touched(root) == [PART]
    touched.record(root, touched.now(root))
    (root / "toolkit/other.py").write_text("changed")
    assert touched.touched(root) == [PART]
    touched.record(root, touched.now(root))
    (root / "toolkit/other.py").unlink()
    assert touched.touched(root) == [PART]


def test_what_a_conftest_imports_counts_where_its_fixture_is_asked_for(root: Path) -> None:
    assert "tests/e2e/conftest.py" in touched.Checkout(root).files(PART)
    assert "toolkit/shared.py" not in touched.Checkout(root).files(PART)
    asks = root / "tests/e2e/test_reports.py"
    for asked in ("def test_y(up: str) -> None: ...\n", 'getfixturevalue("up")\n'):
        before = asks.read_text()
        asks.write_text(before + asked)
        assert "toolkit/shared.py" in touched.Checkout(root).files(PART)
        asks.write_text(before)


@pytest.fixture(scope="module")
def project() -> touched.Checkout:
    """This one."""
    return touched.Checkout(here().root)


@pytest.mark.parametrize(
    ("part", "tries", "leaves"),
    [
        ("preemption", "patches/preempt/boundary.py", "patches/relocate/rank.py"),
        ("relocation", "patches/relocate/rank.py", "patches/preempt/boundary.py"),
        ("relocation", "toolkit/router/app.py", "toolkit/policies/published/eldr.py"),
        ("dp-policies", "toolkit/policies/gimbal.py", "toolkit/cli/main.py"),
        ("planning", "toolkit/plan/planner.py", "patches/registry.py"),
        ("launch-command", "toolkit/cli/launch.py", "toolkit/plan/planner.py"),
        ("launch-command", "patches/worker.py", "tests/passed.json"),
        ("launch-command", "toolkit/launch/child.py", "toolkit/setup/touched.py"),
        ("moving", "launch/cpu-demo.yaml", "toolkit/plan/planner.py"),
        ("eldr", "profiles/embedded/profile.json", "toolkit/plan/planner.py"),
        ("placement", "toolkit/placement/eplb.py", "toolkit/router/app.py"),
        ("releases", "tests/releases/returns.json", "toolkit/router/app.py"),
        (touched.KERNELS, "toolkit/simulate/loop.py", "toolkit/router/app.py"),
        (touched.BROWSER, "tests/e2e/browser.py", "toolkit/router/app.py"),
        (touched.POLICIES, "toolkit/setup/cpu.lock", "toolkit/launch/command.py"),
    ],
)
def test_a_part_has_the_files_that_it_tries(
    project: touched.Checkout, part: str, tries: str, leaves: str
) -> None:
    found = project.files(part)
    assert tries in found and leaves not in found


def test_a_marked_test_is_left_out_where_its_part_is_untouched(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.node.add_marker(pytest.mark.touched(PART))
    for now, left_out in (((), True), ((PART,), False)):
        monkeypatch.setattr(scope, "touched_parts", lambda now=now: frozenset(now))
        monkeypatch.setenv("TOOLKIT_TEST_SCOPE", "default")
        assert scope.leaves_out(request.node) is left_out
        monkeypatch.setenv("TOOLKIT_TEST_SCOPE", "full")
        assert not scope.leaves_out(request.node)


@pytest.mark.parametrize(
    ("path", "slow", "part"),
    [
        ("tests/unit/plan/test_x.py", True, touched.PLANNING),
        ("tests/unit/policies/rounds/test_x.py", True, touched.POLICIES),
        ("tests/unit/plan/test_x.py", False, None),
        ("tests/unit/router/test_x.py", True, "router"),
        ("tests/unit/router/eldr/test_x.py", True, "eldr"),
        ("tests/unit/launch/test_x.py", True, None),
    ],
)
def test_slow_tests_of_an_area_are_part_of_it(path: str, slow: bool, part: str | None) -> None:
    class Item:
        path = here().root / Path("x")

        def get_closest_marker(self, name: str) -> object:
            return object() if name == "slow" and slow else None

    item = Item()
    item.path = here().root / path
    assert scope.part_of(item) == part  # type: ignore[arg-type]


def test_every_mark_is_one_that_the_text_shows(project: touched.Checkout) -> None:
    """A test whose part is not found in its file would run for no change at all."""
    marked = set()
    for file in (here().root / "tests").rglob("*.py"):
        if file != Path(__file__) and "mark.touched(" in (text := file.read_text()):
            path = file.relative_to(here().root).as_posix()
            marked.add(path)
            assert text.count("mark.touched(") == len(touched.MARK.findall(text)), path
    found = {path for tests in project.tests.values() for path in tests}
    assert marked and marked <= found


def test_all_parts_are_recorded_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched, "__file__", str(root / "toolkit" / "setup" / "touched.py"))
    assert touched.main(["--record", "all"]) == 0
    assert touched.touched(root) == []
