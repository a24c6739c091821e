"""Which experts fire: one heat map for prefill, one for decode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolkit.profile.report import heat
from toolkit.profile_folder.schema import Profile
from toolkit.report import html, svg
from toolkit.report.numbers import number, plural

if TYPE_CHECKING:
    from numpy.typing import NDArray

BOUNDS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
MEANING = ("never used", "under ¼", "¼–½", "½–¾", "¾–1", "1–1½", "1½–2", "2–3", "over 3 × mean")
_BAR = 64.0


def section(profile: Profile, arrays: Mapping[str, NDArray[Any]]) -> str:
    panels = [
        html.Panel(_map(profile, arrays[f"{phase}_counts"], phase), phase.capitalize(), full=True)
        for phase in ("prefill", "decode")
    ]
    figure = html.figure(
        "activations",
        _takeaway(profile),
        panels,
        legend=heat.legend("s", MEANING, "Tokens, against the layer's mean:"),
        reading="A row is a MoE layer, a column an expert by its logical number. Colours compare "
        "an expert with the mean of its layer. The bars at the right are each layer's imbalance: "
        "its busiest expert over its mean.",
        hover=True,
    )
    return html.section("s-activations", "Expert activations", "", figure, _table(profile))


def _takeaway(profile: Profile) -> str:
    a = profile.activations
    layers = profile.model.layers
    mean = sum(a.imbalance_decode) / max(1, len(layers))
    worst = max(range(len(layers)), key=lambda i: a.imbalance_decode[i])
    words = (
        f"In decode the busiest expert of a layer takes {number(mean)} times the mean load "
        f"(averaged over layers); layer {layers[worst]} is the least even with "
        f"{number(a.imbalance_decode[worst])}."
    )
    idle = sum(a.idle_decode)
    silent = f"{plural(idle, 'expert')} never fired in decode" if idle else "Every expert fired"
    return f"{words} {silent}{'.' if idle else ' at least once.'}"


def _map(profile: Profile, counts: NDArray[Any], phase: str) -> str:
    import numpy as np

    use = counts.sum(0, dtype=np.int64)
    layers, experts = use.shape
    share = use / np.maximum(use.mean(1, keepdims=True), 1e-12)
    levels = np.where(use == 0, 0, np.digitize(share, BOUNDS) + 1)
    cell = (min(26.0, max(3.6, 940 / experts)), min(22.0, max(6.0, 350 / layers)))
    left, top = 46.0, 20.0
    wide, high = experts * cell[0], layers * cell[1]
    parts = [
        heat.cells(
            levels, (left, top), cell, "s", meaning=MEANING, row="layer", column="expert",
            rows=profile.model.layers,
        )
    ]  # fmt: skip
    for i in heat.thinned(layers, int(high // 13)):
        y = top + (i + 0.5) * cell[1] + 3.5
        parts.append(svg.text(left - 6, y, str(profile.model.layers[i]), "tick", "end"))
    for i in heat.thinned(experts, int(wide // 34)):
        parts.append(
            svg.text(left + (i + 0.5) * cell[0], top + high + 14, str(i), "tick", "middle")
        )
    parts.append(svg.text(left - 6, 13, "layer", "name", "end"))
    parts.append(svg.text(left + wide / 2, top + high + 30, "expert", "name", "middle"))
    parts += _imbalance(share.max(1).tolist(), left + wide + 14, top, cell[1])
    title = f"Heat map of expert use in {phase}"
    description = (
        f"{layers} layers by {experts} experts; each cell compares an expert's tokens with its "
        "layer's mean."
    )
    size = (left + wide + 14 + _BAR + 34, top + high + 36)
    return svg.picture(*size, title, description, parts, f"heat-{phase}")


def _imbalance(values: list[float], x: float, top: float, height: float) -> list[str]:
    most = max(values) or 1.0
    parts = [svg.text(x, 13, "max / mean", "name")]
    thin = height < 11
    named = max(range(len(values)), key=values.__getitem__)
    for i, value in enumerate(values):
        y = top + i * height
        length = _BAR * value / most
        parts.append(svg.rect(x, y + 1, length, height - 2, "bar"))
        if not thin or i == named:
            middle = y + height / 2 + 3.5
            parts.append(svg.text(x + length + 5, middle, number(value, 2), "tick"))
    return parts


def _table(profile: Profile) -> str:
    a, layers = profile.activations, profile.model.layers
    rows = [
        [
            str(layers[i]),
            number(a.imbalance_prefill[i]),
            number(a.imbalance_decode[i]),
            str(a.idle_prefill[i]),
            str(a.idle_decode[i]),
            number(profile.correlation.by_layer[i]),
        ]
        for i in range(len(layers))
    ]
    heads = (
        "Layer",
        "Imbalance, prefill",
        "Imbalance, decode",
        "Idle experts, prefill",
        "Idle, decode",
        "Prefill–decode correlation",
    )
    return html.details(
        f"Table: load by layer ({plural(len(rows), 'layer')})",
        html.table("Load by layer. Imbalance is max / mean over experts.", heads, rows),
    )
