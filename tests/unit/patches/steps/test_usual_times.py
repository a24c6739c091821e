"""What a forward should take, by what those before it took."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches.steps.usual_times import UsualTimes

SECONDS = st.floats(1e-4, 10.0)


@given(steps=st.lists(SECONDS, min_size=1, max_size=50))
def test_a_step_takes_at_least_as_long_as_the_last_and_at_most_as_the_slowest(
    steps: list[float],
) -> None:
    usual = UsualTimes(shapes=False)
    for seconds in steps:
        usual.took(True, 4, seconds)
    assert steps[-1] <= usual.expected(True, 4) <= max(steps)
    assert usual.expected(True, 1) == usual.expected(True, 4) == usual.step_s


def test_a_longer_prefill_than_any_takes_its_time_by_the_token() -> None:
    usual = UsualTimes(shapes=False)
    usual.took(False, 20, 0.5)  # mostly what every forward takes, however short
    usual.took(False, 1000, 1.0)
    assert usual.expected(False, 8) == 0.5
    assert usual.expected(False, 100) == 1.0
    assert usual.expected(False, 16_000) == pytest.approx(16.0)
    assert usual.expected(True, 1) == 0.0, "decode has not run"


def test_a_slow_one_is_forgotten_in_time() -> None:
    usual = UsualTimes(shapes=False)
    usual.took(True, 1, 10.0)
    for _ in range(500):
        usual.took(True, 1, 0.01)
    assert usual.expected(True, 1) < 0.02


def test_on_a_gpu_the_first_of_a_size_is_not_known_and_teaches_nothing() -> None:
    usual = UsualTimes(shapes=True)
    usual.took(False, 100, 400.0)  # it compiled kernels
    assert usual.expected(False, 100) == 0.0
    usual.took(False, 100, 1.0)
    assert usual.expected(False, 100) == 1.0
    assert usual.expected(False, 4096) == 0.0
    usual.took(False, 4096, 400.0)
    assert usual.expected(False, 4096) == pytest.approx(64.0)
