"""Changes with their intervals, one below the other on one scale."""

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.report import svg
from toolkit.report.axes import Scale

_WIDTH, _ROW, _SIDE, _TOP, _FOOT = 440.0, 42.0, 10.0, 6.0, 36.0


@dataclass(frozen=True)
class Interval:
    """`value` within `low` to `high`, percent; `words` stand at the right; `look` is one of
    LOOKS."""

    name: str
    value: float
    low: float
    high: float
    words: str
    look: int = 2


LOOKS = (("gain", "c2", 5), ("loss", "c1", 2), ("no difference seen", "c7", 0))
"""What it means, its colour and its marker, so that colour is never alone."""


def picture(rows: Sequence[Interval], title: str, description: str, key: str) -> str:
    """A row's name and words stand above its interval; the line without a change is drawn."""
    floor = _TOP + _ROW * len(rows)
    bounds = [0.0, *(row.low for row in rows), *(row.high for row in rows)]
    room = 0.06 * ((max(bounds) - min(bounds)) or 1.0)
    across = Scale(min(bounds) - room, max(bounds) + room, _SIDE, _WIDTH - _SIDE)
    parts = []
    for tick in across.ticks(5):
        x = across(tick)
        for number in range(len(rows)):  # beside the words above an interval, not through them
            at = _TOP + number * _ROW + 18
            parts.append(svg.line(x, at, x, at + 18, "axis" if tick == 0 else "grid"))
        label = f"{tick:+g}".replace("-", "−") if tick else "0"
        parts.append(svg.text(x, floor + 14, label, "tick", "middle"))
    for number, row in enumerate(rows):
        y = _TOP + number * _ROW
        _, colour, marker = LOOKS[row.look]
        parts.append(svg.text(0, y + 13, row.name, "label"))
        parts.append(svg.text(_WIDTH, y + 13, row.words, "value strong", "end"))
        at = y + 27
        parts.append(svg.line(across(row.low), at, across(row.high), at, f"line {colour}"))
        for end in (row.low, row.high):
            parts.append(svg.line(across(end), at - 4, across(end), at + 4, f"line {colour}"))
        parts.append(svg.marker(across(row.value), at, marker, f"mark {colour}", row.words))
    parts.append(svg.text(_WIDTH / 2, floor + 30, "change, percent", "name", "middle"))
    return svg.picture(_WIDTH, floor + _FOOT, title, description, parts, key)
