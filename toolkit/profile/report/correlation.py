"""Does prefill tell which experts decode will use? Every expert's share in both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolkit.profile.report import heat
from toolkit.profile_folder.schema import Profile
from toolkit.report import html, svg
from toolkit.report.axes import Chart, around
from toolkit.report.numbers import number

if TYPE_CHECKING:
    from numpy.typing import NDArray

SINGLE = 2500  # points that are drawn one by one; more are counted in squares
_SQUARES = 56
_BOUNDS = (1, 2, 4, 8, 16, 32)
_MEANING = ("none", "1", "2–3", "4–7", "8–15", "16–31", "32 or more")


def section(profile: Profile, arrays: Mapping[str, NDArray[Any]]) -> str:
    c = profile.correlation
    scatter, legend, note = _scatter(profile, arrays)
    layers = profile.model.layers
    weakest = min(range(len(layers)), key=lambda i: c.by_layer[i])
    takeaway = (
        f"Prefill predicts decode: an expert's use in the two phases correlates with "
        f"{number(c.model)} over the model (weakest in layer {layers[weakest]}, "
        f"{number(c.by_layer[weakest])}) and with {number(c.per_request_median)} in the median "
        "request."
        if c.model >= 0.5
        else f"Prefill says little about decode here: the two correlate with {number(c.model)} "
        f"over the model and with {number(c.per_request_median)} in the median request."
    )
    figure = html.figure(
        "correlation",
        takeaway,
        [html.Panel(scatter, "Use of each expert"), html.Panel(_by_layer(profile), "By layer")],
        legend=legend,
        reading="Use is an expert's share of its layer's tokens, times the number of experts: 1 is "
        f"an even share. On the diagonal both phases use an expert equally. {note} Correlations "
        "are Pearson's, of token counts. Of single requests, 10 % lie below "
        f"{number(c.per_request_p10)} and 10 % above {number(c.per_request_p90)}.",
        hover=bool(legend),
    )
    return html.section("s-correlation", "Prefill against decode", "", figure)


def _scatter(profile: Profile, arrays: Mapping[str, NDArray[Any]]) -> tuple[str, str, str]:
    """The picture, its legend (for squares) and a sentence on what it shows."""
    import numpy as np

    use = []
    for phase in ("prefill", "decode"):
        counts = arrays[f"{phase}_counts"].sum(0, dtype=np.int64)
        use.append(counts / np.maximum(counts.mean(1, keepdims=True), 1e-12))
    floor = min((float(x[x > 0].min()) for x in use if (x > 0).any()), default=0.1)
    low, high = floor / 1.6, max(float(x.max()) for x in use) * 1.25
    chart = Chart(
        460, 400, (low, max(high, low * 10)), (low, max(high, low * 10)), log=True, left=52
    )
    chart.axes("use in prefill (1 = even share)", "use in decode")
    corner = chart.points([low, high], [low, high])
    chart.add(svg.polyline(corner, "guide"))
    x, y = (np.maximum(u, low).ravel() for u in use)
    silent = int(((use[0] == 0) | (use[1] == 0)).sum())
    zero = f"{silent} (layer, expert) never used in one phase lie on the edge." if silent else ""
    legend, note = "", f"One dot is one expert of one layer. {zero}"
    if len(x) <= SINGLE:
        names = [
            f"layer {layer}, expert {e}"
            for layer in profile.model.layers
            for e in range(profile.model.experts)
        ]
        for name, (a, b), p, d in zip(names, chart.points(x, y), x, y, strict=True):
            tip = f"{name}: prefill {number(p, 2)}, decode {number(d, 2)}"
            chart.add(svg.circle(a, b, 3, "dot c0", tip))
    else:
        legend = heat.legend("q", _MEANING, "Experts in a square:")
        note = f"{len(x):,} experts are counted in squares of equal ratio. {zero}"
        chart.add(_squares(chart, x, y))
    words = f"Both axes are logarithmic, from {number(low, 2)} to {number(high, 2)}. {note}"
    return (
        chart.picture("Prefill against decode use of every expert", words, "scatter"),
        legend,
        note,
    )


def _squares(chart: Chart, x: NDArray[Any], y: NDArray[Any]) -> str:
    import numpy as np

    edges = np.geomspace(chart.x[0], chart.x[1], _SQUARES + 1)
    counts, _, _ = np.histogram2d(y, x, bins=[edges, edges])
    levels = np.digitize(counts[::-1], _BOUNDS)
    width = (chart.width - chart.left - chart.right) / _SQUARES
    height = (chart.height - chart.top - chart.bottom) / _SQUARES
    middles = [number(float(x), 2) for x in np.sqrt(edges[:-1] * edges[1:])]
    return heat.cells(
        levels, (chart.left, chart.top), (width, height), "q", meaning=_MEANING,
        row="use in decode about", column="in prefill about",
        rows=middles[::-1], columns=middles,
    )  # fmt: skip


def _by_layer(profile: Profile) -> str:
    values = profile.correlation.by_layer
    layers = profile.model.layers
    many = len(values) > 24
    low, high = around(values, room=0.15)
    # Never so fine a scale that noise looks like structure.
    span = (min(low, high - 0.2), high) if many else (min(0.0, *values), 1.08)
    chart = Chart(460, 400, (-0.5, len(values) - 0.5), span)
    step = max(1, -(-len(values) // 12))
    ticks = [(float(i), str(layers[i])) for i in range(0, len(values), step)]
    chart.axes("layer", "correlation of prefill and decode", x_ticks=ticks, x_grid=False)
    if many:
        spots = chart.points(range(len(values)), values)
        chart.add(svg.polyline(spots, "line c0"))
    ground = chart.up(0.0)
    wide = min(26.0, 0.7 * (chart.across(1) - chart.across(0)))
    for i, value in enumerate(values):
        x, y = chart.across(i), chart.up(value)
        tip = f"layer {layers[i]}: {number(value)}"
        if many:
            chart.add(svg.circle(x, y, 2.5, "mark c0", tip))
            continue
        chart.add(svg.rect(x - wide / 2, min(y, ground), wide, abs(ground - y), "bar", tip))
        if len(values) <= 12:
            chart.add(svg.text(x, min(y, ground) - 4, number(value, 2), "tick", "middle"))
    return chart.picture(
        "Correlation of prefill and decode use, by layer",
        f"From {number(min(values))} to {number(max(values))} over {len(values)} layers.",
        "correlation-layers",
    )
