"""Heat maps: cells of one colour level are one path, so that 60,000 cells stay small."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from toolkit.report import svg

if TYPE_CHECKING:
    from numpy.typing import NDArray

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def cells(
    levels: NDArray[Any],
    place: tuple[float, float],
    size: tuple[float, float],
    palette: str,
    *,
    meaning: Sequence[str],
    row: str,
    column: str,
    rows: Sequence[object] | None = None,
    columns: Sequence[object] | None = None,
) -> str:
    """`levels` [R, C] (0 .. len(meaning) - 1) drawn at `place` with cells of `size` pixels.

    Level i has the class `palette` + i. `meaning` names each level, `row` and `column` say what
    the axes count (and `rows` and `columns` the number or name of each), for the read-out under
    the pointer.
    """
    count, width = levels.shape
    numbered = [
        escape(",".join(str(x) for x in (given if given is not None else range(size))))
        for given, size in ((rows, count), (columns, width))
    ]
    flat = "".join(DIGITS[int(x)] for x in levels.ravel())
    attributes = (
        f'data-heat="{flat}" data-rows="{numbered[0]}" data-cols="{numbered[1]}" '
        f'data-row="{escape(row)}" data-col="{escape(column)}" '
        f'data-mean="{escape("|".join(meaning))}"'
    )
    paths = "".join(
        f'<path class="{palette}{level}" d="{_runs(levels == level)}"/>'
        for level in range(len(meaning))
        if (levels == level).any()
    )
    x, y = place
    scale = f"{size[0]:.4g} {size[1]:.4g}"
    body = (
        f'<g class="heat" transform="translate({svg.at(x)} {svg.at(y)}) scale({scale})" '
        f"{attributes}>{paths}</g>"
    )
    return body + (_gaps(count, width, place, size) if min(size) >= 7 else "")


def _runs(mask: NDArray[Any]) -> str:
    """Neighbouring cells of one row as one rectangle each, in cell coordinates."""
    import numpy as np

    steps = []
    for y, row in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], row.astype(np.int8), [0]))))
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            steps.append(f"M{start} {y}h{end - start}v1h{start - end}z")
    return "".join(steps)


def _gaps(rows: int, columns: int, place: tuple[float, float], size: tuple[float, float]) -> str:
    """Thin lines of the ground colour between large cells."""
    (x, y), (w, h) = place, size
    steps = [f"M{svg.at(x + i * w)} {svg.at(y)}v{svg.at(rows * h)}" for i in range(1, columns)]
    steps += [f"M{svg.at(x)} {svg.at(y + i * h)}h{svg.at(columns * w)}" for i in range(1, rows)]
    return f'<path class="gap" d="{"".join(steps)}"/>'


def legend(palette: str, meaning: Sequence[str], title: str) -> str:
    """A row of swatches with their meaning, as HTML."""
    items = "".join(
        f'<li><span class="swatch {palette}{i}"></span>{escape(words)}</li>'
        for i, words in enumerate(meaning)
    )
    return f'<ul class="legend"><li class="legend-title">{escape(title)}</li>{items}</ul>'


def thinned(count: int, most: int) -> list[int]:
    """Row or column numbers to label: at most `most`, evenly spaced, the first included."""
    step = -(-count // most)
    for nice in (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64):
        if nice >= step:
            return list(range(0, count, nice))
    return list(range(0, count, step))
