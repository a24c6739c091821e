"""Which parts of the tests a change has to run."""

from pathlib import Path

import pytest

from tests import scope
from toolkit.setup import touched
from toolkit.setup.layout import here

PART = touched.BROWSER


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one part: a folder and a file."""
    parts = {PART: ("report", "one.py")}
    monkeypatch.setattr(touched, "PARTS", parts)
    monkeypatch.setattr(touched, "_EVERY", ())
    for name in ("tests/a.py", "report/deep/page.py", "one.py", "other.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def test_without_a_record_every_part_runs(root: Path) -> None:
    assert touched.touched(root) == [PART]
    touched.record(root, touched.now(root))
    assert touched.touched(root) == []


@pytest.mark.parametrize("name", ["report/deep/page.py", "report/new.py", "one.py"])
def test_a_part_runs_where_one_of_its_files_is_another(root: Path, name: str) -> None:
    touched.record(root, touched.now(root))
    (root / "other.py").write_text("changed")
    compiled = root / "report/__pycache__/page.pyc"
    compiled.parent.mkdir()
    compiled.write_text("compiled")
    assert touched.touched(root) == []
    (root / name).write_text("changed")
    assert touched.touched(root) == [PART]


def test_a_file_that_is_moved_or_gone_is_a_change(root: Path) -> None:
    touched.record(root, touched.now(root))
    page = root / "report/deep/page.py"
    page.rename(root / "report/page.py")
    assert touched.touched(root) == [PART]
    (root / "one.py").unlink()
    with pytest.raises(FileNotFoundError, match=r"one\.py, of the part browser"):
        touched.touched(root)


def test_every_path_of_the_table_is_there() -> None:
    for part in touched.PARTS:
        assert len(touched.files(here().root, part)) > 3


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
        ("tests/unit/router/test_x.py", True, None),
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


def test_all_parts_are_recorded_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched, "__file__", str(root / "toolkit" / "setup" / "touched.py"))
    assert touched.main(["--record", "all"]) == 0
    assert touched.touched(root) == []
