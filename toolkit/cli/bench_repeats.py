"""The options of `toolkit bench` that play a load several times, or at several rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from toolkit.bench.swept import Range

RUNS = 3
"""At each rate of a sweep."""


@dataclass(frozen=True)
class Repeated:
    """How often, and how fast."""

    runs: Annotated[
        int | None,
        typer.Option(
            help="Play the load so often (each run with a seed and empty prefix caches of its own) "
            f"and give 95 % intervals over the runs [default: 1; {RUNS} at each rate of --sweep]."
        ),
    ] = None
    sweep: Annotated[
        str | None,
        typer.Option(
            help="LOW:HIGH requests/s: find the goodput knee, the largest rate that keeps to the "
            "SLO; of each policy of --compare, if given."
        ),
    ] = None
    attainment: Annotated[
        float, typer.Option(help="Share of requests that a rate must serve within the SLO.")
    ] = 0.9
    knee_within: Annotated[
        float, typer.Option(help="How closely --sweep tells the knee, as a share of it.")
    ] = 0.1

    def range(self) -> Range | None:
        """BenchError: a sweep that is none."""
        from toolkit.bench.errors import BenchError
        from toolkit.bench.swept import Range

        if self.sweep is None:
            return None
        low, _, high = self.sweep.partition(":")
        try:
            bounds = float(low), float(high)
        except ValueError as error:
            raise BenchError(
                f"--sweep is LOW:HIGH in requests/s, as 0.5:16, not {self.sweep!r}"
            ) from error
        runs = RUNS if self.runs is None else self.runs
        return Range(*bounds, runs, self.attainment, self.knee_within)
