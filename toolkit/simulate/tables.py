"""What a simulation prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from toolkit.bench.stats import Ratio
    from toolkit.simulate.session import Outcome

SHOWN = (
    ("TTFT p50", "ttft_p50", 1e3, 1),
    ("p99", "ttft_p99", 1e3, 1),
    ("TPOT mean", "tpot_mean", 1e3, 2),
    ("p99", "tpot_p99", 1e3, 2),
    ("tokens/s", "output_tokens_s", 1, 0),
    ("goodput/s", "goodput_s", 1, 2),
    ("KV max - min", "kv_spread", 1, 0),
    ("barrier %", "barrier_share", 100, 1),
    ("retracted", "retractions", 1, 0),
)
COMPARED = (
    ("TTFT mean", "ttft_mean"),
    ("TPOT mean", "tpot_mean"),
    ("TPOT p99", "tpot_p99"),
    ("tokens/s", "output_tokens_s"),
    ("KV max - min", "kv_spread"),
)


def figures(outcome: Outcome) -> Table:
    """One line a policy: medians over the seeds; times in ms."""
    from rich.table import Table

    table = Table(title="simulated (times in ms)", title_justify="left")
    table.add_column("policy")
    for title, *_ in SHOWN:
        table.add_column(title, justify="right")
    for arm, name in enumerate(outcome.arms):
        cells = [f"{outcome.median(arm, key) * by:.{digits}f}" for _, key, by, digits in SHOWN]
        table.add_row(name, *cells)
    return table


def _over(outcome: Outcome) -> str:
    seeds = len(outcome.figures[0])
    return f" (95 % intervals over {seeds} seeds)" if seeds > 1 else ""


def ratios(outcome: Outcome) -> Table:
    """The first policy against each other one, with 95 % intervals over the seeds."""
    from rich.table import Table

    table = Table(title=f"{outcome.arms[0]} divided by{_over(outcome)}", title_justify="left")
    table.add_column("policy")
    for title, _ in COMPARED:
        table.add_column(title, justify="right")
    for arm in range(1, len(outcome.arms)):
        cells = [_shown(outcome.ratio(0, arm, key)) for _, key in COMPARED]
        table.add_row(outcome.arms[arm], *cells)
    return table


def _shown(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    if ratio.pairs < 2:
        return f"{ratio.value:.3f}"
    return f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
