"""Scales and the frame of a chart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from toolkit.report import svg


@dataclass(frozen=True)
class Scale:
    """Maps values of [low, high] to pixels of [start, end]; `log` by their logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self._shape(self.low), self._shape(self.high)
        share = (self._shape(value) - low) / ((high - low) or 1.0)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def _shape(self, value: float) -> float:
        return math.log10(max(value, 1e-12)) if self.log else value

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round values inside, about `wanted` of them."""
        if self.log:
            return self._log_ticks(wanted)
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        rough = span / wanted
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [0.0 if i == 0 else round(i * step, 12) for i in range(first, last + 1)]

    def _log_ticks(self, wanted: int) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            found = [
                d * 10.0**e for e in decades for d in digits if self.low <= d * 10.0**e <= self.high
            ]
            if len(found) <= wanted + 2:
                return found
        return found[:: -(-len(found) // wanted)]


def around(
    values: Sequence[float], *, zero: bool = False, room: float = 0.05
) -> tuple[float, float]:
    """A range that holds all values with some room; from zero on with `zero`."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    span = (high - low) or abs(high) or 1.0
    return (0.0 if zero else low - room * span), high + room * span


def _tick(value: float) -> str:
    return f"{value:,.6g}"


@dataclass
class Chart:
    """A frame with two axes; parts are drawn in the order in which they are added."""

    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]
    left: float = 48
    right: float = 14
    top: float = 26
    bottom: float = 42
    log: bool = False
    """Both axes by their logarithm."""
    parts: list[str] = field(default_factory=list)

    @property
    def across(self) -> Scale:
        return Scale(*self.x, self.left, self.width - self.right, self.log)

    @property
    def up(self) -> Scale:
        return Scale(*self.y, self.height - self.bottom, self.top, self.log)

    def add(self, *parts: str) -> None:
        self.parts.extend(parts)

    def axes(
        self,
        x_label: str,
        y_label: str,
        *,
        x_ticks: Sequence[tuple[float, str]] | None = None,
        x_grid: bool = True,
    ) -> None:
        """Grid lines, tick labels and the axes' names (y's stands above its axis, to be read)."""
        across, up = self.across, self.up
        floor, end = self.height - self.bottom, self.width - self.right
        for value in up.ticks(5):
            y = up(value)
            self.add(svg.line(self.left, y, end, y, "grid"))
            self.add(svg.text(self.left - 6, y + 3.5, _tick(value), "tick", "end"))
        ticks = [(v, _tick(v)) for v in across.ticks(5)] if x_ticks is None else x_ticks
        for value, label in ticks:
            x = across(value)
            if x_grid:
                self.add(svg.line(x, self.top, x, floor, "grid"))
            self.add(svg.text(x, floor + 15, label, "tick", "middle"))
        self.add(svg.line(self.left, floor, end, floor, "axis"))
        self.add(svg.text((self.left + end) / 2, self.height - 7, x_label, "name", "middle"))
        self.add(svg.text(2, 13, y_label, "name"))

    def points(self, xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
        across, up = self.across, self.up
        return [(across(x), up(y)) for x, y in zip(xs, ys, strict=True)]

    def picture(self, title: str, description: str, key: str) -> str:
        return svg.picture(self.width, self.height, title, description, self.parts, key)
