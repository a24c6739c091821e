"""What a simulation prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from toolkit.simulate.recorder import EFFORT, URGENT

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


BY_CLASS = (
    ("requests", "requests", 1, 0),
    ("TTFT mean", "ttft_mean", 1e3, 1),
    ("p50", "ttft_p50", 1e3, 1),
    ("p99", "ttft_p99", 1e3, 1),
    ("TPOT mean", "tpot_mean", 1e3, 2),
    ("p99", "tpot_p99", 1e3, 2),
    ("whole answer mean", "e2e_mean", 1e3, 0),
    ("p99", "e2e_p99", 1e3, 0),
    ("goodput/s", "goodput_s", 1, 2),
    ("within SLO %", "good_share", 100, 1),
)
CLASS_RATIOS = (
    ("TTFT mean", "ttft_mean"),
    ("TPOT mean", "tpot_mean"),
    ("whole answer mean", "e2e_mean"),
    ("within SLO", "good_share"),
)
MOVED = (
    ("moves", "moves", 1, 0),
    ("outgrown", "moves_outgrown", 1, 0),
    ("overload", "moves_overload", 1, 0),
    ("level", "moves_level", 1, 0),
    ("KV limit", "moves_kv_limit", 1, 0),
    ("given up", "moves_given_up", 1, 0),
    ("KV tokens", "moved_tokens", 1, 0),
    ("stall mean", "move_stall_mean", 1e3, 1),
    ("p99", "move_stall_p99", 1e3, 1),
)
NAMES = {URGENT: "latency-sensitive", EFFORT: "best-effort"}


def figures(outcome: Outcome) -> Table:
    """One line a policy: medians over the seeds; times in ms."""
    from rich.table import Table

    table = Table(title="simulated (times in ms)", title_justify="left")
    return _filled(table, outcome, SHOWN)


def moves(outcome: Outcome) -> Table:
    """One line a policy: requests that moved between decode ranks, by reason; times in ms."""
    from rich.table import Table

    table = Table(title="requests that moved (times in ms)", title_justify="left")
    return _filled(table, outcome, MOVED)


def _filled(
    table: Table, outcome: Outcome, columns: Sequence[tuple[str, str, float, int]]
) -> Table:
    table.add_column("policy")
    for title, *_ in columns:
        table.add_column(title, justify="right")
    for arm, name in enumerate(outcome.arms):
        cells = [f"{outcome.median(arm, key) * by:.{digits}f}" for _, key, by, digits in columns]
        table.add_row(name, *cells)
    return table


def by_class(outcome: Outcome) -> Iterator[Table]:
    """A table for each class: one line a policy, medians over the seeds."""
    from rich.table import Table

    for kind in outcome.classes:
        table = Table(title=f"{NAMES[kind]} requests (times in ms)", title_justify="left")
        table.add_column("policy")
        for title, *_ in BY_CLASS:
            table.add_column(title, justify="right")
        for arm, name in enumerate(outcome.arms):
            cells = [
                f"{outcome.median(arm, f'{kind}.{key}') * by:.{digits}f}"
                for _, key, by, digits in BY_CLASS
            ]
            table.add_row(name, *cells)
        yield table


def class_ratios(outcome: Outcome) -> Table:
    """The first policy against each other one, by class. The mean time of whole best-effort answers
    is their slowdown."""
    from rich.table import Table

    title = f"{outcome.arms[0]} divided by, by class{_over(outcome)}; "
    table = Table(title=title + "best-effort whole answers: slowdown", title_justify="left")
    table.add_column("policy")
    table.add_column("class")
    for name, _ in CLASS_RATIOS:
        table.add_column(name, justify="right")
    for arm in range(1, len(outcome.arms)):
        for kind in outcome.classes:
            ratios = [outcome.ratio(0, arm, f"{kind}.{key}") for _, key in CLASS_RATIOS]
            table.add_row(outcome.arms[arm], NAMES[kind], *map(_shown, ratios))
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
