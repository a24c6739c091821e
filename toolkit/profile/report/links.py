"""Experts in columns, one a layer, with links between the columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toolkit.report import svg

if TYPE_CHECKING:
    from numpy.typing import NDArray

Link = tuple[int, int, float, float]
"""Expert j, expert k, share of the gap's traffic, times what chance would give."""

_SWEEPS = 8


def picture(pairs: NDArray[Any], layers: Sequence[int], shown: int, key: str) -> str:
    """`pairs` [G, E, E] between G + 1 layers; the `shown` strongest of each gap are drawn."""
    found = [_strongest(gap, shown) for gap in pairs]
    columns = _ordered(found)
    row, left, top = 15.0, 26.0, 34.0
    gap = 190.0 if len(found) > 1 else 290.0
    width = left * 2 + gap * len(found)
    height = top + row * max(len(c) for c in columns) + 6
    spots: list[dict[int, float]] = []
    parts = []
    for i, column in enumerate(columns):
        pitch = (height - top - 6) / max(1, len(column))
        spots.append({expert: top + (n + 0.5) * pitch for n, expert in enumerate(column)})
        x = left + i * gap
        parts.append(svg.text(x, 14, f"layer {layers[i]}", "name", _anchor(i, len(found))))
    widest = max((link[2] for links in found for link in links), default=1.0)
    for i, gap_links in enumerate(found):
        start, end = left + i * gap + 13, left + (i + 1) * gap - 13
        for j, k, share, lift in sorted(gap_links, key=lambda x: x[2]):
            parts.append(
                _curve(start, spots[i][j], end, spots[i + 1][k], share, widest, lift, (j, k))
            )
    for i, placed in enumerate(spots):
        x = left + i * gap
        for expert, y in placed.items():
            parts.append(svg.rect(x - 13, y - 6.5, 26, 13, "node"))
            parts.append(svg.text(x, y + 3.6, str(expert), "tick", "middle"))
    names = f"layers {layers[0]} to {layers[-1]}"
    strongest = max((link for links in found for link in links), key=lambda x: x[2])
    description = (
        f"Links between experts of neighbouring layers, {names}. The widest joins expert "
        f"{strongest[0]} to expert {strongest[1]} with {100 * strongest[2]:.2f} % of the traffic."
    )
    return svg.picture(width, height, f"Strongest expert pairs, {names}", description, parts, key)


def _anchor(column: int, last: int) -> str:
    # Outer names are wider than the margin.
    return "middle" if 0 < column < last else "end" if column == last else "start"


def _strongest(pairs: NDArray[Any], shown: int) -> list[Link]:
    """The pairs [E, E] that exceed chance by most tokens."""
    import numpy as np

    total = max(1.0, float(pairs.sum()))
    chance = pairs.sum(1, dtype=np.float64)[:, None] * pairs.sum(0, dtype=np.float64)[None] / total
    excess = (pairs - chance).ravel()
    order = np.argsort(-excess, kind="stable")[: min(shown, excess.size)]
    rows, columns = np.unravel_index(order, pairs.shape)
    return [
        (int(j), int(k), float(pairs[j, k]) / total, float(pairs[j, k] / max(chance[j, k], 1e-9)))
        for j, k in zip(rows, columns, strict=True)
    ]


def _ordered(found: Sequence[Sequence[Link]]) -> list[list[int]]:
    """Experts of each column, by the mean place of their partners, so that links cross little."""
    used = [{j for j, *_ in found[0]}]
    used += [
        {k for _, k, *_ in a} | {j for j, *_ in b}
        for a, b in zip(found, [*found[1:], []], strict=True)
    ]
    places = [{e: n / max(1, len(c)) for n, e in enumerate(sorted(c))} for c in used]
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        columns = range(len(places)) if forward else range(len(places) - 1, -1, -1)
        for i in columns:
            pull: dict[int, list[tuple[float, float]]] = {e: [] for e in places[i]}
            if i > 0:
                for j, k, share, _ in found[i - 1]:
                    pull[k].append((places[i - 1][j], share))
            if i < len(found):
                for j, k, share, _ in found[i]:
                    pull[j].append((places[i + 1][k], share))
            mean = {
                e: sum(p * w for p, w in x) / (sum(w for _, w in x) or 1) for e, x in pull.items()
            }
            order = sorted(places[i], key=lambda e: (mean[e], e))
            places[i] = {e: (n + 0.5) / len(order) for n, e in enumerate(order)}
    return [sorted(p, key=p.__getitem__) for p in places]


def _curve(
    x1: float, y1: float, x2: float, y2: float, share: float, widest: float, lift: float,
    experts: tuple[int, int],
) -> str:  # fmt: skip
    kind = 0 if lift <= 2 else 1 if lift <= 4 else 2
    thick = 0.8 + 5.2 * share / (widest or 1.0)
    middle = (x1 + x2) / 2
    corners = ((x1, y1), (middle, y1), (middle, y2), (x2, y2))
    start, *others = (f"{svg.at(x)} {svg.at(y)}" for x, y in corners)
    path = f"M{start}C{' '.join(others)}"
    tip = (
        f"expert {experts[0]} to {experts[1]}: {100 * share:.2f} % of traffic, {lift:.1f} x chance"
    )
    return (
        f'<path class="link k{kind}" style="stroke-width:{svg.at(thick)}px" d="{path}">'
        f"<title>{tip}</title></path>"
    )
