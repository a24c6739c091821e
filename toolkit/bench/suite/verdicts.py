"""Whether a system pays: on, off or undecided, from paired rounds. Pure.

Every round of every arm plays the same requests. The system is compared with that alternative which
did best, whichever it was: the best of several is a little too good by chance, which is the
system's loss and not its gain.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from toolkit.bench.class_ratios import CLASSES
from toolkit.bench.stats import Ratio, paired_ratio

if TYPE_CHECKING:
    from toolkit.bench.suite.question import Question, SuiteArm, SuiteMetric

Answer = Literal["on", "off", "undecided"]
Rounds = Mapping[int, Mapping[str, Any]]
"""The metrics of an arm's rounds, by the number of the round."""
PER_START = 2
"""Rounds that each arm plays while its variant is up. Arms of one variant take turns in a start, so
that each round is a sample of their ratio. Of two variants the rounds of a start are one sample,
however many they are: whatever was peculiar to the start is in all of them."""
LEAST_PAIRS = 3
EARLY_SHARE = 0.25
"""Before the end an interval is wider by this share of its width (in logarithms): it is looked at
after every block, and one of many looks is lucky."""
NONE: Mapping[str, str] = {}
SMALL = 0.02
"""A difference that is surely smaller than this is none, for better or worse."""


@dataclass(frozen=True, slots=True)
class SuiteVerdict:
    """`against`: the best alternative. `ratio`: ours / its, in the metric that decides; `price`: in
    the other one. None where there is no such pair. `settled`: more rounds would change nothing."""

    question: Question
    answer: Answer
    why: str
    against: str = ""
    ratio: Ratio | None = None
    price: Ratio | None = None
    settled: bool = False

    @property
    def pairs(self) -> int:
        return 0 if self.ratio is None else self.ratio.pairs


def value(metric: SuiteMetric, figures: Mapping[str, Any]) -> float | None:
    """The metric of one round; None where it has none, or none above 0."""
    found = figures.get(CLASSES, {}).get(metric.klass, {}) if metric.klass else figures
    number = found.get(metric.key)
    return float(number) if number is not None and math.isfinite(number) and number > 0 else None


def judge(
    question: Question,
    played: Mapping[str, Rounds],
    early: bool = False,
    per_start: int = PER_START,
    stopped: Mapping[str, str] = NONE,
) -> SuiteVerdict:
    """`played`: by the arms' names. `early`: more rounds could follow. `per_start`: rounds that
    share a start of the workers. `stopped`: by variant, why it does not run here.

    An alternative that does not run may be the strongest one: without it nothing is *on*. What
    loses to another is *off* all the same.
    """
    with_it = [arm for arm in question.with_it if arm.variant not in stopped]
    missing = [arm for arm in question.others if arm.variant in stopped]
    if not with_it:
        why = f"{question.ours.name} did not run: {stopped[question.ours.variant]}"
        return SuiteVerdict(question, "undecided", why, settled=True)
    pairs = [
        found
        for arm in with_it
        if (found := _hardest(question, arm, played, per_start)) is not None
    ]
    without = "; ".join(f"{arm.name} did not run: {stopped[arm.variant]}" for arm in missing)
    over = len(missing) == len(question.others)  # nobody is left to play against
    if not pairs:
        why = without or "nothing was measured"
        return SuiteVerdict(question, "undecided", why, settled=over)
    ours, best, ratio = pairs[0]
    for other in pairs[1:]:
        if _worse(ratio, other[2], question.metric):
            ours, best, ratio = other
    together = _together(ours, best, per_start)
    price = _paired(question.price, played[ours.name], played[best.name], together)
    # Of several arms with the system the best is a little too good by chance, as of many looks.
    answer, why = _answer(question.metric, ratio, early or len(pairs) > 1)
    if ours is not question.ours:
        why = f"{ours.name}: {why}"
    if answer == "on" and missing:
        why = f"the strongest alternative may be what did not run. {without}. Of the others: {why}"
        return SuiteVerdict(question, "undecided", why, best.name, ratio, price, settled=True)
    settled = over or answer != "undecided"
    return SuiteVerdict(question, answer, why, best.name, ratio, price, settled)


def _hardest(
    question: Question, ours: SuiteArm, played: Mapping[str, Rounds], per_start: int
) -> tuple[SuiteArm, SuiteArm, Ratio] | None:
    """An arm with the system, that alternative which did best against it, and their ratio."""
    best, ratio = None, None
    for arm in question.others:
        together = _together(ours, arm, per_start)
        rounds = played.get(ours.name, {}), played.get(arm.name, {})
        found = _paired(question.metric, *rounds, together)
        if found is not None and (ratio is None or _worse(found, ratio, question.metric)):
            best, ratio = arm, found
    return None if best is None or ratio is None else (ours, best, ratio)


def _together(ours: SuiteArm, arm: SuiteArm, per_start: int) -> int:
    """Rounds that are one sample of the system's ratio to this alternative."""
    return 1 if arm.variant == ours.variant else per_start


def _paired(metric: SuiteMetric, ours: Rounds, other: Rounds, together: int) -> Ratio | None:
    """`together`: how many rounds in a row are one sample."""
    samples: dict[int, list[tuple[float, float]]] = {}
    for number in sorted(set(ours) & set(other)):
        mine, theirs = value(metric, ours[number]), value(metric, other[number])
        if mine is not None and theirs is not None:
            samples.setdefault(number // together, []).append((mine, theirs))
    means = [tuple(map(statistics.geometric_mean, zip(*s, strict=True))) for s in samples.values()]
    return paired_ratio(*map(list, zip(*means, strict=True))) if means else None


def _worse(one: Ratio, other: Ratio, metric: SuiteMetric) -> bool:
    """Whether the first ratio is worse for ours."""
    return one.value > other.value if metric.lower_is_better else one.value < other.value


def _answer(metric: SuiteMetric, ratio: Ratio, early: bool) -> tuple[Answer, str]:
    if ratio.pairs < LEAST_PAIRS:
        return "undecided", f"{ratio.pairs} pairs say nothing yet"
    low, high = ratio.low, ratio.high
    if early:
        wider = EARLY_SHARE * (math.log(high) - math.log(low))
        low, high = low * math.exp(-wider), high * math.exp(wider)
    if not metric.lower_is_better:
        low, high = 1 / high, 1 / low
    said = f"{metric.title} {shown(ratio)} times"
    if low > 1 - SMALL and high < 1 + SMALL:
        return "off", f"no difference of {100 * SMALL:.0f} %: {said}"
    if high < 1:
        return "on", said
    if low > 1:
        return "off", f"it loses: {said}"
    return "undecided", said


def shown(ratio: Ratio) -> str:
    """With its interval."""
    if math.isnan(ratio.low):
        return f"{ratio.value:.2f}"
    return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def price_text(verdict: SuiteVerdict) -> str:
    """The other metric of the question; empty where there is none."""
    if verdict.price is None:
        return ""
    return f"{verdict.question.price.title} {shown(verdict.price)} times"


def median(metric: SuiteMetric, rounds: Rounds) -> float | None:
    """Over the rounds that have it."""
    found = [each for figures in rounds.values() if (each := value(metric, figures)) is not None]
    return statistics.median(found) if found else None


def all_decided(verdicts: Sequence[SuiteVerdict]) -> bool:
    return all(verdict.settled for verdict in verdicts)
