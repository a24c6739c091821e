"""How well signatures tell decode use, and what each layer of the mask adds."""

from toolkit.profile_folder.schema import Profile
from toolkit.report import bars, html, svg
from toolkit.report.axes import Chart, around
from toolkit.report.numbers import MISSING, number


def variants(profile: Profile) -> list[tuple[str, float | None]]:
    """Names and values of every rho, from the plainest signature to the one in use."""
    r = profile.rho
    return [
        ("raw counts", r.raw),
        ("binary", r.binary),
        ("counts × IDF", r.idf),
        ("with mask", r.idf_masked),
        ("mask, unseen", r.idf_masked_held_out),
    ]


def section(profile: Profile) -> str:
    r = profile.rho
    figure = html.figure(
        "rho",
        _takeaway(profile),
        [
            html.Panel(_curve(profile), "rho as layers are taken"),
            html.Panel(_variants(profile), "rho of each kind of signature"),
        ],
        reading="rho is Spearman's rank correlation, over pairs of requests, between the distance "
        "of their prefill signatures and that of their decode use: 1 means that signatures order "
        "pairs exactly as decode will. Layers are taken greedily, each time the one that raises "
        "rho most, until none does. “Unseen” is on requests that were held out.",
    )
    order = ", ".join(str(profile.model.layers[i]) for i in r.mask)
    kept = f"Layers in the order in which they were taken: {order}."
    return html.section(
        "s-rho", "Signatures and layer mask", "", figure, f'<p class="small">{kept}</p>'
    )


def _takeaway(profile: Profile) -> str:
    r, layers = profile.rho, len(profile.model.layers)
    kept = f"{len(r.mask)} of {layers} layers are kept"
    if r.idf_masked is None:
        return f"{kept}; rho is undefined here (requests too few or too alike)."
    words = f"{kept}, which gives rho = {number(r.idf_masked)}"
    if r.idf is not None:
        words += f" against {number(r.idf)} with all layers"
    if r.raw is not None:
        words += f" and {number(r.raw)} for raw counts"
    if r.idf_masked_held_out is not None:
        words += f"; on unseen requests it is {number(r.idf_masked_held_out)}"
    return words + "."


def _curve(profile: Profile) -> str:
    r = profile.rho
    values = list(r.curve)
    kept = len(r.mask)
    chart = Chart(
        460, 300, (1.0, max(2.0, float(len(values)))), around(values, room=0.12), right=18
    )
    step = max(1, -(-len(values) // 14))
    ticks = [
        (float(i + 1), str(profile.model.layers[r.mask[i]]) if i < kept else "next")
        for i in range(0, len(values), step)
    ]
    chart.axes("layer taken (by its number in the model)", "rho", x_ticks=ticks, x_grid=False)
    spots = chart.points([i + 1.0 for i in range(len(values))], values)
    chart.add(svg.polyline(spots[:kept], "line c0"))
    chart.add(svg.polyline(spots[kept - 1 :], "line c0 dash1"))
    if len(values) <= 30:
        chart.add(*(svg.circle(x, y, 3, "mark c0") for x, y in spots[:kept]))
    if kept:
        x, y = spots[kept - 1]
        side = "end" if x > chart.width * 0.6 else "start"
        chart.add(svg.circle(x, y, 5.5, "ring c0"))
        words = f"peak {number(values[kept - 1])} with {kept} layers"
        chart.add(svg.text(x + (0 if side == "end" else 8), y - 11, words, "label strong", side))
    return chart.picture(
        "rho after each layer of the greedy mask",
        f"It rises from {number(values[0]) if values else MISSING} to its peak with {kept} layers.",
        "rho-curve",
    )


def _variants(profile: Profile) -> str:
    rows = [
        bars.Bar(name, value, number(value) if value is not None else "undefined", i >= 3)
        for i, (name, value) in enumerate(variants(profile))
    ]
    words = "; ".join(f"{b.name}: {b.words}" for b in rows)
    return bars.picture(rows, "rho of each kind of signature", words, "rho-kinds")
