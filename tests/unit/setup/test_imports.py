"""What a test runs, as its text says: against Python's own parser, and against processes."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from toolkit.setup import touched
from toolkit.setup.imports import PACKAGES, How, Sources
from toolkit.setup.layout import here

ROOT = here().root


def statements(body: list[ast.stmt], whole: bool) -> Iterator[ast.stmt]:
    """Those of a body that run; with `whole` those inside of others, too."""
    for node in body:
        yield node
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        for field in ("body", "orelse", "finalbody", "handlers", "cases") if whole else ():
            yield from statements(getattr(node, field, []), whole)


def imported(tree: ast.Module, how: How) -> set[str]:
    """The files of the checkout that it imports."""
    names: list[str] = []
    for node in statements(tree.body, how is How.WHOLE):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {file for name in names if name.split(".")[0] in PACKAGES for file in module(name)}


@cache
def module(name: str) -> list[str]:
    """The files of a module and of its packages."""
    parts, found = name.split("."), []
    for end in range(1, len(parts) + 1):
        base = "/".join(parts[:end])
        found += [f for f in (f"{base}/__init__.py", f"{base}.py") if (ROOT / f).is_file()]
    return found


@pytest.mark.slow
def test_the_text_says_what_the_parser_finds() -> None:
    sources = Sources(ROOT)
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(files) > 1000
    for path in files:
        name, tree = path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())
        for how in (How.WHOLE, How.LOADED):
            found = {other for other, _ in sources.used(name, how)}
            assert imported(tree, how) <= found, name


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Some modules that import one another."""
    texts = {
        "toolkit/__init__.py": "",
        "toolkit/a.py": "from toolkit import (\n    b,  # one\n    c as d,\n)\n",
        "toolkit/b.py": "if TYPE_CHECKING:\n    from toolkit.typed import T\n\nx = 1\n",
        "toolkit/c.py": "def f():\n    import toolkit.late\n",
        "toolkit/late.py": '[sys.executable, "-m", "toolkit.router"]\n',
        "toolkit/typed.py": "",
        "toolkit/router/__init__.py": "def lazily():\n    from toolkit import typed\n",
        "toolkit/router/__main__.py": "from toolkit.router.app import run\n",
        "toolkit/router/app.py": '[\n    "-m",\n    "toolkit.router.job",\n]\n"rules.json"\n',
        "toolkit/router/job.py": "",
        "toolkit/router/rules.json": "{}",
        "tests/__init__.py": "",
        "tests/starts.py": 'STARTS = (\n    "toolkit.router",\n)\n',
        "tests/program.py": 'PROGRAM = "import sys; from toolkit import c; c.f()"\n',
        "tests/named.py": 'monkeypatch.setattr("toolkit.router.app.LIMIT", 1)\n',
        "tests/any_step.py": 'import_module(f"tests.steps.{step}")\n',
        "tests/steps/__init__.py": "",
        "tests/steps/one.py": "from toolkit import a\n",
        "tests/texts/long.txt": "...",
        "tests/reads.py": 'Path(__file__).with_name("texts")\n',
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


ROUTER = {"toolkit/router/__init__.py", "toolkit/router/app.py", "toolkit/router/job.py"}


@pytest.mark.parametrize(
    ("root", "reached"),
    [
        ("toolkit/a.py", {"toolkit/b.py", "toolkit/c.py", "toolkit/late.py"}),
        ("toolkit/b.py", set()),
        ("tests/program.py", {"toolkit/c.py", "toolkit/late.py"}),
        ("tests/named.py", ROUTER),
        ("tests/starts.py", {*ROUTER, "toolkit/router/__main__.py", "toolkit/typed.py"}),
        (
            "tests/any_step.py",
            {
                "tests/steps/__init__.py",
                "tests/steps/one.py",
                *("toolkit/a.py", "toolkit/b.py", "toolkit/c.py", "toolkit/late.py"),
            },
        ),
    ],
)
def test_imports_are_followed(checkout: Path, root: str, reached: set[str]) -> None:
    sources = Sources(checkout)
    found = sources.reached([root], lambda _by, _path: How.WHOLE)
    assert found - {root, "toolkit/__init__.py", "tests/__init__.py"} == reached


def test_one_that_is_only_loaded_runs_none_of_its_functions(checkout: Path) -> None:
    def judge(by: str, path: str) -> How:
        listed = by == "toolkit/a.py"
        return How.NOT if listed and path == "toolkit/b.py" else How.LOADED if listed else How.WHOLE

    found = Sources(checkout).reached(["toolkit/a.py"], judge)
    assert found == {"toolkit/__init__.py", "toolkit/a.py", "toolkit/c.py"}


def test_files_beside_a_module_that_it_names_count(checkout: Path) -> None:
    data = Sources(checkout).data(["tests/reads.py", "toolkit/router/app.py", "toolkit/a.py"])
    assert data == {"tests/texts/long.txt", "toolkit/router/rules.json"}


IMPORTED = """
import importlib, json, os, sys
# What most of them import, once for all.
import aiohttp, hypothesis, numpy, openai, pydantic, pytest, rich.console, scipy.optimize, yaml
said = {}
for part, modules in json.load(sys.stdin).items():
    ours, theirs = os.pipe()
    if os.fork() == 0:
        for name in modules:
            importlib.import_module(name)
        found = [getattr(m, "__file__", None) for n, m in sys.modules.items()
                 if n.split(".")[0] in ("toolkit", "patches", "tests")]
        with os.fdopen(theirs, "w") as out:
            json.dump([each for each in found if each], out)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as out:
        said[part] = json.load(out)
    assert os.wait()[1] == 0
print(json.dumps(said))
"""


@pytest.mark.slow
def test_what_a_process_has_imported_is_among_the_files_of_the_part() -> None:
    """Of the unit tests of each part."""
    parts = touched.Checkout(ROOT)
    modules = {}
    for part, tests in parts.tests.items():
        unit = [path for path in tests if path.startswith("tests/unit/")]
        if unit:
            modules[part] = [path.removesuffix(".py").replace("/", ".") for path in unit]
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED],
        input=json.dumps(modules),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
    )
    found = json.loads(done.stdout)
    assert len(found) >= 7 and found.keys() == modules.keys()
    for part, paths in found.items():
        loaded = {Path(path).relative_to(ROOT).as_posix() for path in paths}
        assert len(loaded) > len(modules[part])
        assert loaded <= set(parts.files(part)), part


@pytest.mark.parametrize("part", ["router", "eldr", "relays"])
def test_all_of_the_router_is_in_the_parts_that_start_one(part: str) -> None:
    files = touched.Checkout(ROOT).files(part)
    own = {path.relative_to(ROOT).as_posix() for path in (ROOT / "toolkit/router").rglob("*.py")}
    assert own - set(files) == {"toolkit/router/validate/printed.py"}  # of a page
