"""The sections of a single run's page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.bench.loads import HELD
from toolkit.bench.page_parts import PageSection, table_of
from toolkit.bench.repeats import runs_table
from toolkit.bench.report import (
    balance_lines,
    decode_table,
    group_tables,
    metrics_table,
    phase_table,
    summary_lines,
    turn_table,
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


def sections(report: Report) -> Iterator[PageSection]:
    metrics = report.metrics or {}
    yield PageSection.of("b-latency", "Latency", "", _latencies(report))
    if report.turns is not None:
        yield PageSection.of("b-turns", "Turns of a conversation", "", _turns(report.turns))
    loads = report.document.get("decode_loads")
    if loads and not report.runs:
        yield PageSection.of("b-loads", "What the decode workers held", "", _loads(loads))
    tables = [metrics_table(metrics, "Latencies, ms")]
    if report.runs:
        tables = [runs_table(report.runs)]
    lines = [*summary_lines(metrics, report.workers)]
    if report.decode is not None:
        tables.append(decode_table(metrics, report.decode))
        lines += balance_lines(metrics)
    if report.phases is not None:
        tables.append(phase_table(report.phases))
    if report.turns is not None:
        tables.append(turn_table(report.turns))
    tables += group_tables(report.groups, len(report.runs) or 1)
    words = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    figures = (table_of(table, "lines" if report.runs else "") for table in tables)
    yield PageSection.of(
        "b-figures", "All figures", "", *figures, f'<ul class="small">{words}</ul>'
    )


def _latencies(report: Report) -> str:
    first, whole = report.document["ttfts"], report.document["e2e_latencies"]
    series = {"TTFT": first, "Whole answer": whole}
    made = report.document["output_lens"]
    each = [(w - f) / (n - 1) for f, w, n in zip(first, whole, made, strict=True) if n > 1]
    if each:
        series["TPOT"] = each
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


def _turns(turns: Sequence[dict[str, Any]]) -> str:
    """TTFT by turn, and how much of a prompt was in a prefix cache."""
    turns = [turn for turn in turns if turn["completed"]]
    stats = {"median_ttft_ms": "p50", "p90_ttft_ms": "p90"}
    panels = [html.Panel(_by_turn(turns, stats, "milliseconds", "turns-ttft"), "TTFT")]
    legend = html.legend(
        [(html.sign(f"c{n}", svg.MARKERS[n]), name) for n, name in enumerate(stats.values())]
    )
    if all(turn["cache_hit_rate_pct"] is not None for turn in turns):
        cached = {"cache_hit_rate_pct": "in a prefix cache"}
        drawn = _by_turn(turns, cached, "percent of prompt tokens", "turns-cache", top=100.0)
        panels.append(html.Panel(drawn, "Prefix cache"))
    first, last = turns[0]["median_ttft_ms"], turns[-1]["median_ttft_ms"]
    return html.figure(
        "turns",
        f"First turns had their first token within {first:.0f} ms at p50, the last ones within "
        f"{last:.0f} ms.",
        panels,
        legend=legend,
        reading="Later turns are sent with the whole conversation before them, and come from "
        "conversations that are long enough to have them.",
    )


def _by_turn(
    turns: Sequence[dict[str, Any]],
    stats: dict[str, str],
    unit: str,
    key: str,
    top: float | None = None,
) -> str:
    numbers = [float(turn["turn"]) for turn in turns]
    highest = max(turn[stat] for turn in turns for stat in stats)
    chart = Chart(
        460, 240, (0.6, numbers[-1] + 0.4), (0.0, top or 1.06 * (highest or 1.0)), left=62
    )
    ticks = [(float(t["turn"]), f"{t['turn']}{'+' if t['and_later'] else ''}") for t in turns]
    chart.axes("turn", unit, x_ticks=ticks, x_grid=False)
    for index, (stat, name) in enumerate(stats.items()):
        values = [turn[stat] for turn in turns]
        spots = chart.points(numbers, values)
        chart.add(svg.polyline(spots, f"line c{index}"))
        for (x, y), value in zip(spots, values, strict=True):
            chart.add(svg.marker(x, y, index, f"mark c{index}", f"{name}: {number(value)}"))
    words = "; ".join(
        f"{name}: {', '.join(number(turn[stat]) for turn in turns)}" for stat, name in stats.items()
    )
    return chart.picture(f"{' and '.join(stats.values())}, {unit}, by turn", words, key)


def _loads(loads: dict[str, Any]) -> str:
    workers = loads["workers"]
    panels = [
        html.Panel(_over_time(loads, held, title), title[0].upper() + title[1:])
        for held, title in HELD.items()
    ]
    signs = [(html.sign(f"c{n % 8}", svg.MARKERS[7]), name) for n, name in enumerate(workers)]
    means = {
        name: sum(each["kv_tokens"]) / len(each["kv_tokens"]) for name, each in workers.items()
    }
    fullest, emptiest = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    takeaway = f"{fullest} held {number(means[fullest])} KV tokens on average"
    if fullest != emptiest:
        takeaway += f", {emptiest} {number(means[emptiest])}"
    return html.figure(
        "loads",
        takeaway + ".",
        panels,
        legend=html.legend(signs) if len(workers) > 1 else "",
        reading="What the batch of each decode worker held, from the first decode step to the "
        "last. Between two steps a worker holds nothing.",
    )


def _over_time(loads: dict[str, Any], held: str, title: str) -> str:
    seconds = loads["seconds"]
    highest = max(max(each[held]) for each in loads["workers"].values())
    until = seconds[-1] + seconds[0]
    chart = Chart(460, 240, (0.0, until), (0.0, 1.06 * (highest or 1.0)), left=62)
    chart.axes("seconds", title)
    for index, each in enumerate(loads["workers"].values()):
        cls = f"line thin c{index % 8}" + ("", " dash1", " dash2")[index // 8 % 3]
        chart.add(svg.polyline(chart.points(seconds, each[held]), cls))
    words = "; ".join(
        f"{name}: {number(sum(each[held]) / len(each[held]))} on average"
        for name, each in loads["workers"].items()
    )
    return chart.picture(f"{title} over time", words, f"loads-{held.replace('_', '-')}")
