"""KV transfer between the roles: time against bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolkit.profile_folder.schema import Profile
from toolkit.report import html, svg
from toolkit.report.axes import Chart, around
from toolkit.report.numbers import number

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST = 1000  # points drawn


def section(profile: Profile, arrays: Mapping[str, NDArray[Any]]) -> str:
    t, title = profile.transfer, "KV transfer"
    if t is None:
        lead = "The workers passed no KV cache between roles, so no transfer was measured."
        return html.section("s-transfer", title, lead)
    rows = [
        ["Backend", t.backend],
        ["KV cache", f"{number(t.bytes_per_token)} bytes a token"],
        ["Latency", f"{number(t.latency_ms)} ms"],
        ["Bandwidth", f"{number(t.bandwidth_gb_s)} GB/s"],
        ["Median transfer", f"{number(t.median_ms)} ms"],
        ["Samples", f"{t.samples:,}"],
    ]
    table = html.table("KV from prefill to decode.", ("Figure", "Value"), rows, words=2)
    sent = arrays.get("transfers")
    if sent is None or len(sent) < 2:
        return html.section("s-transfer", title, "", table)
    figure = html.figure(
        "transfer",
        f"Half of the transfers take up to {number(t.median_ms)} ms: {number(t.latency_ms)} ms of "
        f"latency, then {number(t.bandwidth_gb_s)} GB/s.",
        [html.Panel(_picture(sent, t.latency_ms, t.bandwidth_gb_s))],
        reading="Each dot is one request's KV cache; the line is the fit, made from the smallest "
        "waves. Dark dots are of the smallest wave; pale ones moved with more others at once and "
        "waited for them.",
    )
    return html.section("s-transfer", title, "", f'<div class="beside">{figure}{table}</div>')


def _picture(sent: NDArray[Any], latency_ms: float, bandwidth_gb_s: float) -> str:
    import numpy as np

    rows = sent[np.unique(np.linspace(0, len(sent) - 1, MOST).astype(int))]
    mb, ms = rows[:, 1] / 1e6, rows[:, 2] * 1e3
    chart = Chart(460, 300, around(mb.tolist(), zero=True), around(ms.tolist(), zero=True))
    chart.axes("MB sent", "time, ms")
    if bandwidth_gb_s > 0:
        ends = [float(mb.min()), float(mb.max())]
        fitted = chart.points(ends, [latency_ms + x / bandwidth_gb_s for x in ends])
        chart.add(svg.polyline(fitted, "fit halo"), svg.polyline(fitted, "fit o6"))
    size = " few" if len(rows) < 200 else ""
    alone = rows[:, 3] <= rows[:, 3].min()
    for cls, part in (("o0", ~alone), ("o4", alone)):
        spots = chart.points(mb[part].tolist(), ms[part].tolist())
        chart.add(svg.dots(spots, cls + size))
    return chart.picture(
        "KV transfer time against size",
        f"{len(rows)} transfers of {number(float(mb.min()))} to {number(float(mb.max()))} MB.",
        "transfer-plot",
    )
