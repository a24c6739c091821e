"""The tables of one run on the screen, and the JSON file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.bench.compare import STATISTICS

if TYPE_CHECKING:
    from rich.table import Table

_TITLES = {
    "ttft": "TTFT",
    "ttst": "second token",
    "tpot": "TPOT",
    "itl": "ITL",
    "longest_gap": "longest gap",
    "e2e_latency": "E2E",
}
_OF_TURNS = {"first_turn_ttft": "TTFT, first turns", "later_turn_ttft": "TTFT, later turns"}
_INSIDE = {"worker_tpot": "TPOT in the worker", "step": "decode step"}


def metrics_table(metrics: dict[str, Any], title: str) -> Table:
    """Latencies of one run: at the client, and in the decode workers where they were heard."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("ms")
    for name in ("mean", "p50", "p90", "p99"):
        table.add_column(name, justify="right")
    for name, label in latency_titles(metrics).items():
        values = [metrics.get(f"{stat}_{name}_ms") for stat in STATISTICS]
        digits = 1 if name in _TITLES or name in _OF_TURNS else 2
        table.add_row(label, *("-" if v is None else f"{v:.{digits}f}" for v in values))
    return table


def latency_titles(metrics: dict[str, Any]) -> dict[str, str]:
    """The latencies that a run (or a round) has, by metric name. On CPU a worker has two clocks."""
    found = dict(_TITLES)
    found |= {name: label for name, label in _OF_TURNS.items() if f"median_{name}_ms" in metrics}
    clock = metrics.get("worker_clock")
    for name, label in _INSIDE.items():
        if clock == "cpu":
            found[name] = f"{label}, own core"
            found[f"{name}_wall"] = f"{label}, wall"
        elif clock is not None:
            found[name] = label
    return found


def decode_table(metrics: dict[str, Any], workers: dict[str, dict[str, Any]]) -> Table:
    """What the decode workers did, each and together."""
    from rich.table import Table

    clock = " (own core)" if metrics["worker_clock"] == "cpu" else ""
    table = Table(title=f"decode steps, times in ms{clock}", title_justify="left")
    heads = ("steps", "batch", "KV tokens", "distinct experts", "step p50", "TPOT p50", "p99")
    table.add_column("worker")
    for name in heads:
        table.add_column(name, justify="right")
    for name, each in [*workers.items(), ("all", metrics)]:
        cells = [
            f"{each['decode_steps']}",
            _number(each.get("mean_batch"), 1),
            _number(each.get("mean_kv_tokens"), 0),
            _number(each.get("distinct_experts"), 2),
            _number(each.get("median_step_ms"), 2),
            _number(each.get("median_worker_tpot_ms"), 2),
            _number(each.get("p99_worker_tpot_ms"), 2),
        ]
        table.add_row(name, *cells)
    return table


def balance_lines(metrics: dict[str, Any]) -> list[str]:
    """How evenly decode ranks were loaded, in words; nothing for one rank."""
    if "kv_spread" not in metrics:
        return []
    lines = [
        f"KV tokens on the decode ranks, mean over time: {metrics['kv_max']:.0f} on the fullest, "
        f"{metrics['kv_mean']:.0f} on average, {metrics['kv_min']:.0f} on the emptiest; "
        f"max - min {metrics['kv_spread']:.0f}"
    ]
    if "barrier_share" in metrics:
        text = f"share at the barrier, if ranks step together: {metrics['barrier_share']:.1%} "
        text += "by KV tokens"
        if "barrier_share_cpu" in metrics:
            text += f", {metrics['barrier_share_cpu']:.1%} by what each rank computed"
        lines.append(text)
    return lines


def phase_table(phases: list[dict[str, Any]]) -> Table:
    """One line a phase of a workload whose mix changes."""
    from rich.table import Table

    table = Table(title="phases (p50, ms)", title_justify="left")
    heads = ("requests", "TTFT", "TPOT", "TPOT in the worker", "batch", "distinct experts")
    table.add_column("mix")
    for name in heads:
        table.add_column(name, justify="right")
    for phase in phases:
        table.add_row(
            phase["mix"],
            f"{phase['completed']}",
            _number(phase["median_ttft_ms"], 1),
            _number(phase["median_tpot_ms"], 1),
            _number(phase.get("median_worker_tpot_ms"), 2),
            _number(phase.get("mean_batch"), 1),
            _number(phase.get("distinct_experts"), 2),
        )
    return table


def turn_table(turns: list[dict[str, Any]]) -> Table:
    """One line a turn of conversations."""
    from rich.table import Table

    table = Table(title="turns (ms)", title_justify="left")
    table.add_column("turn")
    heads = ("requests", "prompt tokens", "TTFT p50", "TTFT p99", "TPOT p50", "in prefix cache, %")
    for name in heads:
        table.add_column(name, justify="right")
    for turn in turns:
        table.add_row(
            f"{turn['turn']}{'+' if turn['and_later'] else ''}",
            *_group_cells(turn),
            _number(turn["median_ttft_ms"], 1),
            _number(turn["p99_ttft_ms"], 1),
            _number(turn["median_tpot_ms"], 1),
            _number(turn["cache_hit_rate_pct"], 0),
        )
    return table


def group_tables(groups: dict[str, dict[str, dict[str, Any]]], runs: int = 1) -> list[Table]:
    """One table for classes, one for domains, one for languages, where there are several. Figures
    are means over so many `runs`, requests of all of them."""
    from rich.table import Table

    tables = []
    for name, members in groups.items():
        title = f"by {name} (ms)" + (f", means of {runs} runs" if runs > 1 else "")
        table = Table(title=title, title_justify="left")
        table.add_column(name)
        latencies = [
            (f"{_TITLES[series]} {'p50' if stat == 'median' else stat}", f"{stat}_{series}_ms")
            for series in ("ttft", "tpot", "e2e_latency")
            for stat in STATISTICS
        ]
        with_slo = any(each["slo_attainment"] is not None for each in members.values())
        heads = ["requests", "prompt tokens", "tokens/s", *(head for head, _ in latencies)]
        for head in heads + ["within the SLO, %"] * with_slo:
            table.add_column(head, justify="right")
        for key, each in members.items():
            share = each["slo_attainment"]
            last = [_number(None if share is None else 100 * share, 0)] if with_slo else []
            # A latency of nobody is no 0 ms.
            times = [each[figure] if each["completed"] else None for _, figure in latencies]
            table.add_row(
                key or "none",
                *_group_cells(each),
                _number(each["output_throughput"], 1),
                *(_number(value, 1) for value in times),
                *last,
            )
        tables.append(table)
    return tables


def _group_cells(metrics: dict[str, Any]) -> list[str]:
    """Requests, and prompt tokens of one."""
    done = metrics["completed"]
    given = metrics["total_input_tokens"] / done if done else None
    return [f"{done}", _number(given, 0)]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


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
    if metrics.get("cache_hit_rate_pct") is not None:
        lines.append(f"{metrics['cache_hit_rate_pct']:.0f} % of prompt tokens in a prefix cache")
    if workers:
        lines.append("requests: " + ", ".join(f"{name} {n}" for name, n in workers.items()))
    return lines


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
