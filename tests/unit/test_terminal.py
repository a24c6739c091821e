"""No number, no header is cut: in a pipe, and in terminals of any width."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from toolkit.report.terminal import PIPE_WIDTH, console, show

numbers = st.one_of(
    st.integers(0, 10**9).map(str),
    st.floats(0, 1e7, allow_nan=False).map(lambda value: f"{value:.2f}"),
    st.tuples(st.floats(0, 9), st.floats(0, 9), st.floats(0, 9)).map(
        lambda three: "{:.3f} ({:.3f} to {:.3f})".format(*three)
    ),
    st.just("-"),
)
names = st.text("abcdefg@_", min_size=1, max_size=18)
headers = st.lists(st.text("KVTPOT", min_size=2, max_size=9), min_size=1, max_size=3).map(" ".join)


def said(table: Table, width: int) -> str:
    out = io.StringIO()
    show(Console(file=out, width=width, highlight=False, force_terminal=True, no_color=True), table)
    return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())


@st.composite
def tables(draw: st.DrawFn) -> tuple[Table, list[str], list[str]]:
    table = Table(title="simulated (times in ms)", title_justify="left")
    heads = draw(st.lists(headers, min_size=1, max_size=14))
    table.add_column("policy")
    for head in heads:
        table.add_column(head, justify="right")
    whole = []
    for _ in range(draw(st.integers(1, 4))):
        cells = draw(st.lists(numbers, min_size=len(heads), max_size=len(heads)))
        table.add_row(draw(names), *cells)
        whole += [word for cell in cells for word in cell.split()]
    return table, [word for head in heads for word in head.split()], whole


@given(tables(), st.sampled_from([60, 80, 100, 132]))
def test_numbers_and_headers_are_whole_and_lines_fit(
    made: tuple[Table, list[str], list[str]], width: int
) -> None:
    table, heads, whole = made
    text = said(table, width)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    shown = re.split(r"[\s│┃]+", text)
    for word in (*heads, *whole):
        assert word in shown, (word, text)


def test_a_wide_table_comes_in_parts_that_each_name_the_row() -> None:
    table = Table()
    table.add_column("policy")
    for number in range(20):
        table.add_column(f"figure {number}", justify="right")
    table.add_row("shortest_queue", *(f"{number}546.123" for number in range(20)))
    text = said(table, 80)
    assert text.count("shortest_queue") > 1
    for number in range(20):
        assert f"{number}546.123" in text


def test_a_long_path_is_folded_and_not_lost() -> None:
    table = Table()
    table.add_column("process")
    table.add_column("what")
    path = "/very/long/" + "x" * 200
    table.add_row("decode-0", path)
    text = said(table, 60)
    assert "…" not in text and text.count("x") == 200


def test_a_pipe_has_no_width(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table()
    for number in range(40):
        table.add_column(f"figure {number}")
    table.add_row(*(f"{number}546.123" for number in range(40)))
    out = io.StringIO()
    piped = console(file=out)
    assert piped.width == PIPE_WIDTH
    show(piped, table)
    assert all(f"{number}546.123" in out.getvalue() for number in range(40))
    rows = out.getvalue().splitlines()
    assert len(rows) == 5 and max(map(len, rows)) < 1000
