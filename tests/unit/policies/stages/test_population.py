"""Who decodes at the same time, by length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies.stages.population import doubling, in_flight, of_answers, of_live
from toolkit.policies.stages.qoe import Qoe

ANSWERS = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 300)), min_size=1, max_size=12)


def test_buckets_double_up_to_the_longest() -> None:
    assert doubling(1) == [1]
    assert doubling(5) == [1, 2, 4, 8]
    assert doubling(8) == [1, 2, 4, 8]


@given(ANSWERS, st.floats(0.5, 100))
def test_it_is_the_mean_over_all_steps_of_all_answers(
    answers: list[tuple[int, int]], flying: float
) -> None:
    """Against a count, step by step: after its t-th token a request is I + t long."""
    population = of_answers(answers, flying)
    bounds = list(population.bounds)
    share = flying / sum(output for _, output in answers)
    want = [[0.0] * 6 for _ in bounds]
    for prompt, output in answers:
        for length in range(prompt + 1, prompt + output + 1):
            at = next(k for k, bound in enumerate(bounds) if length <= bound)
            for column, value in enumerate((1, prompt, prompt**2, length)):
                want[at][column] += value * share
            want[at][4] = max(want[at][4], length)
        for k, bound in enumerate(bounds):
            want[k][5] += share * (prompt <= bound < prompt + output)
    columns = (
        population.requests,
        population.prompt,
        population.prompt_squares,
        population.kv,
        population.longest,
    )
    for column, found in enumerate((*columns, population.crossing)):
        assert found.tolist() == pytest.approx([row[column] for row in want])
    assert population.in_flight == pytest.approx(flying)


def test_live_requests_are_counted_where_they_are() -> None:
    population = of_live([(3, 4), (3, 5), (1, 7)])
    assert population.bounds == (1, 2, 4, 8)
    assert population.requests.tolist() == [0, 0, 1, 2]
    assert population.kv.tolist() == [0, 0, 4, 12]
    assert population.longest.tolist() == [0, 0, 4, 7]
    assert population.crossing[2] == pytest.approx(3 / 6)  # all three within 2..8, below 4 at first


def test_live_and_recorded_requests_are_much_the_same_crowd() -> None:
    """The same answers, seen at every length they have on their way."""
    answers = [(10 + i % 90, 40 + i % 170) for i in range(60)]
    live = [(i, i + t) for i, output in answers for t in range(1, output + 1)]
    one, two = of_answers(answers, len(live)), of_live(live)
    assert two.requests.tolist() == pytest.approx(one.requests.tolist())
    at = one.bounds.index(128)
    assert two.crossing[at] == pytest.approx(one.crossing[at], rel=0.35)


def test_nobody_is_an_error() -> None:
    with pytest.raises(ValueError, match="none"):
        of_live([])
    with pytest.raises(ValueError, match="these lengths have none"):
        of_answers([(5, 0)], 3)
    with pytest.raises(ValueError, match="0 are none"):
        of_answers([(5, 5)], 0)
    with pytest.raises(ValueError, match="fewer than 0"):
        of_answers([(-5, 5)], 1)


def test_requests_in_flight_by_littles_law() -> None:
    qoe = Qoe((0.01, 0.001, 0, 0, 0))
    # N = rate x output x (0.01 + 0.001 N / 2)
    found = in_flight([(100, 50)], 10.0, 2, qoe)
    assert found == pytest.approx(10 * 50 * (0.01 + 0.001 * found / 2))
    with pytest.raises(ValueError, match=r"cannot keep up with 100 requests/s.*at most 40"):
        in_flight([(100, 50)], 100.0, 2, qoe)
