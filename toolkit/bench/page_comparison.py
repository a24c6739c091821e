"""The sections of a comparison's page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from toolkit.bench.page_parts import PageSection, table_of
from toolkit.bench.ratios import class_tables, medians_table, ratio_tables
from toolkit.bench.verdict import BenchFinding, findings, shown
from toolkit.report import html, intervals, svg
from toolkit.report.axes import Chart, around
from toolkit.report.numbers import number, plural

if TYPE_CHECKING:
    from toolkit.bench.compare import Comparison

ROUNDS = ("distinct_experts", "median_worker_tpot_ms", "median_ttft_ms", "output_throughput")
"""Metrics of which every round is drawn."""


def keys(comparison: Comparison) -> list[tuple[str, str, str]]:
    """The first pair in the figures that the terminal has, too."""
    return [
        (_name(each), _minus(each.change.partition(" (")[0]), each.word)
        for each in shown(findings(comparison))
    ]


def _name(found: BenchFinding) -> str:
    return found.metric.title.removesuffix(", ms")


def _minus(words: str) -> str:
    """A real minus sign."""
    return words.replace("-", "−")


def sections(comparison: Comparison) -> Iterator[PageSection]:
    verdicts = [_verdict(comparison, other) for other in range(1, len(comparison.arms))]
    yield PageSection.of("b-shown", "What was shown", _over(comparison), *verdicts)
    yield PageSection.of("b-rounds", "Each round", "", _rounds(comparison))
    if classes := [table_of(table, "ratios") for table in class_tables(comparison)]:
        yield PageSection.of("b-classes", "By class", "", *classes)
    tables = [medians_table(comparison), *ratio_tables(comparison)]
    figures = (table_of(table, "ratios") for table in tables)
    yield PageSection.of("b-figures", "All figures", "", *figures)


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


def _interval(found: BenchFinding) -> intervals.Interval:
    looks = [words for words, _, _ in intervals.LOOKS]
    look = looks.index(found.word) if found.word in looks else 2
    ratio = found.ratio
    low, high = (
        (ratio.value, ratio.value) if found.word == "no interval" else (ratio.low, ratio.high)
    )
    value, low, high = (100 * (each - 1) for each in (ratio.value, low, high))
    return intervals.Interval(_name(found), value, low, high, _minus(found.change), look)


def _takeaway(ours: str, theirs: str, found: Sequence[BenchFinding]) -> str:
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
