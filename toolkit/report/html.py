"""Pieces of the page: sections, figures, tables."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape as _escape

_UNIT = re.compile(r"(\d) (%|s|ms|µs|ns|ps|GB/s)(?![\w])")


def escape(words: str) -> str:
    """Text for HTML; a number stays on one line with its percent sign or unit of time."""
    return _UNIT.sub("\\1\u00a0\\2", _escape(words))


@dataclass(frozen=True)
class Panel:
    """One picture of a figure. A `wide` one scrolls in its own frame on narrow screens, a `full`
    one also has the page's whole width."""

    svg: str
    heading: str = ""
    wide: bool = False
    full: bool = False


def figure(
    key: str,
    takeaway: str,
    panels: Sequence[Panel],
    *,
    legend: str = "",
    reading: str = "",
    hover: bool = False,
) -> str:
    """Takeaway above, pictures, then how to read them. `hover`: with a line for the read-out."""
    drawn = "".join(_panel(panel) for panel in panels)
    return raw_figure(key, takeaway, drawn, reading, legend=legend, hover=hover)


def raw_figure(
    key: str, takeaway: str, panels: str, reading: str, *, legend: str = "", hover: bool = False
) -> str:
    """The same, of panels that are HTML already."""
    hint = '<p class="readout" hidden></p>' if hover else ""
    note = f'<p class="reading">{escape(reading)}</p>' if reading else ""
    return (
        f'<figure id="{key}"><p class="takeaway">{escape(takeaway)}</p>{legend}'
        f'<div class="panels">{panels}</div>{hint}<figcaption>{note}</figcaption></figure>'
    )


def _panel(panel: Panel) -> str:
    heading = f'<p class="panel-heading">{escape(panel.heading)}</p>' if panel.heading else ""
    frame = f'<div class="frame">{panel.svg}</div>'
    scrolls = panel.wide or panel.full
    if scrolls:
        label = escape(panel.heading or "picture")
        frame = (
            f'<div class="frame scroll" tabindex="0" role="region" aria-label="{label}">'
            f"{panel.svg}</div>"
        )
    kind = " wide full" if panel.full else " wide" if panel.wide else ""
    return f'<div class="panel{kind}">{heading}{frame}</div>'


def table(
    caption: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    words: int = 1,
    cls: str = "",
) -> str:
    """The first `words` columns hold words, the others numbers (set right)."""
    head = "".join(
        f'<th scope="col"{"" if i < words else " class=n"}>{escape(h)}</th>'
        for i, h in enumerate(headings)
    )
    top = f"<thead><tr>{head}</tr></thead>" if any(headings) else ""
    body = "".join(
        "<tr>" + "".join(_cell(x, i, words) for i, x in enumerate(r)) + "</tr>" for r in rows
    )
    label = f'role="region" aria-label="{escape(caption)}"'
    return (
        f'<div class="table scroll {cls}" tabindex="0" {label}>'
        f"<table><caption>{escape(caption)}</caption>{top}"
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(content: str, column: int, words: int) -> str:
    if column == 0:
        return f'<th scope="row">{escape(content)}</th>'
    return f"<td{'' if column < words else ' class=n'}>{escape(content)}</td>"


def details(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def section(key: str, title: str, lead: str, *content: str) -> str:
    intro = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    heading = f'<h2 id="{key}-h">{escape(title)}</h2>'
    start = f'<section id="{key}" aria-labelledby="{key}-h">'
    return f"{start}{heading}{intro}{''.join(content)}</section>"


def legend(items: Sequence[tuple[str, str]]) -> str:
    """(svg class and sign, words) pairs as a list of keys; the sign is drawn inline."""
    rows = "".join(f"<li>{sign}{escape(words)}</li>" for sign, words in items)
    return f'<ul class="legend">{rows}</ul>'


def sign(cls: str, path: str) -> str:
    """A small inline picture of a marker for a legend."""
    return (
        f'<svg class="sign" viewBox="-6 -6 12 12" aria-hidden="true">'
        f'<path class="{cls}" d="{path}"/></svg>'
    )
