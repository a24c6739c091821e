"""The sections of a single run's page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from toolkit.bench.page_parts import Section, table_of
from toolkit.bench.report import (
    balance_lines,
    decode_table,
    metrics_table,
    phase_table,
    summary_lines,
)
from toolkit.report import html, svg
from toolkit.report.axes import Chart
from toolkit.report.numbers import number

if TYPE_CHECKING:
    from toolkit.bench.session import Report


def keys(report: Report) -> list[tuple[str, str, str]]:
    metrics = report.metrics or {}
    found = [
        ("TTFT p50", f"{metrics['median_ttft_ms']:.0f} ms", "time to the first token"),
        ("TPOT p50", f"{metrics['median_tpot_ms']:.1f} ms", "time a token after it"),
        ("Output tokens", f"{metrics['output_throughput']:.0f}", "a second"),
        ("Requests", f"{metrics['completed']:,}", f"in {metrics['duration']:.1f} s"),
    ]
    if metrics.get("goodput_fraction") is not None:
        share = f"{100 * metrics['goodput_fraction']:.0f} %"
        found.append(("Within the SLO", share, "of requests"))
    return found


def sections(report: Report) -> Iterator[Section]:
    metrics = report.metrics or {}
    yield Section.of("b-latency", "Latency", "", _latencies(report))
    tables = [metrics_table(metrics, "Latencies, ms")]
    lines = [*summary_lines(metrics, report.workers)]
    if report.decode is not None:
        tables.append(decode_table(metrics, report.decode))
        lines += balance_lines(metrics)
    if report.phases is not None:
        tables.append(phase_table(report.phases))
    words = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    figures = (table_of(table) for table in tables)
    yield Section.of("b-figures", "All figures", "", *figures, f'<ul class="small">{words}</ul>')


def _latencies(report: Report) -> str:
    series = {"TTFT": report.document["ttfts"], "Whole answer": report.document["e2e_latencies"]}
    panels = [html.Panel(_curve(values, name), name) for name, values in series.items()]
    half = sorted(series["TTFT"])[len(series["TTFT"]) // 2] * 1e3
    return html.figure(
        "latency",
        f"Half of the requests had their first token within {half:.0f} ms.",
        panels,
        reading="How many requests took at most so long; further left is faster.",
    )


def _curve(seconds: Sequence[float], name: str) -> str:
    times = sorted(1e3 * each for each in seconds)
    shares = [100 * (n + 1) / len(times) for n in range(len(times))]
    chart = Chart(460, 240, (0.0, times[-1] * 1.04), (0.0, 100.0), left=44)
    chart.axes("milliseconds", "percent of requests")
    spots = chart.points([times[0], *times], [0.0, *shares])
    chart.add(svg.polyline(spots, "line c0"))
    middle = times[len(times) // 2]
    words = f"Half within {number(middle)} ms, all within {number(times[-1])} ms."
    return chart.picture(f"{name} of all requests", words, f"curve-{name.split()[0].lower()}")
