"""A run or a comparison as one self-contained page. It holds no prompt and no key."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit import __version__
from toolkit.bench.errors import BenchError
from toolkit.bench.ratios import medians_table, ratio_tables
from toolkit.bench.report import (
    balance_lines,
    decode_table,
    metrics_table,
    phase_table,
    summary_lines,
)
from toolkit.bench.verdict import Finding, findings, shown
from toolkit.report import html, intervals, svg
from toolkit.report.axes import Chart, around
from toolkit.report.document import document, heading
from toolkit.report.numbers import number, plural

if TYPE_CHECKING:
    from rich.table import Table

    from toolkit.bench.compare import Comparison
    from toolkit.bench.session import Report

ROUNDS = ("distinct_experts", "median_worker_tpot_ms", "median_ttft_ms", "output_throughput")
"""Metrics of which every round is drawn."""


def ready(path: Path) -> None:
    """Before a run that takes minutes. BenchError: no file can be written there."""
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
        if not path.stat().st_size:
            path.unlink()


def write(path: Path, report: Report, title: str = "") -> None:
    """BenchError: as `ready`."""
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(report, title), encoding="utf-8")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise BenchError(f"cannot write the page {path}: {why}; name another file") from error


def render(report: Report, title: str = "") -> str:
    """The whole page of what `toolkit bench` or the demo found."""
    kind = "Benchmark" if report.comparison is None else "Comparison"
    load = report.document["load"]
    way = "open loop" if load["open_loop"] else f"{load['concurrency']} in flight"
    facts = f"Workload {report.document['workload']['name']}, {way}, on {report.document['url']}."
    sections = list(_run(report) if report.comparison is None else _compared(report.comparison))
    if report.remarks:
        notes = "".join(f"<li>{html.escape(remark)}</li>" for remark in report.remarks)
        notes = f'<ul class="said">{notes}</ul>'
        sections.append(("b-notes", "Notes", html.section("b-notes", "Notes", "", notes)))
    how = html.section("b-how", "How it was measured", "", _setting(report.document))
    sections.append(("b-how", "How it was measured", how))
    keys = _run_keys(report) if report.comparison is None else _compared_keys(report.comparison)
    head = heading(kind, title or _title(report), facts, keys)
    footer = html.escape(f"Written by toolkit {__version__}.")
    contents = [(key, words) for key, words, _ in sections]
    return document(
        title or _title(report), head, contents, [part for _, _, part in sections], footer
    )


def _title(report: Report) -> str:
    if report.comparison is None:
        return f"{report.document['model']} under load"
    return " against ".join(arm.text for arm in report.comparison.arms)


def _compared_keys(comparison: Comparison) -> list[tuple[str, str, str]]:
    """The first pair in the figures that the terminal has, too."""
    return [
        (_name(each), _minus(each.change.partition(" (")[0]), each.word)
        for each in shown(findings(comparison))
    ]


def _name(found: Finding) -> str:
    return found.metric.title.removesuffix(", ms")


def _minus(words: str) -> str:
    """A real minus sign."""
    return words.replace("-", "−")


def _compared(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    title = "What was shown"
    parts = [_verdict(comparison, other) for other in range(1, len(comparison.arms))]
    yield "b-shown", title, html.section("b-shown", title, _over(comparison), *parts)
    yield "b-rounds", "Each round", html.section("b-rounds", "Each round", "", _rounds(comparison))
    tables = [medians_table(comparison), *ratio_tables(comparison)]
    drawn = "".join(_table(table, "ratios") for table in tables)
    yield "b-figures", "All figures", html.section("b-figures", "All figures", "", drawn)


def _over(comparison: Comparison) -> str:
    count = len(comparison.rounds[0])
    text = f"{count} rounds; in each every policy played the same requests"
    if comparison.flushed:
        return text + ", with empty prefix caches."
    return text + ". A worker did not empty its prefix cache between them."


def _verdict(comparison: Comparison, other: int) -> str:
    found = findings(comparison, other)
    ours, theirs = comparison.arms[0].text, comparison.arms[other].text
    if not found:
        words = f"{ours} and {theirs} have no figure in common."
        return f'<p class="takeaway">{html.escape(words)}</p>'
    drawn = intervals.picture(
        [_interval(each) for each in found],
        f"{ours} against {theirs}",
        "; ".join(each.sentence for each in found),
        f"verdict-{other}-picture",
    )
    signs = intervals.LOOKS
    listed = "".join(f"<li>{html.escape(each.sentence)}</li>" for each in found)
    return html.raw_figure(
        f"verdict-{other}",
        _takeaway(ours, theirs, found),
        f'<div class="panel"><div class="frame">{drawn}</div></div>'
        f'<ul class="panel said">{listed}</ul>',
        f"The change of {ours} against {theirs}, with 95 % intervals over the paired rounds "
        "(Student's, of the ratios' logarithms). A gain or a loss is one whose interval leaves no "
        "change out. Of twenty intervals one misses by chance.",
        legend=html.legend(
            [(html.sign(colour, svg.MARKERS[shape]), words) for words, colour, shape in signs]
        ),
    )


def _interval(found: Finding) -> intervals.Interval:
    looks = [words for words, _, _ in intervals.LOOKS]
    look = looks.index(found.word) if found.word in looks else 2
    ratio = found.ratio
    low, high = (
        (ratio.value, ratio.value) if found.word == "no interval" else (ratio.low, ratio.high)
    )
    value, low, high = (100 * (each - 1) for each in (ratio.value, low, high))
    return intervals.Interval(_name(found), value, low, high, _minus(found.change), look)


def _takeaway(ours: str, theirs: str, found: Sequence[Finding]) -> str:
    words = Counter(each.word for each in found)
    counts = ", ".join(f"{word} in {plural(n, 'figure')}" for word, n in words.most_common())
    return f"{ours} against {theirs}: {counts}."


def _rounds(comparison: Comparison) -> str:
    panels = []
    titles = {each.metric.key: each.metric.title for each in findings(comparison)}
    for key in ROUNDS:
        if key in titles:
            name = titles[key].removesuffix(", ms")
            panels.append(html.Panel(_lines(comparison, key, titles[key]), name))
    if not panels:
        return "<p>The policies have no figure in common.</p>"
    return html.figure(
        "rounds",
        "What both do in the same round is the machine's and the requests'; the policies differ "
        "by what lies between their lines.",
        panels,
        legend=_legend([arm.text for arm in comparison.arms]),
    )


def _lines(comparison: Comparison, key: str, title: str) -> str:
    series = [[metrics[key] for metrics in rounds] for rounds in comparison.rounds]
    count = len(series[0])
    low, high = around([value for values in series for value in values], room=0.1)
    chart = Chart(460, 220, (0.6, count + 0.4), (max(0.0, low), high), left=62)
    step = 1 + (count - 1) // 12
    ticks = [(float(n), str(n)) for n in range(1, count + 1, step)]
    unit = "ms" if title.endswith(", ms") else title.removeprefix("distinct ")
    chart.axes("round", unit, x_ticks=ticks, x_grid=False)
    for arm, values in enumerate(series):
        spots = chart.points([float(n) for n in range(1, count + 1)], values)
        chart.add(svg.polyline(spots, f"line c{arm % 8}"))
        for (x, y), value in zip(spots, values, strict=True):
            tip = f"{comparison.arms[arm].text}: {number(value)}"
            chart.add(svg.marker(x, y, arm, f"mark c{arm % 8}", tip))
    words = "; ".join(
        f"{arm.text}: {', '.join(number(value) for value in values)}"
        for arm, values in zip(comparison.arms, series, strict=True)
    )
    return chart.picture(f"{title}, round by round", words, f"rounds-{key.replace('_', '-')}")


def _legend(names: Sequence[str]) -> str:
    shapes = svg.MARKERS
    return html.legend(
        [(html.sign(f"c{i % 8}", shapes[i % len(shapes)]), name) for i, name in enumerate(names)]
    )


def _run_keys(report: Report) -> list[tuple[str, str, str]]:
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


def _run(report: Report) -> Iterator[tuple[str, str, str]]:
    metrics = report.metrics or {}
    drawn = _latencies(report)
    yield "b-latency", "Latency", html.section("b-latency", "Latency", "", drawn)
    tables = [metrics_table(metrics, "Latencies, ms")]
    lines = [*summary_lines(metrics, report.workers)]
    if report.decode is not None:
        tables.append(decode_table(metrics, report.decode))
        lines += balance_lines(metrics)
    if report.phases is not None:
        tables.append(phase_table(report.phases))
    words = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    figures = "".join(_table(table) for table in tables) + f'<ul class="small">{words}</ul>'
    yield "b-figures", "All figures", html.section("b-figures", "All figures", "", figures)


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


def _table(table: Table, cls: str = "") -> str:
    """A terminal's table as the page's."""
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    rows = list(zip(*columns, strict=True))
    heads = [str(column.header) for column in table.columns]
    return html.table(str(table.title or ""), heads, rows, cls=cls)


def _setting(facts: dict[str, Any]) -> str:
    """What it takes to run it again, and what it ran on."""
    machine, load = facts["machine"], facts["load"]
    rows = [
        ["date", facts["date"]],
        ["machine", f"{machine['cpus']} CPUs, load average {machine['load_average']:.1f} at the "
         f"end, {machine['system']}"],
        ["versions", ", ".join(f"{k} {v}" for k, v in facts["versions"].items() if v)],
        ["model", facts["model"]],
        ["workload", f"{facts['workload']['requests']} requests, hash {facts['workload']['hash']}"],
        ["load", _plain(load)],
        ["source", _plain(facts["source"])],
    ]  # fmt: skip
    if facts.get("policies"):
        rows.append(["policies", _plain(facts["policies"])])
    return html.table("", ("", ""), rows, words=2, cls="setting")


def _plain(values: dict[str, Any]) -> str:
    """Options that were given or have a default, as NAME VALUE."""
    kept = {k: v for k, v in values.items() if v not in (None, "None", False, (), "", [])}
    return ", ".join(
        f"{name.replace('_', ' ')} {value if isinstance(value, str) else json.dumps(value)}"
        for name, value in kept.items()
    )
