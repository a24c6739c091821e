"""The tables of `eldr_simulated`."""

from collections.abc import Mapping, Sequence
from typing import Any


def show_pools(found: Mapping[str, Any], arms: Sequence[str]) -> None:
    """The table of pools, for people."""
    from rich.table import Table

    from toolkit.report.terminal import console
    from toolkit.report.terminal import show as printed

    title = "Qwen3-30B-A3B, divided by round robin: simulated, 95 % over seeds (paper)"
    table = Table(title=title, title_justify="left")
    columns = {"p50": "TPOT p50", "p99": "p99", "distinct": "experts", "p50_best": "p50, to best"}
    for name in ("workload, pool, prompts a centroid", "arm", *columns.values()):
        table.add_column(name, justify="left" if name[0] in "wa" else "right")
    for workload, pools in found.items():
        for name, figures in pools.items():
            if not name.startswith("8P"):
                continue
            paper = figures["paper"] or {}
            if "refused" in figures:
                table.add_row(f"{workload}, {name}", figures["refused"])
                continue
            for arm in arms:
                cells = (f"{_told(figures[arm][k])} ({_said(paper.get(k))})" for k in columns)
                head = f"{workload}, {name}, {figures['prompts_a_centroid']:.0f}"
                table.add_row(head, arm, *cells)
    printed(console(stderr=True), table)


def show_artifact(found: Mapping[str, Any], arms: Sequence[str]) -> None:
    """The table beside the artifact's rows."""
    from rich.table import Table

    from toolkit.report.terminal import console
    from toolkit.report.terminal import show as printed

    title = "8P16D, divided by shortest queue: simulated (measured by the artifact)"
    table = Table(title=title, title_justify="left", show_lines=True)
    for name in ("model, traffic, rate", *(f"{arm} p50, p99" for arm in arms), "why"):
        table.add_column(name)
    for name, rates in found.items():
        if "refused" in rates:
            table.add_row(name, *[""] * len(arms), rates["refused"])
            continue
        for rate, keys in rates.items():
            if rate == "blend":
                continue
            measured = keys["measured"]
            cells = [
                ", ".join(
                    f"{keys[arm][key]['value']:.3f}"
                    + (f" ({measured[key]:.3f})" if arm == "eldr@artifact" else "")
                    for key in ("p50", "p99")
                )
                for arm in arms
            ]
            table.add_row(f"{name}, {rate}/s", *cells, keys["reason"])
    printed(console(stderr=True), table)


def _told(value: Mapping[str, float]) -> str:
    if value["low"] != value["low"]:
        return f"{value['value']:.3f}"
    return f"{value['value']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"


def _said(value: float | tuple[float, float] | None) -> str:
    if isinstance(value, tuple):
        return " to ".join(f"{each:.3f}" for each in value)
    return "-" if value is None else f"{value:.3f}"
