"""Tables in a terminal or a pipe: no number and no header is ever cut.

rich shortens what does not fit a column to `354…`. Here each column gets at least the width of its
longest number and of its longest header word; a table that is still too wide is printed in parts,
each with the first column. A pipe or a file has no width: there a table is as wide as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 4000
LONGEST_WORD = 24
"""Words without an end (paths, addresses) may be folded beyond so many characters; numbers not."""
_NUMBER = re.compile(r"[\[(]?[-+<>~]?[0-9][0-9.,:eE+/%-]*[A-Za-z%)\]]*")


def console(**options: Any) -> Console:
    """As wide as the terminal; where there is none, as wide as anything needs."""
    from rich.console import Console

    made = Console(highlight=False, **options)
    return made if made.is_terminal else Console(highlight=False, width=PIPE_WIDTH, **options)


def show(to: Console, what: Any) -> None:
    """Print it; tables, also those in a group, in parts where the terminal is too narrow."""
    from rich.console import Group
    from rich.table import Table

    if isinstance(what, Group):
        for each in what.renderables:
            show(to, each)
    elif isinstance(what, Table):
        for part in fitted(what, to):
            to.print(part)
    else:
        to.print(what)


def fitted(table: Table, to: Console) -> list[Table]:
    """The table, or its parts, with widths at which nothing is cut."""
    needs = [_needs(cells) for cells in _texts(table, to)]
    frame = _frame(table)
    room = to.width - 1  # the border at the left
    if sum(most + frame for _, most in needs) <= room:
        return [table]
    parts = _groups([least + frame for least, _ in needs], room)
    return [_part(table, columns, needs, room - frame * len(columns)) for columns in parts]


def _groups(widths: Sequence[int], room: int) -> list[list[int]]:
    """Columns of each part: the first one, and as many of the others as there is room for."""
    parts: list[list[int]] = [[0]]
    used = widths[0]
    for column in range(1, len(widths)):
        if used + widths[column] > room and len(parts[-1]) > 1:
            parts.append([0])
            used = widths[0]
        parts[-1].append(column)
        used += widths[column]
    return parts


def _part(table: Table, columns: list[int], needs: list[tuple[int, int]], room: int) -> Table:
    from rich.table import Table

    widths = _widths([needs[column] for column in columns], room)
    part = Table(
        title=table.title, title_justify=table.title_justify, caption=table.caption,
        box=table.box, pad_edge=table.pad_edge, show_header=table.show_header,
        show_lines=table.show_lines,
    )  # fmt: skip
    for column, width in zip(columns, widths, strict=True):
        old = table.columns[column]
        part.add_column(
            old.header, justify=old.justify, style=old.style, overflow="fold", width=width
        )
    cells = [list(table.columns[column].cells) for column in columns]
    for row, kept in enumerate(table.rows):
        part.add_row(*(each[row] for each in cells), style=kept.style, end_section=kept.end_section)
    return part


def _widths(needs: list[tuple[int, int]], room: int) -> list[int]:
    """Everybody the least; what is left goes to those who want more, the smallest wish first."""
    widths = [least for least, _ in needs]
    left = room - sum(widths)
    wishes = sorted((most - least, place) for place, (least, most) in enumerate(needs))
    for done, (wish, place) in enumerate(wishes):
        given = max(0, min(wish, left // (len(wishes) - done)))
        widths[place] += given
        left -= given
    return widths


def _texts(table: Table, to: Console) -> list[list[str]]:
    """What each column says, header first, without styles."""
    found = []
    for column in table.columns:
        cells = [column.header, *column.cells]
        found.append([_plain(cell, to) for cell in cells])
    return found


def _plain(cell: Any, to: Console) -> str:
    if isinstance(cell, str):
        return to.render_str(cell).plain
    return str(getattr(cell, "plain", cell))


def _needs(texts: list[str]) -> tuple[int, int]:
    """(the least, the most) cells that a column needs: its longest whole word, its longest line."""
    from rich.cells import cell_len

    header, *cells = texts
    words = [cell_len(word) for word in header.split()]
    for text in cells:
        for word in text.split():
            long = cell_len(word)
            words.append(long if _NUMBER.fullmatch(word) else min(long, LONGEST_WORD))
    lines = [cell_len(line) for text in texts for line in text.splitlines()]
    return max(words, default=1) or 1, max(lines, default=1) or 1


def _frame(table: Table) -> int:
    """Cells that a column takes beside its text: padding, and its border."""
    padding = table.padding
    return padding[1] + padding[3] + 1
