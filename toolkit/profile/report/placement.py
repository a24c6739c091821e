"""Experts on GPUs before and after: load by layer, and the traffic that crosses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.profile.report import heat
from toolkit.profile_folder.schema import PlacementResult, Profile
from toolkit.report import bars, html, svg
from toolkit.report.numbers import change, number, percent, quantity

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAMES = {
    "linear": "linear",
    "eplb": "EPLB (SGLang)",
    "gimbal": "Gimbal, Alg. 3",
    "milp": "Gimbal, MILP",
    "joint": "joint (ours)",
}
BOUNDS = (0.6, 0.75, 0.9, 1.1, 1.25, 1.5, 2.0)
MEANING = (
    "under 0.6", "0.6–0.75", "0.75–0.9", "0.9–1.1 × mean",
    "1.1–1.25", "1.25–1.5", "1.5–2", "over 2",
)  # fmt: skip


def section(profile: Profile, arrays: Mapping[str, NDArray[Any]]) -> str:
    import numpy as np

    title = "Placement of experts on GPUs"
    if not profile.placements:
        return html.section("s-placement", title, "No placements were fitted for this profile.")
    best = chosen(profile)
    load = _use(arrays)
    linear = np.broadcast_to(np.arange(load.shape[1]), load.shape)
    panels = [
        html.Panel(
            load_map(
                _gpu_load(load, slots, gpus), profile.model.layers, f"{NAMES[kind]} placement", key
            ),
            f"{when}: {NAMES[kind]}",
            wide=True,
        )
        for when, kind, slots, gpus, key in (
            ("Before", "linear", linear, best.gpus, "place-before"),
            ("After", best.kind, arrays[f"placement_{best.kind}"], best.gpus, "place-after"),
        )
    ]
    figure = html.figure(
        "placement",
        _takeaway(profile, best),
        panels,
        legend=heat.legend("d", MEANING, "GPU's load, against the layer's mean:"),
        reading="A row is a GPU, a column a MoE layer. Load counts the tokens of held-out "
        "requests, prefill and decode; copies of an expert are taken to share its tokens evenly.",
        hover=True,
    )
    return html.section("s-placement", title, "", figure, _compared(profile, best), _table(profile))


def chosen(profile: Profile) -> PlacementResult:
    """The placement with the shortest predicted step that is not the linear one, if there is."""
    others = [p for p in profile.placements if p.kind != "linear"] or list(profile.placements)
    return min(others, key=lambda p: p.step)


def _takeaway(profile: Profile, best: PlacementResult) -> str:
    base = next((p for p in profile.placements if p.kind == "linear"), None)
    if base is None or base is best:
        return (
            f"The {NAMES[best.kind]} placement loads the busiest GPU of a layer with "
            f"{number(best.balance)} times the mean; {percent(best.gpu_cut)} of token-hops cross "
            "GPUs."
        )
    return (
        f"The {NAMES[best.kind]} placement brings the busiest GPU of a layer from "
        f"{number(base.balance)} to {number(best.balance)} times the mean load and token-hops that "
        f"cross GPUs from {percent(base.gpu_cut)} to {percent(best.gpu_cut)}; the predicted step "
        f"time changes by {change(best.step, base.step)}."
    )


def _use(arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """[L, E] tokens of held-out requests (of all, where none was held out)."""
    import numpy as np

    rows = arrays["held_out"].astype(bool)
    rows = rows if rows.any() else ~rows
    total = arrays["prefill_counts"][rows].sum(0, dtype=np.int64)
    result: NDArray[Any] = total + arrays["decode_counts"][rows].sum(0, dtype=np.int64)
    return result


def _gpu_load(use: NDArray[Any], slots: NDArray[Any], gpus: int) -> NDArray[Any]:
    """[L, gpus]: each GPU's load over its layer's mean, from `slots` [L, P] of expert numbers."""
    import numpy as np

    layers, places = slots.shape
    owner = np.arange(places) * gpus // places
    result = np.zeros((layers, gpus))
    for layer in range(layers):
        copies = np.bincount(slots[layer], minlength=use.shape[1])
        share = use[layer] / np.maximum(copies, 1)
        result[layer] = np.bincount(owner, weights=share[slots[layer]], minlength=gpus)
    value: NDArray[Any] = result / np.maximum(result.mean(1, keepdims=True), 1e-12)
    return value


def load_map(
    load: NDArray[Any], numbers: Sequence[int], title: str, key: str, place: str = "GPU"
) -> str:
    """Loads over their layer's mean [L, places] of MoE layers with these `numbers`; `place` is what
    a row is."""
    import numpy as np

    layers, places = load.shape
    cell = (min(46.0, max(6.5, 400 / layers)), min(30.0, max(5.0, 300 / places)))
    left, top = 34.0, 20.0
    wide, high = layers * cell[0], places * cell[1]
    values = load.T
    parts = [
        heat.cells(
            np.digitize(values, BOUNDS), (left, top), cell, "d", meaning=MEANING,
            row=place, column="layer", columns=numbers,
        )
    ]  # fmt: skip
    if cell[0] >= 28 and cell[1] >= 13:
        for g in range(places):
            for i in range(layers):
                x, y = left + (i + 0.5) * cell[0], top + (g + 0.5) * cell[1] + 4
                level = int(np.digitize(values[g, i], BOUNDS))
                parts.append(svg.text(x, y, f"{values[g, i]:.2f}", f"in-cell d{level}t", "middle"))
    for g in heat.thinned(places, int(high // 13)):
        parts.append(svg.text(left - 6, top + (g + 0.5) * cell[1] + 3.5, str(g), "tick", "end"))
    for i in heat.thinned(layers, int(wide // 26)):
        x = left + (i + 0.5) * cell[0]
        parts.append(svg.text(x, top + high + 14, str(numbers[i]), "tick", "middle"))
    parts.append(svg.text(left - 6, 13, place, "name", "end"))
    parts.append(svg.text(left + wide / 2, top + high + 30, "layer", "name", "middle"))
    peak = load.max(1)
    words = (
        f"Busiest {place} over the mean: {number(float(peak.mean()))} on average over layers, at "
        f"worst {number(float(peak.max()))}."
    )
    name = f"{place} load, {title}"
    return svg.picture(left + wide + 8, top + high + 36, name, words, parts, key)


def _compared(profile: Profile, best: PlacementResult) -> str:
    metrics: tuple[tuple[str, Callable[[PlacementResult], float], Callable[[float], str]], ...] = (
        ("Load max / mean", lambda p: p.balance, number),
        ("Hops that cross GPUs", lambda p: p.gpu_cut, percent),
        ("Hops that cross nodes", lambda p: p.node_cut, percent),
        ("Predicted step, linear = 1", lambda p: p.step, number),
    )
    panels = []
    for i, (name, value, words) in enumerate(metrics):
        rows = [
            bars.Bar(NAMES[p.kind], value(p), words(value(p)), p is best)
            for p in profile.placements
        ]
        said = "; ".join(f"{b.name}: {b.words}" for b in rows)
        panels.append(html.Panel(bars.picture(rows, name, said, f"placed-{i}"), name))
    return html.figure(
        "placements",
        f"Of {len(profile.placements)} placements, {NAMES[best.kind]} has the shortest predicted "
        "step.",
        panels,
        reading="Judged on tokens that were not fitted. Shorter bars are better. A hop is a "
        "token's way from an expert of a layer to one of the next.",
    )


def _table(profile: Profile) -> str:
    heads = (
        "Placement", "GPUs", "GPUs a node", "Redundant", "Load max/mean", "worst layer",
        "Cross GPU", "Cross node", "GPUs a token", "Step", "Proved gap", "Fit time",
    )  # fmt: skip
    rows = [
        [
            NAMES[p.kind], str(p.gpus), str(p.gpus_per_node), str(p.redundant),
            number(p.balance), number(p.balance_max), percent(p.gpu_cut), percent(p.node_cut),
            number(p.fan_out), number(p.step), "–" if p.gap is None else f"{number(p.gap)} %",
            quantity(p.seconds, "s"),
        ]
        for p in profile.placements
    ]  # fmt: skip
    caption = "Placements, judged on tokens that were not fitted. Step: predicted, linear = 1."
    said = [f"{NAMES[p.kind]}: {p.note}" for p in profile.placements if p.note]
    notes = "".join(f"<li>{html.escape(words)}</li>" for words in said)
    table = html.table(caption, heads, rows)
    return table + (f'<ul class="small">{notes}</ul>' if notes else "")
