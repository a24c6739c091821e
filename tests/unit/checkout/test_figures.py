"""Figures in the text of pages are those of the records that they name."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs import figures

PAGES = list(figures.pages())


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_page_says_what_its_records_say(page: Path) -> None:
    assert not figures.stale(page), "run python -m docs.figures, and read what the page then says"


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_an_interval_says_which_record_it_is_of(page: Path) -> None:
    assert not figures.unmarked(page), "docs/figures.py says how"


RECORDS = [
    {"benchmark": "a", "command": "a --quick", "commit": "1", "figures": {"n": 9}},
    {
        "benchmark": "a",
        "command": "a --load 2 --record",
        "commit": "2",
        "figures": {
            "ratio": 1.2345, "ratio_low": 1.1, "ratio_high": 1.3,
            "x": {"y z": {"value": 0.5, "low": 0.4, "high": 0.8}},
            "list": [2.0, 1.0, 4.0], "rows": [{"n": 1234.5}, {"n": 7}],
        },
    },
    {"benchmark": "b", "command": "b", "commit": None, "figures": {"n": 1}},
]  # fmt: skip


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "_records", lambda: RECORDS)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("written", "now"),
    [
        ("9.99<!-- a: ratio -->", "1.23<!-- a: ratio -->"),
        ("x 9 (8 to 7)<!-- a: ratio --> y", "x 1 (1 to 1)<!-- a: ratio --> y"),
        ("9.9 times (8.8 to 7.7)<!-- a: ratio -->", "1.2 times (1.1 to 1.3)<!-- a: ratio -->"),
        ("9.9 (8.8 to 7.7)<!-- a: x . y z -->", "0.5 (0.4 to 0.8)<!-- a: x . y z -->"),
        ("9.90 (8.80 to 7.70)<!-- a: x . y z inverse -->",
         "2.00 (1.25 to 2.50)<!-- a: x . y z inverse -->"),
        ("9.9 (8.8 to 7.7)<!-- a: list -->", "2.0 (1.0 to 4.0)<!-- a: list -->"),
        ("9,999<!-- a: rows . 0 . n -->", "1,234<!-- a: rows . 0 . n -->"),
        ("**9** ms<!-- a: rows . 1 . n * 1000 -->", "**7000** ms<!-- a: rows . 1 . n * 1000 -->"),
        ("5.0 %<!-- a: rows . 1 . n / 2 -->", "3.5 %<!-- a: rows . 1 . n / 2 -->"),
        ("9.9 % (8.8 to 7.7)<!-- a: ratio gain -->", "23.4 % (10.0 to 30.0)<!-- a: ratio gain -->"),
        ("**9.9 ms** (8 to 7)<!-- a: ratio -->", "**1.2 ms** (1 to 1)<!-- a: ratio -->"),
        ("5<!-- a[--quick]: n -->", "9<!-- a[--quick]: n -->"),
    ],
)  # fmt: skip
def test_a_figure_is_drawn_from_its_record(written: str, now: str) -> None:
    assert figures.fresh(written) == now
    assert figures.fresh(now) == now


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("written", "wrong"),
    [
        ("5<!-- c: n -->", "no record of c"),
        ("5<!-- a[--other]: n -->", "no record of a"),
        ("5<!-- b: n -->", "names no commit"),
        ("5<!-- a: nothing -->", "has no 'nothing'"),
        ("5<!-- a: rows . 2 . n -->", "has no '2'"),
        ("5 (1 to 2)<!-- a: rows . 0 . n -->", "has no 'n_low'"),
    ],
)
def test_a_figure_of_no_record_is_named(tmp_path: Path, written: str, wrong: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"one\n{written}\n")
    (found,) = figures.stale(page)
    assert wrong in str(found) and "page.md:2" in str(found)
    with pytest.raises(KeyError):
        figures.fresh(written)


def test_an_interval_without_a_mark_is_named(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n1.5 (1 to 2)<!-- a: ratio --> and **0.7 times (0.5 to 0.9)**, 3 (of 5)\n")
    assert figures.unmarked(page) == ["page.md:2: 0.7 times (0.5 to 0.9)"]
    page.write_text("a 0.7 times (0.5\n to 0.9), 3\n(of 5)\n")
    assert figures.unmarked(page) == ["page.md:1: 0.7 times (0.5\n to 0.9)"]


@given(st.floats(-1e9, 1e9), st.integers(0, 6), st.booleans())
def test_a_figure_keeps_its_digits(value: float, digits: int, comma: bool) -> None:
    written = figures.like(1234.5678, f"{'1,234' if comma else '1234'}.{'0' * digits}")
    text = figures.like(value, written)
    assert len(text.partition(".")[2]) == digits
    assert re.fullmatch(figures.NUMBER, text)
    assert abs(float(text.replace(",", "")) - value) <= 0.5 * 10**-digits * (1 + 1e-9) + 1e-6
