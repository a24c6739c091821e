"""The README's table of gains says what the records say, and its pictures show the tree."""

import re
from pathlib import Path

import pytest

from docs import architecture, gains

ROOT = Path(__file__).resolve().parents[3]


def test_the_readme_has_the_figures_of_the_records() -> None:
    text = gains.README.read_text()
    assert text.count(gains.BEGIN) == text.count(gains.END) == 1
    assert gains.in_readme(text) == text, "run python -m docs.gains"


def test_a_figure_comes_from_its_keys() -> None:
    figures = {"a": {"b": 1.234, "b_low": 0.0371, "b_high": 163.5}, "n": 501}
    assert gains.filled("x {a.b} y {a.b!}, {n}", figures) == "x 1.23 y 1.23 (0.037 to 164), 501"
    with pytest.raises(KeyError):
        gains.filled("{a.c}", figures)


def test_a_row_links_to_its_record_and_to_a_heading_of_a_page() -> None:
    for gain in gains.GAINS:
        record = f"{gain.benchmark}.json" + ("" if gain.benchmark.startswith("gpu/") else "l")
        assert not gain.benchmark or (ROOT / "results" / record).is_file()
        page, _, anchor = gain.page.partition("#")
        headings = re.findall(r"^## (.+)$", (ROOT / "docs/pages" / page).read_text(), re.M)
        assert not anchor or anchor in [heading.lower().replace(" ", "-") for heading in headings]


def test_the_sentences_that_introduce_the_project_hold_no_figure() -> None:
    for name in ("README.md", "docs/pages/index.md"):
        paragraph = next(
            part for part in (ROOT / name).read_text().split("\n\n") if part.startswith("toolkit")
        )
        assert not re.search(r"\d", re.sub(r"\(http\S+\)", "", paragraph)), name
        assert len(re.findall(r"\.(?=\s|$)", paragraph)) == 3, name


def test_what_the_readme_links_to_is_there() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"):
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", (ROOT / name).read_text()):
            assert (ROOT / link).exists(), (name, link)


@pytest.mark.parametrize("name", architecture.PICTURES)
def test_pictures_are_drawn_from_the_tree(name: str) -> None:
    drawn = architecture.PICTURES[name]()
    assert (architecture.PAGES / name).read_text() == drawn, "run python -m docs.architecture"


def test_every_layer_has_a_purpose_and_a_place_in_the_picture() -> None:
    drawn = architecture.layered()
    for names in architecture.layers():
        for name in names:
            assert architecture.purpose(name), f"{name} has no docstring"
            assert name.replace(".", "/") in drawn


def test_a_folder_that_went_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"toolkit\.gone"):
        architecture.folder_of("toolkit.gone")
