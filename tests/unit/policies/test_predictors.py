"""Predictors against distributions whose truth is known."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.policies import RequestView
from toolkit.policies.predictors import (
    PREDICTORS,
    ExactMatch,
    Flight,
    Learned,
    Oracle,
    PlacedPrediction,
    Predictor,
    Survival,
    make_predictor,
)
from toolkit.policies.predictors.base import LONGEST
from toolkit.policies.predictors.errors import HORIZON
from toolkit.policies.predictors.lengths import Lengths, edges

PLAIN = RequestView(prompt_tokens=100)


def learn(predictor: Predictor, request: RequestView, lengths: Iterable[int]) -> None:
    for length in lengths:
        predictor.ended(predictor.place(request), int(length), True)


def ask(
    predictor: Predictor, request: RequestView, age: int = 0, horizon: int = 80
) -> tuple[float, float, float]:
    """p_fin, mu_rem, c."""
    outlook = predictor.outlook(Flight.of(request, predictor.place(request), age), horizon)
    return (
        float(outlook.p_fin[0]),
        float(outlook.mu_rem[0]),
        float(outlook.steps(horizon)[0]),
    )


def truth(lengths: np.ndarray, age: int, horizon: int) -> tuple[float, float]:
    """p_fin and c of the sample itself."""
    left = lengths[lengths > age] - age
    return float((left <= horizon).mean()), float(np.minimum(left, horizon).mean())


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=40), st.integers(0, 11), st.integers(0, 13)
)
def test_short_lengths_are_kept_exactly(lengths: list[int], age: int, horizon: int) -> None:
    """Bins are one token wide up to 12: without a prior, the sample itself."""
    table = Lengths(1, memory=1e9)
    for length in lengths:
        table.learn([0], length, True)
    table.refresh(0, weight=1e-9, force=True)
    sample = np.array(lengths)
    if age >= sample.max():
        return
    outlook = table.outlook(Flight.of(PLAIN, PlacedPrediction(), age), horizon)
    p_fin, c = truth(sample, age, horizon)
    assert float(outlook.p_fin[0]) == pytest.approx(p_fin, abs=1e-5)
    assert float(outlook.steps(horizon)[0]) == pytest.approx(c, abs=1e-4)


@settings(deadline=None)
@given(st.integers(0, 3000), st.integers(1, 300), st.integers(0, 900), st.sampled_from([0, 700]))
def test_the_steps_left_are_the_sum_of_the_chances_to_be_there(
    age: int, horizon: int, least: int, limit: int
) -> None:
    predictor = TAUGHT.setdefault("survival", _taught("survival"))
    request = replace(PLAIN, min_new_tokens=least, max_new_tokens=limit)
    there = [1 - ask(predictor, request, age, ahead)[0] for ahead in range(horizon)]
    if limit:
        there = [1.0 if at == 0 else chance for at, chance in enumerate(there)]
    assert ask(predictor, request, age, horizon)[2] == pytest.approx(sum(there), abs=1e-6)


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, n: rng.geometric(1 / 200, n),
        lambda rng, n: np.clip(rng.lognormal(5.0, 0.8, n), 1, 20_000).astype(int),
        lambda rng, n: np.where(rng.random(n) < 0.5, 30, 600) + rng.integers(0, 20, n),
    ],
    ids=["geometric", "lognormal", "two kinds"],
)
@pytest.mark.parametrize("age", [0, 10, 45, 100, 300, 550])
def test_survival_learns_a_distribution(draw: Any, age: int) -> None:
    rng = np.random.default_rng(5)
    predictor = Survival(memory=1e9)
    learn(predictor, PLAIN, draw(rng, 6000))
    p_fin, mu_rem, c = ask(predictor, PLAIN, age)
    fresh = draw(np.random.default_rng(6), 200_000)
    wanted, steps = truth(fresh, age, 80)
    assert p_fin == pytest.approx(wanted, abs=0.06)
    assert c == pytest.approx(steps, abs=6)
    assert c == pytest.approx((1 - p_fin) * 80 + p_fin * mu_rem)
    if p_fin > 0.05:
        left = fresh[fresh > age] - age
        assert mu_rem == pytest.approx(left[left <= 80].mean(), abs=8)


@pytest.mark.parametrize("name", sorted(PREDICTORS))
@settings(deadline=None)
@given(
    age=st.integers(0, 2 * LONGEST),
    limit=st.integers(-5, LONGEST + 9),
    least=st.integers(-5, LONGEST + 9),
    horizon=st.integers(0, 200),
)
def test_outlooks_are_possible_whatever_is_asked(
    name: Any, age: int, limit: int, least: int, horizon: int
) -> None:
    predictor = TAUGHT.get(name) or TAUGHT.setdefault(name, _taught(name))
    request = replace(PLAIN, max_new_tokens=limit, min_new_tokens=least, prompt_hash=1)
    p_fin, mu_rem, c = ask(predictor, request, age, horizon)
    assert 0 <= p_fin <= 1
    assert -1e-6 <= c <= horizon + 1e-6
    assert -1e-3 <= mu_rem <= horizon + 1e-3
    if age < limit <= age + horizon:
        assert p_fin == 1, "cut off at the limit"
        assert c <= limit - age + 1e-6
    if limit > 0 and age + horizon < min(least, limit) and name != "oracle":
        assert (p_fin, c) == pytest.approx((0, horizon), abs=1e-6)


TAUGHT: dict[str, Predictor] = {}


def _taught(name: str) -> Predictor:
    predictor = make_predictor(name)
    learn(predictor, PLAIN, np.random.default_rng(0).geometric(0.01, 500))
    return predictor


def test_before_anything_is_known_the_age_says_how_long_it_may_go_on() -> None:
    young, old = ask(Survival(), PLAIN, 10)[0], ask(Survival(), PLAIN, 5000)[0]
    assert 0 < old < 0.02 < young < 1


def test_cut_off_lengths_do_not_count_as_ends() -> None:
    """Half have a limit of 16; the others go on to 100."""
    predictor = Survival()
    for _ in range(300):
        predictor.ended(PlacedPrediction(), 16, False)
        predictor.ended(PlacedPrediction(), 100, True)
    assert ask(predictor, PLAIN, 0, 50)[0] < 0.05
    assert ask(predictor, replace(PLAIN, max_new_tokens=16), 0, 50)[::2] == pytest.approx(
        (1, 16), abs=0.1
    )


def test_survival_follows_a_change() -> None:
    predictor = Survival(memory=500)
    learn(predictor, PLAIN, [400] * 5000)
    assert ask(predictor, PLAIN)[0] < 0.05
    learn(predictor, PLAIN, [40] * 1500)
    assert ask(predictor, PLAIN)[0] > 0.8


def test_a_prompt_seen_before_is_as_long_again() -> None:
    predictor = ExactMatch()
    learn(predictor, replace(PLAIN, prompt_hash=7), [30])
    learn(predictor, PLAIN, [500] * 50)
    p_fin, mu_rem, _ = ask(predictor, replace(PLAIN, prompt_hash=7), age=10)
    assert (p_fin, mu_rem) == (1, 20)
    assert ask(predictor, replace(PLAIN, prompt_hash=7), age=10, horizon=15)[0] == 0
    assert ask(predictor, replace(PLAIN, prompt_hash=8), age=10)[0] < 0.2
    assert predictor.hits == 2
    outlived = ask(predictor, replace(PLAIN, prompt_hash=7), age=30)[0]
    assert outlived == pytest.approx(ask(predictor, PLAIN, age=30)[0]), "as any other"
    limited = replace(PLAIN, prompt_hash=7, max_new_tokens=20)
    assert ask(predictor, limited, age=10)[1] == 10


def test_a_prompt_whose_answers_differ_says_nothing() -> None:
    predictor = ExactMatch()
    learn(predictor, replace(PLAIN, prompt_hash=7), [30, 300, 30, 300])
    assert predictor.place(replace(PLAIN, prompt_hash=7)).point == 0
    learn(predictor, replace(PLAIN, prompt_hash=7), [100] * 12)
    assert predictor.place(replace(PLAIN, prompt_hash=7)).point == pytest.approx(100, abs=1)


def test_the_oracle_is_right() -> None:
    oracle = Oracle(lambda request: request.prompt_tokens)
    for age in (0, 20, 99):
        left = 100 - age
        assert ask(oracle, PLAIN, age) == (float(left <= 80), min(left, 80), min(left, 80))
    assert ask(Oracle(), replace(PLAIN, max_new_tokens=40))[:2] == (1, 40)


def law(rng: np.random.Generator) -> tuple[RequestView, int]:
    """The label decides: code is short, law long. The user says nothing."""
    short = rng.random() < 0.5
    request = RequestView(
        prompt_tokens=int(rng.integers(10, 2000)),
        label="code" if short else "law",
        user=f"u{rng.integers(0, 20)}",
        max_new_tokens=1024,
    )
    return request, int(rng.normal(40, 8) if short else rng.normal(400, 60))


def habit(rng: np.random.Generator) -> tuple[RequestView, int]:
    """The user decides; labels are given at random."""
    user = int(rng.integers(0, 10))
    request = RequestView(
        prompt_tokens=200,
        label=["code", "law"][int(rng.integers(0, 2))],
        user=f"u{user}",
        max_new_tokens=1024,
    )
    return request, int(rng.normal(30 + 60 * user, 10))


Draw = Callable[[np.random.Generator], tuple[RequestView, int]]
P = TypeVar("P", bound=Predictor)


def nothing(rng: np.random.Generator) -> tuple[RequestView, int]:
    """No feature says anything."""
    request, _ = law(rng)
    return request, int(rng.geometric(1 / 150))


def judged(predictor: P, draw: Draw, count: int = 3000) -> P:
    """The predictor after a stream of requests, each judged before it is learned."""
    rng = np.random.default_rng(3)
    for _ in range(count):
        request, length = draw(rng)
        length = max(1, length)
        placed = predictor.place(request)
        age = int(rng.integers(0, length))
        outlook = predictor.outlook(Flight.of(request, placed, age), HORIZON)
        predictor.errors.judge(outlook, age, length - age)
        predictor.ended(placed, length, True)
    return predictor


@pytest.mark.parametrize(("draw", "feature"), [(law, "label"), (habit, "user")])
def test_learned_finds_the_feature_that_says_most(draw: Any, feature: str) -> None:
    learned, survival = judged(Learned(), draw), judged(Survival(), draw)
    assert learned.errors.brier < 0.75 * survival.errors.brier
    assert learned.errors.square < 0.75 * survival.errors.square
    request, _ = draw(np.random.default_rng(9))
    best = max(learned.views, key=lambda view: view.gain)
    assert feature in best.features
    assert learned.place(request).row != 0


def test_learned_is_as_good_as_survival_where_nothing_says_anything() -> None:
    learned, survival = judged(Learned(), nothing), judged(Survival(), nothing)
    assert learned.errors.brier < 1.03 * survival.errors.brier
    assert learned.errors.square < 1.03 * survival.errors.square
    assert abs(learned.errors.bias) < 3


def test_a_group_seen_for_the_first_time_predicts_what_all_do() -> None:
    learned = judged(Learned(), law)
    stranger = replace(PLAIN, label="poetry")
    assert ask(learned, stranger, 5)[0] == pytest.approx(
        float(learned.lengths.outlook(Flight.of(stranger, PlacedPrediction(), 5), 80).p_fin[0]),
        abs=0.02,
    )


@pytest.mark.slow
def test_memory_is_bounded_and_rows_in_use_stay() -> None:
    learned = Learned(rows=16)
    standing = learned.place(RequestView(label="first", user="first"))
    for number in range(3000):
        request = RequestView(prompt_tokens=number, label=f"l{number}", user=f"u{number}")
        learn(learned, request, [number % 90 + 1])
    assert len(learned._keys) <= 15
    rows = {row for _, row in standing.note}
    assert rows <= set(learned._keys.values()), "a request in flight stands on them"
    learned.ended(standing, 10, True)
    assert not any(learned._inflight)

    exact = ExactMatch(prompts=50)
    for number in range(500):
        learn(exact, replace(PLAIN, prompt_hash=number), [number + 1])
    assert len(exact) == 50
    assert exact.place(replace(PLAIN, prompt_hash=449)).point == 0
    assert exact.place(replace(PLAIN, prompt_hash=450)).point == 451


def test_with_every_row_in_use_new_groups_sit_out() -> None:
    learned = Learned(rows=4)
    placed = [learned.place(RequestView(label=f"l{n}", prompt_tokens=5)) for n in range(9)]
    assert [len(p.note) for p in placed] == [3] + 8 * [1], "one prompt length"
    for one in placed:
        learned.ended(one, 10, True)
    assert learned.lengths.seen[0] == 9


def test_bins_cover_every_length_in_order() -> None:
    assert edges()[0] == 0 and edges()[-1] == LONGEST
    assert (np.diff(edges()) >= 1).all()
    assert len(edges()) == 247, "the memory that the docstrings promise"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Survival(memory=0),
        lambda: Survival(memory=math.nan),
        lambda: ExactMatch(prompts=0),
        lambda: ExactMatch(spread=-1),
        lambda: Learned(rows=1),
        lambda: Learned(back_off=0),
        lambda: make_predictor("crystal_ball"),
    ],
)
def test_knobs_that_make_no_sense(make: Any) -> None:
    with pytest.raises(ValueError):
        make()
