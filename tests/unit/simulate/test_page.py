"""The simulation's report: well formed, self-contained, true to its figures."""

import re

import pytest

from tests.unit.html_page import Page
from tests.unit.simulate import pages

FIGURES = ("load", "balance", "latency", "throughput")


@pytest.fixture(scope="module")
def text() -> str:
    return pages.page()


@pytest.mark.slow
def test_it_is_whole_and_every_picture_has_a_name(text: str) -> None:
    page = Page(text)
    assert [name for name, count in page.ids.items() if count > 1] == []
    assert not [name for name in FIGURES if name not in page.ids]
    pictures = [svg for svg in page.svgs if svg.get("class") != "sign"]
    assert len(pictures) == len(pages.ARMS) + 2 + 3 + 1
    assert all(page.ids[n] == 1 for svg in pictures for n in svg["aria-labelledby"].split())


def test_nothing_comes_from_elsewhere(text: str) -> None:
    for sign in ("http:", "https:", "//", "url(", "@import", "fetch(", "src="):
        assert sign not in text, sign


def test_its_words_are_numbers_and_all_policies_are_named(text: str) -> None:
    words = " ".join(Page(text).words)
    assert not re.search(r"\b(nan|inf|None)\b", words)
    assert all(arm in words for arm in pages.ARMS)
    assert "Simulated, not measured." in words


def test_classes_have_a_section_where_there_are_some(text: str) -> None:
    page = Page(pages.classed())
    assert [name for name, count in page.ids.items() if count > 1] == []
    assert page.ids["s-classes"] == 1 and "s-classes" not in Page(text).ids
    words = " ".join(page.words)
    for row in ("latency-sensitive: TTFT mean", "best-effort: slowdown", "best-effort: requests"):
        assert row in words
    assert not re.search(r"\b(nan|inf|None)\b", words)
    pictures = [svg for svg in page.svgs if svg.get("class") != "sign"]
    assert len(pictures) == 2 + 2 + 3 + 1 + 4
    assert all(page.ids[n] == 1 for svg in pictures for n in svg["aria-labelledby"].split())


@pytest.mark.slow
def test_many_ranks_are_three_lines() -> None:
    few, many = (pages.page(dp, seconds=2.0) for dp in (4, 32))
    assert few.count("line thin") == 4 * len(pages.ARMS)
    assert many.count("line thin") == 3 * len(pages.ARMS)


def test_titles_are_escaped() -> None:
    assert "<b>" not in pages.page(title="<b>bold", seconds=2.0)
