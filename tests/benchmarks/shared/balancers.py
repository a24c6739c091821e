"""Load balancers that ours must beat, with the pool of finished prefills and without it.

Two gains are told apart: what the pool brings to any policy, and what a score brings beyond it. So
there are two columns: ours against the best balancer that binds at once, and against the best that
has the same pool. A third holds BalanceRoute's rules as published, which have both. The best of a
column is the one that leads on the very rounds that are compared, which can only be to our
disadvantage.
"""

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolkit.bench.stats import Ratio, paired_ratio

BALANCERS = (
    "random",
    "round_robin",
    "power_of_two",
    "shortest_queue",
    "kv_shortest_queue",
    "least_tokens",
)
POOLED = tuple(f"pooled@{name}" for name in BALANCERS)
PUBLISHED = ("br0@paper", "brh@paper")
COLUMNS = {"unpooled": BALANCERS, "pooled": POOLED, "published": PUBLISHED}
Rounds = Mapping[str, Sequence[Mapping[str, float]]]
"""Of every arm, its figures: one mapping for each independent round or seed."""


@dataclass(frozen=True)
class Against:
    """One of our arms beside the best balancer of a column; ratios are ours divided by `best`'s."""

    best: str
    ratios: Mapping[str, Ratio]

    def keys(self) -> dict[str, str | float]:
        """As a benchmark reports them."""
        found: dict[str, str | float] = {"best": self.best}
        for name, ratio in self.ratios.items():
            found |= ratio.keys(name)
        return found


def is_balancer(arm: str) -> bool:
    """Whether the arm is a load balancer, with the pool or without."""
    return arm in BALANCERS or arm in POOLED


def mean(rounds: Rounds, arm: str, figure: str) -> float:
    """Of a figure over the arm's rounds."""
    return statistics.fmean(each[figure] for each in rounds[arm])


def best(rounds: Rounds, column: str, figure: str, most: bool = False) -> str | None:
    """The balancer of a column that has the least (or `most`) of a figure; None: none was run."""
    run = [arm for arm in COLUMNS[column] if arm in rounds]
    choose = max if most else min
    return choose(run, key=lambda arm: mean(rounds, arm, figure)) if run else None


def ratio(rounds: Rounds, arm: str, other: str, figure: str) -> Ratio:
    """`arm` divided by `other`, paired by round; NaN where a round has no positive figure."""
    ours, theirs = ([each[figure] for each in rounds[name]] for name in (arm, other))
    if all(value > 0 and math.isfinite(value) for value in (*ours, *theirs)):
        return paired_ratio(ours, theirs)
    return Ratio(math.nan, math.nan, math.nan, len(ours))


def against(
    rounds: Rounds, arm: str, lead: str, figures: Sequence[str], most: bool = False
) -> dict[str, Against]:
    """The arm in each column, beside the balancer that is best by `lead`."""
    found = {}
    for column, arms in COLUMNS.items():
        other = best(rounds, column, lead, most)
        if other is not None and arm not in arms:
            pairs = {figure: ratio(rounds, arm, other, figure) for figure in (lead, *figures)}
            found[column] = Against(other, pairs)
    return found


def all_against(
    rounds: Rounds, lead: str, figures: Sequence[str], most: bool = False
) -> dict[str, dict[str, Against]]:
    """`against` of every arm that is ours."""
    return {
        arm: against(rounds, arm, lead, figures, most) for arm in rounds if not is_balancer(arm)
    }


def times(found: Ratio) -> str:
    """How many times less ours is, with the interval."""
    if math.isnan(found.value):
        return "-"
    if math.isnan(found.low):
        return f"{1 / found.value:.2f}"
    return f"{1 / found.value:.2f} ({1 / found.high:.2f} to {1 / found.low:.2f})"


def show(
    title: str,
    rounds: Rounds,
    figures: Mapping[str, tuple[str, float]],
    lead: str,
    bias: Mapping[str, float] | None = None,
) -> None:
    """Print a table: means of `figures` (heading -> key and factor), and by how many times ours has
    less of `lead` than the best of each column. `bias`: by policy, what the simulator reads of
    `lead` where the workers have 1; arms without one were not measured."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("policy")
    for heading in (*figures, *(f"times below best {column}" for column in COLUMNS)):
        table.add_column(heading, justify="right")
    if bias is not None:
        table.add_column("simulated / workers'", justify="right")
    for arm in rounds:
        cells = [f"{mean(rounds, arm, key) * by:,.4g}" for key, by in figures.values()]
        ours = {} if is_balancer(arm) else against(rounds, arm, lead, ())
        cells += [times(ours[c].ratios[lead]) if c in ours else "" for c in COLUMNS]
        if bias is not None:
            cells.append(f"{bias[arm]:.2f}" if arm in bias else "not measured")
        table.add_row(arm, *cells)
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 200)
    console.print(table)
    for column in COLUMNS:
        other = best(rounds, column, lead)
        if other is not None:
            console.print(f"best {column}: {other}; intervals over {len(rounds[other])} rounds")
