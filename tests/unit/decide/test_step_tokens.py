"""How many tokens a rank's decode steps give a request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.decide.ranks import RECENT_STEPS, StepTokens

told = st.lists(st.tuples(st.integers(0, 50), st.floats(1.0, 6.0)), min_size=1, max_size=30)


@given(told)
def test_whole_tokens_are_counted_and_no_part_is_lost(steps: list[tuple[int, float]]) -> None:
    found = StepTokens()
    given_ = sum(found.stepped(count, tokens) for count, tokens in steps)
    wanted = sum(count * tokens for count, tokens in steps)
    assert wanted - 1 - 1e-6 <= given_ <= wanted + 1e-6


def test_a_rank_without_drafts_gives_a_token_a_step() -> None:
    found = StepTokens()
    assert [found.stepped(n, 1.0) for n in (1, 7, 0, 250)] == [1, 7, 0, 250]
    assert found.mean == 1.0


def test_the_mean_is_that_of_the_last_steps() -> None:
    found = StepTokens()
    found.stepped(10, 2.0)
    assert found.mean == 2.0, "the first that was heard"
    for _ in range(8):
        found.stepped(RECENT_STEPS // 2, 3.0)
    assert found.mean == pytest.approx(3.0, abs=0.01)
    found.stepped(1, 1.0)
    assert found.mean > 2.9, "one step is little news"
    found.stepped(5, 0.2)  # less than a token a step is no found
    assert found.mean >= 1.0
