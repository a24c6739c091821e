"""The tables of a comparison."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from toolkit.bench import class_ratios
from toolkit.bench.compare import STATISTICS, Comparison
from toolkit.bench.report import latency_titles
from toolkit.bench.stats import Ratio
from toolkit.bench.verdict import findings, shown

if TYPE_CHECKING:
    from rich.table import Table

PLAIN_TITLES = {
    "output_throughput": "tokens/s",
    "window_throughput": "tokens/s, loop full",
    "distinct_experts": "distinct experts",
    "mean_batch": "batch",
    "step_tokens": "tokens a request and step",
    "mean_kv_tokens": "KV tokens",
    "kv_spread": "KV max - min over ranks",
    "barrier_share": "share at the barrier",
    "cache_hit_rate_pct": "in prefix cache, %",
}
_COMPACT = (("ttft", "median"), ("tpot", "median"), ("tpot", "p99"), ("e2e_latency", "median"))
_COMPACT_INSIDE = (("worker_tpot", "median"), ("worker_tpot", "p90"), ("worker_tpot", "p99"))
_OF_CLASSES = {
    "mean_ttft_ms": ("TTFT mean, ms", 1.0),
    "mean_e2e_latency_ms": ("E2E mean, ms", 1.0),
    "slo_attainment": ("within the SLO, %", 100.0),
}
"""Title, and what a value is shown times."""
_SHORT = {"mean": "mean", "median": "p50", "p90": "p90", "p99": "p99"}


def arms_table(comparison: Comparison) -> Table:
    """Every arm as a column: medians over the rounds, and below them the ratio of the first arm to
    this one with its 95 % interval."""
    from rich.table import Table

    first = comparison.arms[0].text
    table = Table(
        title=f"medians of {len(comparison.rounds[0])} rounds; below: {first} / this one, 95 % "
        "interval (* excludes 1)",
        title_justify="left",
        show_lines=True,
    )
    table.add_column("")
    for arm in comparison.arms:
        table.add_column(arm.text, justify="right")
    for key, label in _compact_rows(comparison).items():
        cells = []
        for index, arm in enumerate(comparison.arms):
            middle = comparison.median(index, key)
            shown = "-" if middle is None else f"{middle:.4g}"
            ratio = comparison.ratios.get(f"{first} / {arm.text}", {}).get(key)
            cells.append(shown if ratio is None else f"{shown}\n{_cell(ratio)}")
        table.add_row(label, *cells)
    return table


def medians_table(comparison: Comparison) -> Table:
    """Every arm as a column, medians over the rounds alone."""
    from rich.table import Table

    table = Table(title=f"medians of {len(comparison.rounds[0])} rounds", title_justify="left")
    table.add_column("")
    for arm in comparison.arms:
        table.add_column(arm.text, justify="right")
    for key, label in _compact_rows(comparison).items():
        middles = [comparison.median(index, key) for index in range(len(comparison.arms))]
        table.add_row(label, *("-" if each is None else f"{each:.4g}" for each in middles))
    return table


def verdict_table(comparison: Comparison, other: int = 1) -> Table:
    """The first arm against another one in a few figures: medians, change, and what that means."""
    from rich.table import Table

    ours, theirs = comparison.arms[0].text, comparison.arms[other].text
    table = Table(
        title=f"medians of {len(comparison.rounds[0])} rounds; change in %, 95 % interval",
        title_justify="left",
    )
    table.add_column("")
    for name in (ours, theirs, "change"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for each in shown(findings(comparison, other)):
        values = (f"{each.ours:.4g}", f"{each.other:.4g}")
        change = each.change.replace(" % (", " %\n(")
        table.add_row(each.metric.title, *values, change, each.word)
    return table


def _compact_rows(comparison: Comparison) -> dict[str, str]:
    """Metric -> label, of those that every arm has."""
    titles = latency_titles(comparison.rounds[0][0])
    rows = {
        f"{stat}_{name}_ms": f"{titles[name]} {_SHORT[stat]}, ms"
        for name, stat in (*_COMPACT, *_COMPACT_INSIDE)
        if name in titles
    }
    rows |= PLAIN_TITLES
    arms = range(len(comparison.arms))
    return {
        key: label
        for key, label in rows.items()
        if all(comparison.median(index, key) is not None for index in arms)
    }


def ratio_tables(comparison: Comparison) -> list[Table]:
    """One table a pair of arms; an interval that excludes 1 is marked with *."""
    from rich.table import Table

    tables = []
    for pair, ratios in comparison.ratios.items():
        count = len(comparison.rounds[0])
        table = Table(
            title=f"{pair}, {count} paired rounds, 95 % interval (below 1: the first is faster)",
            title_justify="left",
        )
        table.add_column("ratio")
        for name in _SHORT.values():
            table.add_column(name, justify="right")
        for name, label in latency_titles(comparison.rounds[0][0]).items():
            cells = [_cell(ratios.get(f"{stat}_{name}_ms")) for stat in STATISTICS]
            if any(cell != "-" for cell in cells):
                table.add_row(label, *cells)
        for key, label in PLAIN_TITLES.items():
            if key in ratios:
                table.add_row(label, _cell(ratios[key]), "", "", "")
        tables.append(table)
    return tables


def class_tables(comparison: Comparison) -> list[Table]:
    """One table a pair of arms, a row for each figure of each class; none without classes."""
    from rich.table import Table

    tables = []
    for index in range(1, len(comparison.arms)):
        ours, other = comparison.arms[0].text, comparison.arms[index].text
        rounds = comparison.rounds[0], comparison.rounds[index]
        table = Table(
            title=f"{ours} / {other} by class, {len(rounds[0])} paired rounds: medians, and the "
            "ratio with its 95 % interval",
            title_justify="left",
        )
        for head in ("class", "", ours, other, "ratio"):
            table.add_column(head, justify="left" if head in ("class", "") else "right")
        for name, ratios in comparison.by_class[f"{ours} / {other}"].items():
            for key, (title, times) in _OF_CLASSES.items():
                middles = [class_ratios.median(each, name, key) for each in rounds]
                if any(each is not None for each in middles):
                    cells = ("-" if each is None else f"{times * each:.4g}" for each in middles)
                    table.add_row(name or "none", title, *cells, _cell(ratios.get(key)))
        if table.row_count:
            tables.append(table)
    return tables


def _cell(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    if math.isnan(ratio.low):
        return f"{ratio.value:.3f}"
    mark = "" if ratio.low <= 1 <= ratio.high else " *"
    return f"{ratio.value:.3f} ({ratio.low:.3f}-{ratio.high:.3f}){mark}"
