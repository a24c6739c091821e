"""Horizontal bars with their names at the left and their values at the right."""

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.report import svg

_LETTER = 7.4  # pixels; a little more than most fonts need at the page's 12 px


@dataclass(frozen=True)
class Bar:
    """`value` None draws no bar; `words` is what stands behind it."""

    name: str
    value: float | None
    words: str
    strong: bool = False


def picture(bars: Sequence[Bar], title: str, description: str, key: str) -> str:
    """Bars begin at zero; the columns of names and of words are as wide as their longest."""
    row, width = 26.0, 420.0
    names = 14 + _LETTER * max((len(b.name) for b in bars), default=0)
    words = 12 + _LETTER * max((len(b.words) for b in bars), default=0)
    most = max((b.value for b in bars if b.value is not None), default=0.0) or 1.0
    parts = [svg.line(names, 2, names, 6 + row * len(bars), "axis")]
    for i, bar in enumerate(bars):
        y = 4 + i * row
        weight = " strong" if bar.strong else ""
        parts.append(svg.text(names - 8, y + 16, bar.name, f"label{weight}", "end"))
        length = 0.0
        if bar.value is not None:
            length = max(0.0, bar.value) / most * (width - names - words)
            parts.append(svg.rect(names, y + 4, length, row - 9, f"bar{weight}"))
        parts.append(svg.text(names + length + 6, y + 16, bar.words, f"value{weight}"))
    return svg.picture(width, 8 + row * len(bars), title, description, parts, key)
