"""Pieces of SVG as text. Colours, fonts and stroke widths come from the page's CSS classes."""

from collections.abc import Iterable
from html import escape


def at(value: float) -> str:
    """A coordinate with one decimal and no needless zeros."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def picture(
    width: float, height: float, title: str, description: str, parts: Iterable[str], key: str
) -> str:
    """A whole <svg> with an accessible name and description; `key` is unique on the page."""
    return (
        f'<svg viewBox="0 0 {at(width)} {at(height)}" style="--w:{at(width)}px" role="img" '
        f'aria-labelledby="{key}-t {key}-d"><title id="{key}-t">{escape(title)}</title>'
        f'<desc id="{key}-d">{escape(description)}</desc>{"".join(parts)}</svg>'
    )


def text(x: float, y: float, words: str, cls: str = "", anchor: str = "", more: str = "") -> str:
    """`anchor` is "middle" or "end"; `more` are further attributes, with a leading space."""
    attributes = f' class="{cls}"' if cls else ""
    attributes += f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{at(x)}" y="{at(y)}"{attributes}{more}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, cls: str) -> str:
    return f'<path class="{cls}" d="M{at(x1)} {at(y1)}L{at(x2)} {at(y2)}"/>'


def polyline(points: Iterable[tuple[float, float]], cls: str) -> str:
    steps = "L".join(f"{at(x)} {at(y)}" for x, y in points)
    return f'<path class="{cls}" d="M{steps}"/>' if steps else ""


def rect(x: float, y: float, width: float, height: float, cls: str, tip: str = "") -> str:
    size = f'width="{at(max(0, width))}" height="{at(max(0, height))}"'
    return f'<rect class="{cls}" x="{at(x)}" y="{at(y)}" {size}{_close(tip, "rect")}'


def circle(x: float, y: float, radius: float, cls: str, tip: str = "") -> str:
    return (
        f'<circle class="{cls}" cx="{at(x)}" cy="{at(y)}" r="{at(radius)}"{_close(tip, "circle")}'
    )


def dots(points: Iterable[tuple[float, float]], cls: str) -> str:
    """Many round points as one short element; their size is the class's stroke width."""
    steps = "".join(f"M{at(x)} {at(y)}h0" for x, y in points)
    return f'<path class="dots {cls}" d="{steps}"/>' if steps else ""


def marker(x: float, y: float, shape: int, cls: str, tip: str = "") -> str:
    """A sign of about 8 px; `shape` counts through MARKERS, so that colour is never alone."""
    place = f'transform="translate({at(x)} {at(y)})"'
    return f'<path class="{cls}" {place} d="{MARKERS[shape % len(MARKERS)]}"{_close(tip, "path")}'


def _close(tip: str, name: str) -> str:
    return f"><title>{escape(tip)}</title></{name}>" if tip else "/>"


MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",  # circle
    "M-3.5-3.5h7v7h-7z",  # square
    "M0-4.6 4.4 3.4h-8.8z",  # triangle
    "M0-5 4.4 0 0 5-4.4 0z",  # diamond
    "M-1.5-4.6h3v3.1h3.1v3H1.5v3.1h-3V1.5h-3.1v-3h3.1z",  # plus
    "M0 4.6 4.4-3.4h-8.8z",  # triangle, point down
    "M-4.3-2.2-2.2-4.3 0-2.1 2.2-4.3 4.3-2.2 2.1 0 4.3 2.2 2.2 4.3 0 2.1-2.2 4.3-4.3 2.2-2.1 0z",
    "M-5-1.7H5v3.4H-5z",  # bar
)


def spread(labels: Iterable[tuple[float, str, str]], x: float, room: float = 13) -> list[str]:
    """(y, words, class) labels at `x`, pushed apart so that none covers another."""
    placed: list[tuple[float, str, str]] = []
    for y, words, cls in sorted(labels):
        low = placed[-1][0] + room if placed else y
        placed.append((max(y, low), words, cls))
    return [text(x, y + 3.5, words, cls) for y, words, cls in placed]
