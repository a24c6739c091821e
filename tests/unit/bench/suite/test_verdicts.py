"""On, off or undecided, from rounds that are made up: what the intervals allow, and no more."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from toolkit.bench.class_ratios import CLASSES
from toolkit.bench.suite.question import (
    BE_E2E,
    E2E,
    LS_TTFT,
    THROUGHPUT,
    TTFT,
    Question,
    SuiteArm,
    SuiteMetric,
)
from toolkit.bench.suite.verdicts import SMALL, judge, value

OURS, ONE, TWO = (SuiteArm(name, "base", {}) for name in ("ours", "one", "two"))


def question(metric: SuiteMetric = E2E) -> Question:
    return Question("moves", OURS, (ONE, TWO), metric, TTFT, {}, {})


def rounds(key: str, *values: float) -> dict[int, dict[str, Any]]:
    return {number: {key: value, TTFT.key: 2 * value} for number, value in enumerate(values)}


def played(ours: list[float], one: list[float], two: list[float], key: str = E2E.key) -> Any:
    arms = {"ours": ours, "one": one, "two": two}
    return {name: rounds(key, *values) for name, values in arms.items()}


def test_it_is_compared_with_the_best_of_the_others() -> None:
    worse = played([80, 81, 79], [100, 101, 99], [70, 71, 69])
    found = judge(question(), worse)
    assert (found.answer, found.against, found.pairs) == ("off", "two", 3)
    assert "it loses" in found.why
    better = judge(question(), played([80, 81, 79], [100, 101, 99], [90, 91, 89]))
    assert (better.answer, better.against) == ("on", "two")
    assert better.price is not None and better.price.value == pytest.approx(80 / 90, rel=1e-3)


def test_rounds_of_two_variants_that_share_their_starts_are_one_sample() -> None:
    """Each start of the other variant was slow or fast as a whole: eight rounds say what four
    starts say, and no more."""
    elsewhere = replace(question(), others=(SuiteArm("one", "other", {}),))
    ours = [100.0] * 8
    one = [120.0, 121.0, 104.0, 103.0, 118.0, 119.0, 101.0, 102.0]
    figures = {"ours": rounds(E2E.key, *ours), "one": rounds(E2E.key, *one)}
    apart, together = judge(elsewhere, figures), judge(replace(question(), others=(ONE,)), figures)
    assert (apart.pairs, together.pairs) == (4, 8)
    assert apart.ratio is not None and together.ratio is not None
    assert apart.ratio.value == pytest.approx(together.ratio.value)
    assert apart.ratio.high > together.ratio.high
    assert (apart.answer, together.answer) == ("undecided", "on")


def test_more_is_better_where_it_is() -> None:
    figures = played([120, 121, 119], [100, 101, 99], [110, 111, 109], THROUGHPUT.key)
    found = judge(question(THROUGHPUT), figures)
    assert (found.answer, found.against) == ("on", "two")
    figures = played([100, 101, 99], [120, 121, 119], [90, 91, 89], THROUGHPUT.key)
    assert judge(question(THROUGHPUT), figures).answer == "off"


def test_what_the_interval_leaves_open_is_undecided() -> None:
    noisy = played([80, 120, 90, 115], [100, 95, 105, 100], [101, 96, 106, 101])
    assert judge(question(), noisy).answer == "undecided"
    assert judge(question(), played([80, 81], [100, 101], [90, 91])).answer == "undecided"
    assert judge(question(), {}).why == "nothing was measured"


def test_no_difference_worth_speaking_of_is_off() -> None:
    gain = played([99.0, 99.1, 98.9, 99.0], [100.0, 100.1, 99.9, 100.0], [101.0] * 4)
    assert judge(question(), gain).answer == "off", "a hundredth, however surely"
    same = played([100, 101, 99, 100], [100.2, 100.9, 99.1, 100], [100.1, 101.1, 98.9, 100.1])
    found = judge(question(), same)
    assert found.answer == "off" and f"{100 * SMALL:.0f} %" in found.why


def test_a_look_before_the_end_has_to_be_surer() -> None:
    close = played([96.5, 98.0, 95.5, 98.5], [100] * 4, [101] * 4)
    assert judge(question(), close).answer == "on"
    assert judge(question(), close, early=True).answer == "undecided"


STOPPED = {"other": "it died"}


def away(arm: SuiteArm) -> SuiteArm:
    return replace(arm, variant="other")


def test_nothing_is_on_while_an_alternative_does_not_run() -> None:
    asking = replace(question(), others=(ONE, away(TWO)))
    better = played([80, 81, 79], [100, 101, 99], [])
    assert judge(asking, better).answer == "on"
    found = judge(asking, better, stopped=STOPPED)
    assert (found.answer, found.settled, found.against) == ("undecided", True, "one")
    assert "strongest alternative" in found.why and "two did not run: it died" in found.why
    assert found.ratio is not None and found.price is not None
    worse = judge(asking, played([120, 121, 119], [100, 101, 99], []), stopped=STOPPED)
    assert worse.answer == "off", "it loses to one already"
    noisy = played([80, 120, 90, 115], [100, 95, 105, 100], [])
    assert not judge(asking, noisy, stopped=STOPPED).settled, "it may lose yet"
    both = replace(question(), others=(away(ONE), away(TWO)))
    none = judge(both, better, stopped=STOPPED)
    assert (none.answer, none.settled) == ("undecided", True)


def test_what_does_not_run_itself_is_no_answer() -> None:
    asking = replace(question(), ours=away(OURS))
    found = judge(asking, played([80, 81, 79], [100, 101, 99], [90, 91, 89]), stopped=STOPPED)
    assert (found.answer, found.settled) == ("undecided", True)
    assert found.why == "ours did not run: it died"


def test_the_system_together_with_an_alternative_counts_as_the_system() -> None:
    both = SuiteArm("both", "base", {})
    asking = replace(question(), also=(both,))
    figures = {
        **played([98, 99, 97], [100, 101, 99], [90, 91, 89]),
        "both": rounds(E2E.key, 80, 81, 79),
    }
    found = judge(asking, figures)
    assert (found.answer, found.against) == ("on", "two") and found.why.startswith("both: ")
    assert judge(replace(asking, also=()), figures).answer == "off"
    gone = replace(asking, also=(replace(both, variant="other"),))
    assert judge(gone, figures, stopped=STOPPED).answer == "off"


def test_the_best_of_two_arms_with_the_system_has_to_be_surer() -> None:
    close = played([96.5, 98.0, 95.5, 98.5], [100] * 4, [101] * 4)
    assert judge(question(), close).answer == "on"
    two = replace(question(), also=(SuiteArm("both", "base", {}),))
    assert judge(two, {**close, "both": rounds(E2E.key, *[110] * 4)}).answer == "undecided"


def test_only_rounds_that_both_have_played_count() -> None:
    figures = played([80, 81, 79], [100, 101, 99], [])
    figures["one"][7] = {E2E.key: 1.0}
    assert judge(question(), figures).pairs == 3


def test_figures_of_a_class_are_its_own() -> None:
    figures = {CLASSES: {"latency_sensitive": {"mean_ttft_ms": 9.0}}, "mean_ttft_ms": 50.0}
    assert value(LS_TTFT, figures) == 9.0 and value(BE_E2E, figures) is None
    assert value(TTFT, figures) == 50.0 and value(E2E, {E2E.key: 0}) is None


def test_a_system_that_does_nothing_is_seldom_said_to_pay() -> None:
    """Four rounds, the best of two alternatives, a thousand times: 2.5 % would be the rate of one
    comparison, and the best of two is harder to beat."""
    source = random.Random(1)
    on = 0
    for _ in range(1000):
        drawn = [[100 * source.lognormvariate(0, 0.05) for _ in range(4)] for _ in range(3)]
        ours, one, two = drawn
        on += judge(question(), played(ours, one, two)).answer == "on"
    assert on <= 25
