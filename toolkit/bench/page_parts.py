"""What both kinds of page are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from toolkit.report import html

if TYPE_CHECKING:
    from rich.table import Table


class PageSection(NamedTuple):
    """Its key, its title, its HTML."""

    key: str
    title: str
    content: str

    @classmethod
    def of(cls, key: str, title: str, lead: str, *content: str) -> PageSection:
        return cls(key, title, html.section(key, title, lead, *content))


def table_of(table: Table, cls: str = "") -> str:
    """A terminal's table as the page's."""
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    rows = list(zip(*columns, strict=True))
    heads = [str(column.header) for column in table.columns]
    return html.table(str(table.title or ""), heads, rows, cls=cls)
