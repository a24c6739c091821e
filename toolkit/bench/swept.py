"""What a sweep of request rates was asked for, and what it found."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from toolkit.bench.compare import Arm
from toolkit.bench.errors import BenchError
from toolkit.bench.knee import KneeSearch, crossing
from toolkit.bench.several import over_runs, plain
from toolkit.bench.stats import Ratio, mean_interval, paired_ratio


@dataclass(frozen=True, slots=True)
class Range:
    """What is swept: `low` to `high` requests (or conversations) a second, `runs` at each rate; a
    rate holds if at least `attainment` of its requests keep to the SLO, the refused ones counted.
    """

    low: float
    high: float
    runs: int = 3
    attainment: float = 0.9
    within: float = 0.1

    def __post_init__(self) -> None:
        try:
            KneeSearch(self.low, self.high, self.within)
        except ValueError as error:
            raise BenchError(f"--sweep: {error}") from error
        if not 0 < self.attainment <= 1:
            raise BenchError(f"--attainment is a share above 0, at most 1, not {self.attainment}")
        if self.runs < 1:
            raise BenchError("--runs must be at least 1")


@dataclass
class Point:
    """One rate: the metrics of each of its runs."""

    rate: float
    runs: list[dict[str, Any]] = field(default_factory=list)

    def figure(self, key: str) -> Ratio | None:
        """Its mean over the runs and 95 % interval."""
        return over_runs(self.runs).get(key)

    @property
    def share(self) -> float:
        """Of the requests within the SLO, mean over the runs."""
        return math.fsum(run["goodput_fraction"] for run in self.runs) / len(self.runs)

    def doubtful(self, wanted: float) -> bool:
        """Whether the interval over its runs does not tell if the rate holds."""
        figure = self.figure("goodput_fraction")
        return figure is not None and figure.low < wanted <= figure.high

    def as_json(self) -> dict[str, Any]:
        figures = {key: plain(each) for key, each in over_runs(self.runs).items()}
        return {"request_rate": self.rate, "over_runs": figures, "runs": self.runs}


@dataclass
class Curve:
    """One policy (or the router as it is, `arm` None) over the rates."""

    arm: Arm | None
    asked: Range
    search: KneeSearch
    found: list[Point] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.arm.text if self.arm is not None else ""

    @property
    def points(self) -> list[Point]:
        return sorted(self.found, key=lambda point: point.rate)

    @property
    def knee(self) -> float | None:
        """The largest rate that held; None where even the lowest did not."""
        return self.search.held

    def crossings(self) -> list[float | None]:
        """Of each run alone, where its own share falls below what is wanted."""
        rates = [point.rate for point in self.points]
        return [
            crossing(
                rates,
                [point.runs[run]["goodput_fraction"] for point in self.points],
                self.asked.attainment,
            )
            for run in range(self.asked.runs)
        ]

    def crossing(self) -> Ratio | None:
        """The mean of `crossings` and its interval over runs; None where a run has none."""
        known = [each for each in self.crossings() if each is not None]
        return mean_interval(known) if len(known) == self.asked.runs else None

    @property
    def sentence(self) -> str:
        """Where the knee is."""
        low, high = self.search.bracket
        share = f"{100 * self.asked.attainment:g} % of requests within the SLO"
        if low == 0:
            return f"no knee: fewer than {share} at {high:g} requests/s already; start lower"
        if high == math.inf:
            return f"no knee up to {low:g} requests/s: at least {share} there; go higher"
        text = f"knee at {low:g} requests/s: the largest rate with {share} ({high:g} has fewer)"
        over = self.crossing()
        if over is not None and not math.isnan(over.low):
            text += f"; over {over.pairs} runs {over.value:.3g} "
            text += f"({max(0.0, over.low):.3g} to {over.high:.3g})"
        return text

    @property
    def doubt(self) -> str:
        """Which rate beside the knee its runs do not tell from one on the other side; "" where they
        do. One slow moment of the machine may have stopped the search there."""
        unsure = [
            f"{point.rate:g}"
            for point in self.points
            if point.rate in self.search.bracket and point.doubtful(self.asked.attainment)
        ]
        if not unsure:
            return ""
        return (
            f"not certain: the runs at {' and '.join(unsure)} requests/s differ too much to say "
            "whether that holds; give more --runs or --num-requests, on a quiet machine"
        )

    def as_json(self) -> dict[str, Any]:
        low, high = self.search.bracket
        over = self.crossing()
        return {
            "policy": self.name or None,
            "knee": self.knee,
            "knee_bracket": [low, high],
            "knee_over_runs": None if over is None else plain(over),
            "knee_doubt": self.doubt or None,
            "rates": [point.as_json() for point in self.points],
        }


@dataclass
class Swept:
    """All curves, the first policy's first."""

    asked: Range
    curves: list[Curve]
    remarks: list[str] = field(default_factory=list)

    def ratio(self, other: int) -> Ratio | None:
        """The first policy's knee to another one's, paired by runs; above 1: it carries more."""
        pairs = zip(self.curves[0].crossings(), self.curves[other].crossings(), strict=True)
        known = [(ours, theirs) for ours, theirs in pairs if ours and theirs]
        if len(known) < self.asked.runs:
            return None
        return paired_ratio([ours for ours, _ in known], [theirs for _, theirs in known])

    def as_json(self) -> dict[str, Any]:
        ratios = {}
        for number in range(1, len(self.curves)):
            found = self.ratio(number)
            pair = f"{self.curves[0].name} / {self.curves[number].name}"
            ratios[pair] = None if found is None else plain(found)
        return {
            "range": asdict(self.asked),
            "curves": [curve.as_json() for curve in self.curves],
            "knee_ratios": ratios,
        }
