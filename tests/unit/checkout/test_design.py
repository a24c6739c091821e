"""Decision records have one form, and their figures are those of the records that they name."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from docs.gains import filled

ROOT = Path(__file__).resolve().parents[3]
PAGES = ROOT / "docs" / "pages" / "design"
DECISIONS = sorted(path.name for path in PAGES.glob("*.md") if path.name != "index.md")


def lines(file: Path) -> list[dict[str, Any]]:
    text = file.read_text()
    each = [text] if file.suffix == ".json" else text.splitlines()
    return [json.loads(line) for line in each if line]


def figures(page: str) -> list[tuple[str, Path, str]]:
    """(figure, file, key or benchmark) of each row of a decision's table."""
    rows = re.findall(r"^\| .+ \| (.+) \| `(results/\S+)` `(.+)` \|$", page, re.M)
    return [(figure, ROOT / file, key) for figure, file, key in rows]


@pytest.mark.parametrize("name", DECISIONS)
def test_a_decision_has_its_parts(name: str) -> None:
    text = (PAGES / name).read_text()
    assert re.search(r"^\*\*(Decided|Planned):\*\* ", text, re.M)
    headings = re.findall(r"^## (.+)$", text, re.M)
    assert headings[0] == "Why" and headings[1].startswith("What else there")
    assert "Figures" in headings


@pytest.mark.parametrize("name", DECISIONS)
def test_its_figures_are_those_of_the_records(name: str) -> None:
    text = (PAGES / name).read_text()
    table = text[text.index("## Figures") :]
    found = figures(table)
    assert len(found) == table.count("\n| ") - 1, "a row names no record"
    for figure, file, key in found:
        if "{" in key:
            newest = lines(file)[-1]["figures"]
            assert filled(key, newest) == figure, (name, key)
        else:
            told = [each["result"] for each in lines(file) if each["benchmark"] == key]
            assert any(figure in result for result in told), (name, figure)


def test_every_decision_is_in_the_list_and_in_the_navigation() -> None:
    index = (PAGES / "index.md").read_text()
    navigation = (ROOT / "docs" / "mkdocs.yml").read_text()
    assert DECISIONS
    for name in DECISIONS:
        assert f"({name})" in index
        assert f"design/{name}" in navigation
