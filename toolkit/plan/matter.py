"""Which settings matter: the chosen ones against their neighbours, on all seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from toolkit.bench.stats import Ratio, paired_ratio
from toolkit.plan.candidate import Candidate
from toolkit.plan.errors import Spent
from toolkit.plan.knob import Knob, shown
from toolkit.plan.objective import STEP, Figures, PlanSlo, better, rank, share
from toolkit.plan.search import Search

SAME = 0.01
"""Ratios within this of 1 are alike."""
VAGUE = 0.05
"""An interval that includes 1 and reaches farther from it than this says nothing."""
MOST = 4
"""Other values of a knob that are played."""

Verdict = Literal["matters", "does not matter", "unclear"]


@dataclass(frozen=True)
class Other:
    """A value that was not chosen. `latency`, `goodput`: the plan with it divided by the plan as it
    is, in time to the last token and in good requests a second (None where one of them is 0)."""

    value: Any
    candidate: Candidate
    figures: Figures
    latency: Ratio
    goodput: Ratio | None

    def to_json(self) -> dict[str, Any]:
        found = {"value": shown(self.value)} | self.latency.keys("latency")
        return found | (self.goodput.keys("goodput") if self.goodput else {})


@dataclass(frozen=True)
class Effect:
    """What a knob does around the plan. `best`: the value with the best figures, chosen or not."""

    name: str
    chosen: Any
    best: Any
    others: tuple[Other, ...]
    verdict: Verdict

    @property
    def latency(self) -> tuple[float, float]:
        """Least and greatest ratio among the other values."""
        values = [other.latency.value for other in self.others]
        return min(values), max(values)

    @property
    def goodput(self) -> tuple[float, float]:
        """The same; 0 where nothing is good any more, NaN where nothing was."""
        values = [other.goodput.value if other.goodput else math.nan for other in self.others]
        return min(values), max(values)

    def to_json(self) -> dict[str, Any]:
        return {
            "knob": self.name,
            "chosen": shown(self.chosen),
            "best": shown(self.best),
            "verdict": self.verdict,
            "others": [other.to_json() for other in self.others],
        }


def effects(
    search: Search, plan: Candidate, knobs: Sequence[Knob], seeds: Sequence[int]
) -> tuple[list[Effect], list[str]]:
    """Each knob that applies to the plan, one at a time; and those that no simulation was left for.

    All requests of the seeds are played, the same for every value, so ratios are paired.
    """
    trials = search.trials
    figures = trials.all(plan, seeds)
    found, left = [], []
    for knob in knobs:
        if not knob.applies(plan.document):
            continue
        try:
            others = _others(search, plan, figures, knob, seeds)
        except Spent:
            left.append(knob.name)
            continue
        if others:
            found.append(_effect(knob, plan, figures, others, trials.slo))
    return found, left


def improvement(found: Sequence[Effect], figures: Figures, slo: PlanSlo) -> Candidate | None:
    """The best neighbour that is better than the plan beyond doubt, if there is one."""
    sure = [
        other
        for effect in found
        for other in effect.others
        if better(rank(other.figures, slo), rank(figures, slo)) and _differs(other)
    ]
    best = min(sure, key=lambda other: rank(other.figures, slo), default=None)
    return None if best is None else best.candidate


def _others(
    search: Search, plan: Candidate, figures: Figures, knob: Knob, seeds: Sequence[int]
) -> tuple[Other, ...]:
    made = []
    for value in knob.others(plan.document, MOST):
        candidate = search.candidate(knob.write(plan.document, value))
        if candidate is None:
            continue
        theirs = search.trials.all(candidate, seeds)
        latency = _ratio(theirs, figures, "e2e_mean")
        assert latency is not None
        goodput = _ratio(theirs, figures, search.trials.slo.goodput)
        made.append(Other(value, candidate, theirs, latency, goodput))
    return tuple(made)


def _ratio(ours: Figures, other: Figures, name: str) -> Ratio | None:
    both = [[each[name] for each in figures] for figures in (ours, other)]
    return paired_ratio(*both) if min(*both[0], *both[1]) > 0 else None


def _effect(
    knob: Knob, plan: Candidate, figures: Figures, others: tuple[Other, ...], slo: PlanSlo
) -> Effect:
    chosen = knob.read(plan.document)
    best, reached = chosen, rank(figures, slo)
    for other in others:
        now = rank(other.figures, slo)
        if now < reached:
            best, reached = other.value, now
    lost = slo.given and any(
        abs(share(o.figures, slo) - share(figures, slo)) > STEP for o in others
    )
    ratios = [o.latency for o in others]
    if slo.given:
        ratios += [o.goodput for o in others if o.goodput is not None]
        if any(o.goodput is None for o in others) and lost:
            return Effect(knob.name, chosen, best, others, "matters")
    return Effect(knob.name, chosen, best, others, _verdict(ratios))


def _verdict(ratios: Sequence[Ratio]) -> Verdict:
    if any(_is_apart(ratio) for ratio in ratios):
        return "matters"
    return "unclear" if any(_is_vague(ratio) for ratio in ratios) else "does not matter"


def _differs(other: Other) -> bool:
    return any(_is_apart(ratio) for ratio in (other.latency, other.goodput) if ratio is not None)


def _is_apart(ratio: Ratio) -> bool:
    """Beyond doubt, and by more than what is alike. One pair has no interval: its value counts."""
    if abs(ratio.value - 1) <= SAME:
        return False
    return ratio.pairs == 1 or not ratio.low <= 1 <= ratio.high


def _is_vague(ratio: Ratio) -> bool:
    if abs(ratio.value - 1) <= SAME or ratio.pairs == 1:
        return False
    return max(abs(ratio.low - 1), abs(ratio.high - 1)) > VAGUE
