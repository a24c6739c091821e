"""Which expert follows which: the strongest pairs of neighbouring layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolkit.profile.report import links
from toolkit.profile_folder.schema import Profile
from toolkit.report import html, svg
from toolkit.report.axes import Chart, around
from toolkit.report.numbers import number, percent

if TYPE_CHECKING:
    from numpy.typing import NDArray

WHOLE = 10  # layers up to which the graph shows every gap in one picture
SHOWN = 20  # pairs a gap


def section(profile: Profile, arrays: Mapping[str, NDArray[Any]]) -> str:
    title = "Affinity of neighbouring layers"
    if len(profile.model.layers) < 2:
        return html.section("s-affinity", title, "The model has one MoE layer: there are no pairs.")
    phase = "decode" if arrays["affinity_decode"].any() else "prefill"
    pairs = arrays[f"affinity_{phase}"]
    strength = _top_share(pairs)
    panels, scope = _graphs(profile, pairs, strength)
    figure = html.figure(
        "affinity",
        _takeaway(profile),
        [*panels, html.Panel(_by_gap(profile, arrays), "Share of the strongest 1 % of pairs")],
        legend=html.legend(
            [
                (html.sign(f"link k{i}", "M-6 3C-2 3 2-3 6-3"), words)
                for i, words in enumerate(("up to 2 × chance", "2–4 ×", "over 4 ×"))
            ]
        ),
        reading=f"A link joins expert j of a layer to expert k of the next one; its width is the "
        f"share of {phase} traffic between the two layers (tokens that used both). Shown are the "
        f"{SHOWN} pairs that exceed chance by most tokens{scope}; chance is what independent "
        "layers with the same loads would give. Widths compare within a picture. Experts without "
        "such a pair are left out, and the "
        "others are ordered so that links cross little.",
    )
    return html.section("s-affinity", title, "", figure)


def _takeaway(profile: Profile) -> str:
    a = profile.affinity
    times = a.top1_decode / a.top1_independent if a.top1_independent else 0.0
    return (
        f"The strongest 1 % of expert pairs carry {percent(a.top1_decode)} of the decode traffic "
        f"between neighbouring layers, {number(times, 2)} times what independent layers would "
        f"give; the strongest 10 % carry {percent(a.top10_decode)}."
    )


def _graphs(
    profile: Profile, pairs: NDArray[Any], strength: NDArray[Any]
) -> tuple[list[html.Panel], str]:
    """The panels, and the words on which gaps they show."""
    import numpy as np

    layers = profile.model.layers
    if len(layers) <= WHOLE:
        drawn = links.picture(pairs, layers, SHOWN, "graph")
        return [html.Panel(drawn, "Strongest pairs, all layers", full=True)], " in each gap"
    order = np.argsort(-strength, kind="stable")
    chosen = [("Strongest", order[0]), ("Middle", order[len(order) // 2]), ("Weakest", order[-1])]
    panels = [
        html.Panel(
            links.picture(pairs[i : i + 1], layers[i : i + 2], SHOWN, f"graph-{word.lower()}"),
            f"{word} gap: layers {layers[i]} and {layers[i + 1]}",
        )
        for word, i in chosen
    ]
    return panels, f" in three of the {len(order)} gaps"


def _top_share(pairs: NDArray[Any], part: float = 0.01) -> NDArray[Any]:
    """[L-1]: share of the traffic that the strongest `part` of the pairs carries."""
    import numpy as np

    flat = pairs.reshape(len(pairs), -1).astype(np.float64)
    top = max(1, round(part * flat.shape[1]))
    carried = np.partition(flat, flat.shape[1] - top, axis=1)[:, -top:].sum(1)
    result: NDArray[Any] = carried / np.maximum(flat.sum(1), 1e-12)
    return result


def _by_gap(profile: Profile, arrays: Mapping[str, NDArray[Any]]) -> str:
    import numpy as np

    decode, prefill = arrays["affinity_decode"], arrays["affinity_prefill"]
    loads = prefill.sum(2, dtype=np.float64)[:, :, None] * prefill.sum(1)[:, None, :]
    lines = {
        "decode": 100 * _top_share(decode),
        "prefill": 100 * _top_share(prefill),
        "independent": 100 * _top_share(loads),
    }
    gaps = len(decode)
    every = np.concatenate(list(lines.values())).tolist()
    chart = Chart(460, 280, (0.0, max(1.0, gaps - 1.0)), around(every, zero=True), right=92)
    layers = profile.model.layers
    step = max(1, -(-gaps // 6))
    ticks = [(float(i), f"{layers[i]}–{layers[i + 1]}") for i in range(0, gaps, step)]
    chart.axes("between layers", "% of traffic", x_ticks=ticks, x_grid=False)
    ends = []
    for i, (name, values) in enumerate(lines.items()):
        spots = chart.points(range(gaps), values.tolist())
        chart.add(svg.polyline(spots, f"line c{i} dash{i}"))
        if gaps <= WHOLE:
            chart.add(*(svg.marker(x, y, i, f"mark c{i}") for x, y in spots))
        ends.append((spots[-1][1], name, f"label c{i}t"))
    chart.add(*svg.spread(ends, chart.width - chart.right + 7))
    return chart.picture(
        "Share of traffic of the strongest 1 % of pairs, by layer gap",
        "Lines for decode, prefill and what independent layers with the same loads would give.",
        "affinity-gap",
    )
