"""CascadeInfer's model of a batch, and fits of which no stage can be planned."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies.stages.qoe import Qoe, Sums
from toolkit.profile_folder.schema import Latency, LinearFit

QOE = Qoe((1.0, 10.0, 100.0, 1000.0, 10_000.0))


def _fit(*coefficients: float) -> LinearFit:
    terms = ("1", "requests", "prompt tokens", "prompt tokens^2", "kv tokens")
    return LinearFit(
        terms=terms,
        coefficients=coefficients,
        units=("s",) * 5,
        held_out_error=0.1,
        constant_error=0.6,
        samples=100,
    )


def test_the_five_terms_are_summed_and_taken_once_for_each_request() -> None:
    # n = 2, sum I = 5, sum I^2 = 13, sum L = 11
    q = 1 + 20 + 500 + 13_000 + 110_000
    assert QOE.token_s(Sums.of([(2, 4), (3, 7)])) == q
    assert QOE.batch([(2, 4), (3, 7)]) == 2 * q
    assert QOE.batch([]) == 0


def test_mixed_lengths_cost_what_the_longest_is_above_the_mean() -> None:
    qoe = Qoe((0, 0, 0, 0, 1e-3), mixed=1e-3)
    even, mixed = qoe.batch([(0, 50), (0, 50)]), qoe.batch([(0, 10), (0, 90)])
    assert even == pytest.approx(2 * 0.1)
    assert mixed == pytest.approx(2 * (0.1 + 0.04))
    most = Qoe((0, 0, 0, 0, 1e-3), mixed=1.0)
    assert most.batch([(0, 10), (0, 90)]) == pytest.approx(2 * 0.1 * 2.1)
    assert qoe.with_mixed(0.0).batch([(0, 10), (0, 90)]) == pytest.approx(even)


def test_instances_that_share_a_batch_have_each_their_part_of_it() -> None:
    shared = Sums.of([(2, 4), (3, 7)]).over(2)
    assert shared == Sums(1, 2.5, 6.5, 5.5, 7)


BATCHES = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 900)), max_size=8)


@given(
    BATCHES,
    st.tuples(st.integers(0, 500), st.integers(1, 900)),
    st.tuples(*[st.floats(0, 1)] * 5),
)
def test_one_request_more_never_makes_a_batch_faster(
    batch: list[tuple[int, int]], one: tuple[int, int], terms: tuple[float, ...]
) -> None:
    qoe = Qoe(terms)
    assert qoe.batch([*batch, one]) >= qoe.batch(batch)


def test_a_profile_has_both_fits() -> None:
    latency = Latency(qoe=_fit(1, 2, 3, 4, 5), qoe_published=_fit(5, 4, 3, 2, 1))
    assert Qoe.of_profile(latency).coefficients == (1, 2, 3, 4, 5)
    assert Qoe.of_profile(latency, published=True, mixed=0.5) == Qoe((5, 4, 3, 2, 1), 0.5)


def test_a_negative_term_is_refused_by_name_and_says_how_to_mend_it() -> None:
    with pytest.raises(ValueError, match=r"D_3 is -2e-06, below zero.*Take `qoe`"):
        Qoe.of_profile(Latency(qoe_published=_fit(1, 1, 1, -2e-6, 1)), published=True)


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ((1.0, 2.0), "5 coefficients, not 2"),
        ((1.0, 0, 0, 0, float("nan")), "D_4 is nan"),
    ],
)
def test_terms_that_cannot_be(terms: tuple[float, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Qoe(terms)


def test_a_profile_without_a_fit_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="no QoE fit: no steps were logged; make one with more"):
        Qoe.of_profile(Latency(note="no steps were logged"))


def test_whether_lengths_matter() -> None:
    assert not Qoe((1, 1, 0, 0, 0)).minds_lengths
    assert Qoe((1, 1, 0, 0, 1e-9)).minds_lengths
    assert Qoe((1, 1, 0, 0, 0), mixed=1e-9).minds_lengths
