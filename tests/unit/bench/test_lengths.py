"""Lengths as people send them: the shape of the traces that they stand for, and scaling."""

import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.shared.kinds import KINDS, USERS, Lengths, draw, of_trace, scaled
from toolkit.bench.errors import BenchError
from toolkit.bench.traces import TraceRow


def test_kinds_have_their_medians_and_long_tails() -> None:
    found = draw(20_000, 1)
    for kind in KINDS:
        own = [each for each in found if each.user.startswith(kind.name)]
        assert len(own) / len(found) == pytest.approx(kind.share, abs=0.02)
        assert statistics.median(e.prompt for e in own) == pytest.approx(kind.prompt[0], rel=0.06)
        assert statistics.median(e.answer for e in own) == pytest.approx(kind.answer[0], rel=0.08)
        assert len({each.user for each in own}) == USERS
    prompts = sorted(each.prompt for each in found)
    assert prompts[-200] > 8 * statistics.median(prompts), "1 % are much longer"
    assert draw(50, 1) == draw(50, 1) != draw(50, 2)


@given(st.integers(0, 99), st.floats(40, 400), st.floats(20, 200))
def test_scaling_keeps_the_shape(seed: int, prompt: float, answer: float) -> None:
    found = draw(200, seed)
    made = scaled(found, prompt, answer, (10**6, 10**6))
    assert statistics.mean(e.prompt for e in made) == pytest.approx(prompt, rel=0.1)
    assert statistics.mean(e.answer for e in made) == pytest.approx(answer, rel=0.1)
    assert [e.user for e in made] == [e.user for e in found]
    by_prompt = sorted(range(200), key=lambda i: found[i].prompt)
    assert all(made[a].prompt <= made[b].prompt for a, b in pairwise(by_prompt))
    cut = scaled(found, prompt, answer, (50, 9))
    assert max(e.prompt for e in cut) <= 50
    assert all(2 <= e.answer <= 9 for e in cut)


def test_wrong_scales_are_refused() -> None:
    for lengths, prompt in (([], 10.0), ([Lengths(5, 5)], 0.0)):
        with pytest.raises(BenchError, match="2 tokens or more"):
            scaled(lengths, prompt, 10.0, (100, 100))


def test_a_trace_gives_consecutive_requests_and_begins_again() -> None:
    rows = [TraceRow(n, n + 100) for n in range(1, 8)]
    found = of_trace(rows, 10, 3)
    prompts = [each.prompt for each in found]
    assert len(found) == 10
    assert all(b == a % 7 + 1 for a, b in pairwise(prompts))
    assert all(each.answer == each.prompt + 100 and not each.user for each in found)
