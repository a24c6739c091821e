"""The sections of a sweep's page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolkit.bench.page_parts import PageSection, table_of
from toolkit.bench.repeats import sweep_lines, sweep_table
from toolkit.report import html, svg
from toolkit.report.axes import Chart
from toolkit.report.numbers import number

if TYPE_CHECKING:
    from toolkit.bench.stats import Ratio
    from toolkit.bench.swept import Curve, Point, Swept

AS_IT_IS = "the router as it is"


def keys(swept: Swept) -> list[tuple[str, str, str]]:
    """The knee of each policy."""
    return [
        (
            "Goodput knee, not certain" if curve.doubt else "Goodput knee",
            _knee(curve),
            f"requests a second, {curve.name or AS_IT_IS}",
        )
        for curve in swept.curves
    ]


def _knee(curve: Curve) -> str:
    low, high = curve.search.bracket
    if low == 0:
        return f"under {high:g}"
    return f"{low:g} or more" if high == math.inf else f"{low:g}"


def sections(swept: Swept) -> Iterator[PageSection]:
    words = "".join(f"<li>{html.escape(line)}</li>" for line in sweep_lines(swept))
    listed = f'<ul class="said">{words}</ul>'
    yield PageSection.of("b-knee", "The goodput knee", "", _figure(swept), listed)
    tables = (table_of(sweep_table(curve), "lines") for curve in swept.curves)
    yield PageSection.of("b-figures", "All figures", "", *tables)


def _figure(swept: Swept) -> str:
    share = f"{100 * swept.asked.attainment:g} %"
    names = [curve.name or AS_IT_IS for curve in swept.curves]
    signs = [
        (html.sign(f"c{n % 8}", svg.MARKERS[n % len(svg.MARKERS)]), name)
        for n, name in enumerate(names)
    ]
    panels = [
        html.Panel(_chart(swept, "goodput", 1.0, "requests a second within the SLO"), "Goodput"),
        html.Panel(
            _chart(swept, "goodput_fraction", 100.0, "percent of requests"), "Within the SLO"
        ),
        html.Panel(_chart(swept, "p99_ttft_ms", 1.0, "milliseconds"), "TTFT, p99"),
        html.Panel(_chart(swept, "p99_tpot_ms", 1.0, "milliseconds"), "TPOT, p99"),
    ]
    return html.figure(
        "sweep",
        f"Up to its knee a policy serves {share} of its requests within the SLO.",
        panels,
        legend=html.legend(signs) if len(names) > 1 else "",
        reading=f"Means of {swept.asked.runs} runs; bars are 95 % intervals over them. Dashed: the "
        "knee of each policy, and the share that is asked for.",
    )


def _chart(swept: Swept, key: str, times: float, unit: str) -> str:
    rates = [point.rate for curve in swept.curves for point in curve.points]
    highest = max(
        times * each.value
        for curve in swept.curves
        for point in curve.points
        if (each := point.figure(key)) is not None
    )
    ends = [
        times * each.high
        for curve in swept.curves
        for point in curve.points
        if (each := point.figure(key)) is not None and not math.isnan(each.high)
    ]
    # An interval of three runs may be very long: it shall not hide the curve.
    top = 100.0 if times == 100.0 else min(max([highest, *ends]), 1.6 * highest)
    chart = Chart(460, 250, (0.0, 1.05 * max(rates)), (0.0, 1.04 * (top or 1.0)), left=62)
    chart.axes("requests a second", unit)
    floor, left, right = chart.height - chart.bottom, chart.left, chart.width - chart.right
    if times == 100.0:
        y = chart.up(100 * swept.asked.attainment)
        chart.add(svg.line(left, y, right, y, "guide"))
    for number_, curve in enumerate(swept.curves):
        if curve.knee is not None:
            x = chart.across(curve.knee)
            chart.add(svg.line(x, chart.top, x, floor, f"line thin dash1 c{number_ % 8}"))
    for number_, curve in enumerate(swept.curves):
        chart.add(*_curve(chart, curve, number_, key, times))
    name = f"{unit} against the request rate"
    words = "; ".join(
        f"{curve.name or AS_IT_IS}: "
        + ", ".join(
            f"{number(times * each.value)} at {point.rate:g}"
            for point in curve.points
            if (each := point.figure(key)) is not None
        )
        for curve in swept.curves
    )
    return chart.picture(name.capitalize(), words, f"sweep-{key.replace('_', '-')}")


def _curve(chart: Chart, curve: Curve, index: int, key: str, times: float) -> list[str]:
    cls = f"c{index % 8}"
    known: list[tuple[Point, Ratio]] = [
        (point, each) for point in curve.points if (each := point.figure(key)) is not None
    ]
    spots = chart.points([p.rate for p, _ in known], [times * each.value for _, each in known])
    parts = []
    for (x, _), (_, each) in zip(spots, known, strict=True):
        if not math.isnan(each.low):
            low, high = chart.up(times * each.low), chart.up(times * each.high)
            parts.append(svg.line(x, low, x, high, f"line thin {cls}"))
    parts.append(svg.polyline(spots, f"line {cls}"))
    for (x, y), (point, each) in zip(spots, known, strict=True):
        tip = f"{curve.name or AS_IT_IS}, {point.rate:g}/s: {number(times * each.value)}"
        parts.append(svg.marker(x, y, index, f"mark {cls}", tip))
    return parts
