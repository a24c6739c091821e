"""The table on the screen and the JSON file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.bench.compare import STATISTICS, Comparison
from toolkit.bench.metrics import LATENCIES

if TYPE_CHECKING:
    from rich.table import Table

_TITLES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e_latency": "E2E"}


def metrics_table(metrics: dict[str, Any], title: str) -> Table:
    """Latencies of one run."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("ms")
    for name in ("mean", "p50", "p90", "p99"):
        table.add_column(name, justify="right")
    for name in LATENCIES:
        values = [metrics[f"{stat}_{name}_ms"] for stat in STATISTICS]
        table.add_row(_TITLES[name], *(f"{value:.1f}" for value in values))
    return table


def summary_lines(metrics: dict[str, Any], workers: dict[str, int] | None) -> list[str]:
    """Throughput, goodput and who did the work, in words."""
    lines = [
        f"{metrics['completed']} requests in {metrics['duration']:.1f} s "
        f"({metrics['failed']} failed): {metrics['request_throughput']:.2f} requests/s, "
        f"{metrics['input_throughput']:.0f} input and {metrics['output_throughput']:.0f} output "
        f"tokens/s, {metrics['concurrency']:.1f} in flight on average"
    ]
    if metrics.get("goodput") is not None:
        lines.append(
            f"goodput {metrics['goodput']:.2f} requests/s "
            f"({100 * metrics['goodput_fraction']:.0f} % of requests within the SLO)"
        )
    if workers:
        lines.append("requests: " + ", ".join(f"{name} {n}" for name, n in workers.items()))
    return lines


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
        for name in ("mean", "p50", "p90", "p99"):
            table.add_column(name, justify="right")
        for name in LATENCIES:
            cells = [_cell(ratios.get(f"{stat}_{name}_ms")) for stat in STATISTICS]
            table.add_row(_TITLES[name], *cells)
        table.add_row("tokens/s", _cell(ratios.get("output_throughput")), "", "", "")
        tables.append(table)
    return tables


def _cell(ratio: Any) -> str:
    if ratio is None:
        return "-"
    if math.isnan(ratio.low):
        return f"{ratio.value:.3f}"
    mark = "" if ratio.low <= 1 <= ratio.high else " *"
    return f"{ratio.value:.3f} ({ratio.low:.3f}-{ratio.high:.3f}){mark}"


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write the document (NaN as null), making the folder when it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_plain(document), indent=1, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value
