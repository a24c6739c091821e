"""The tables of several runs and of a sweep."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from toolkit.bench.compare import PLAIN, STATISTICS
from toolkit.bench.ratios import PLAIN_TITLES
from toolkit.bench.report import latency_titles
from toolkit.bench.several import over_runs
from toolkit.bench.stats import Ratio
from toolkit.report.numbers import number

if TYPE_CHECKING:
    from rich.table import Table

    from toolkit.bench.swept import Curve, Swept

_COLUMNS = (
    ("goodput_fraction", "within SLO, %", 100.0),
    ("goodput", "goodput/s", 1.0),
    ("median_ttft_ms", "TTFT p50, ms", 1.0),
    ("p99_ttft_ms", "TTFT p99, ms", 1.0),
    ("median_tpot_ms", "TPOT p50, ms", 1.0),
    ("p99_tpot_ms", "TPOT p99, ms", 1.0),
)


def runs_table(runs: list[dict[str, Any]]) -> Table:
    """Means over the runs with their 95 % intervals."""
    from rich.table import Table

    table = Table(
        title=f"means of {len(runs)} runs; below: 95 % interval over them",
        title_justify="left",
        show_lines=True,
    )
    table.add_column("")
    for head in ("mean", "p50", "p90", "p99"):
        table.add_column(head, justify="right")
    found = over_runs(runs)
    for name, label in latency_titles(runs[0]).items():
        cells = [_cell(found.get(f"{stat}_{name}_ms")) for stat in STATISTICS]
        table.add_row(f"{label}, ms", *cells)
    shares = {"request_throughput": "requests/s", "goodput": "goodput, requests/s"}
    titles = shares | {key: PLAIN_TITLES[key] for key in PLAIN}
    for key, label in titles.items():
        if key in found:
            table.add_row(label, _cell(found[key]), "", "", "")
    return table


def sweep_table(curve: Curve) -> Table:
    """A line a rate: means over its runs, and their intervals below."""
    from rich.table import Table

    name = f"{curve.name}: " if curve.name else ""
    table = Table(
        title=f"{name}means of {curve.asked.runs} runs; below: 95 % interval over them",
        title_justify="left",
        show_lines=True,
    )
    table.add_column("requests/s", justify="right")
    for _, head, _ in _COLUMNS:
        table.add_column(head, justify="right")
    table.add_column("")
    for point in curve.points:
        cells = [
            _cell(point.figure(key), times, 100.0 if key == "goodput_fraction" else math.inf)
            for key, _, times in _COLUMNS
        ]
        holds = point.share >= curve.asked.attainment
        word = "knee" if point.rate == curve.knee else "holds" if holds else "too fast"
        word += "?" if point.doubtful(curve.asked.attainment) else ""
        table.add_row(f"{point.rate:g}", *cells, word)
    return table


def sweep_lines(swept: Swept) -> list[str]:
    """The knees in words, and the first policy's to the others'."""
    lines = []
    for curve in swept.curves:
        name = f"{curve.name}: " if curve.name else ""
        lines += [name + text for text in (curve.sentence, curve.doubt) if text]
    for other in range(1, len(swept.curves)):
        ratio = swept.ratio(other)
        pair = f"knee of {swept.curves[0].name} / {swept.curves[other].name}"
        if ratio is None:
            lines.append(f"{pair}: not every run has both")
        elif math.isnan(ratio.low):
            lines.append(f"{pair}: {ratio.value:.3f} (one run has no interval)")
        else:
            seen = "" if ratio.low <= 1 <= ratio.high else " *"
            lines.append(f"{pair}: {ratio.value:.3f} ({ratio.low:.3f}-{ratio.high:.3f}){seen}")
    return lines


def _cell(figure: Ratio | None, times: float = 1.0, most: float = math.inf) -> str:
    """No figure here can be below 0, nor above `most`: Student's interval of a few runs may be."""
    if figure is None:
        return "-"
    value = number(times * figure.value)
    if math.isnan(figure.low):
        return value
    low, high = max(0.0, times * figure.low), min(most, times * figure.high)
    return f"{value}\n({number(low)} to {number(high)})"
