"""The changelog is sorted by kind, old names are announced in it, and editors know the style."""

import configparser
import re
import tomllib
from pathlib import Path

import yaml

from toolkit.router.renamed_metrics import OLD_NAMES
from toolkit.setup import layout
from toolkit.setup.testing import lint_steps

ROOT = Path(__file__).resolve().parents[3]
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()


def unreleased() -> dict[str, str]:
    """Kind -> its text, of what is not released yet."""
    part = CHANGELOG.split("\n## ")[1]
    assert part.startswith("Unreleased\n")
    return dict(text.split("\n", 1) for text in part.split("\n### ")[1:])


def test_what_is_unreleased_is_sorted_by_kind() -> None:
    kinds = list(unreleased())
    assert kinds == [kind for kind in KINDS if kind in kinds]
    for kind, text in unreleased().items():
        assert re.search(r"^- ", text, re.M), f"{kind} is empty"
        assert not re.search(rf"\*\*({'|'.join(KINDS)})\*\*", text), f"{kind} holds another kind"


def test_an_old_name_is_under_deprecated_while_it_works() -> None:
    said = unreleased().get("Deprecated", "")
    assert [old for old in OLD_NAMES.values() if old not in said] == []


def test_the_editor_s_configuration_is_that_of_ruff() -> None:
    parser = configparser.ConfigParser()
    parser.read_string("[top]\n" + (ROOT / ".editorconfig").read_text())
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert parser["*.py"].getint("max_line_length") == settings["tool"]["ruff"]["line-length"]
    assert parser["*"]["insert_final_newline"] == "true"


def test_a_commit_is_checked_by_what_the_lint_step_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["entry"] for hook in hooks] == ["python3 -m toolkit.setup lint"]
    assert hooks[0]["always_run"] and not hooks[0]["pass_filenames"]
    steps = ["ruff check", "ruff format", "spelling", "secrets", "import contracts", "documents"]
    assert [*steps, "mypy", "checks of the checkout"] == [
        name for name, _ in lint_steps(layout.here())
    ]
