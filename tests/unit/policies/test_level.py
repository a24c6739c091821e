"""Level's score against its definition, and what it does where BR-0 ratchets up."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.policies.closed_loop import ClosedLoop, conversation
from toolkit.policies import Load, RequestView, WorkerView
from toolkit.policies.br0 import Br0Policy
from toolkit.policies.level import CEILING, GapNow, LevelPolicy
from toolkit.policies.rounds.balance_route import BalanceRoute

tokens = st.integers(0, 5000)
rank_loads = st.lists(tokens, min_size=2, max_size=8)


def score(loads: list[int], silent: list[bool], g: int, size: int) -> float:
    """The formula as the docstring has it."""
    others = [load for k, load in enumerate(loads) if k != g and not silent[k]]
    gap = sum(others) / len(others) - loads[g] if others else 0.0
    margin = max(0, max(others) - loads[g]) if others else 0
    return abs(gap) - abs(gap - size) - CEILING * max(0, size - margin)


@settings(deadline=None)
@given(rank_loads, st.lists(st.tuples(st.integers(0, 7), tokens), max_size=6), st.data())
def test_f_is_the_formula_whatever_was_added_before(
    loads: Any, added: Any, data: st.DataObject
) -> None:
    count = len(loads)
    silent = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    envelope = GapNow([float(load) for load in loads], silent)
    for g, size in added:
        envelope.add(g % count, size)
        loads[g % count] += size
    sizes = data.draw(st.lists(tokens, min_size=1, max_size=5))
    for g in range(count):
        expected = [score(loads, silent, g, size) for size in sizes]
        assert envelope.values(g, sizes) == pytest.approx(expected)
        assert envelope.across(sizes[0])[g] == pytest.approx(expected[0])
        assert envelope.values(g, [0.0]) == [0.0]
        assert envelope.burden(g) == loads[g]
        # F is concave, so who is highest beside the peak is so everywhere.
        peak = envelope.peak(g)
        top, *beside = envelope.values(g, [peak, peak + 1, max(0.0, peak - 1)])
        assert top >= max(beside) - 1e-6


def fleet(loads: list[int | None]) -> list[WorkerView]:
    return [
        WorkerView(
            "decode",
            dp_rank=g,
            load=None if load is None else Load(1, 0, load, 0, 0),
            slots=2,
        )
        for g, load in enumerate(loads)
    ]


def first(policy: BalanceRoute, loads: list[int | None], sizes: list[int]) -> tuple[int, int]:
    """The rank that is first in a round, and the size that it takes."""
    made = policy.assign(fleet(loads), [RequestView(prompt_tokens=size) for size in sizes])
    return made[0].worker, sizes[made[0].request]


def test_a_hole_is_filled_to_the_mean_and_not_to_the_heaviest() -> None:
    # The mean of the others is 550 above it, the heaviest 900.
    loads, waiting = [100, 300, 1000], [880, 540, 20]
    assert first(LevelPolicy(s_greedy=0), loads, waiting) == (0, 540)  # type: ignore[arg-type]
    assert first(Br0Policy(s_greedy=0), loads, waiting) == (0, 880)  # type: ignore[arg-type]


def test_a_rank_that_says_nothing_is_no_level_to_reach() -> None:
    assert first(LevelPolicy(s_greedy=0), [500, 300, None], [190, 400]) == (1, 190)


@pytest.mark.parametrize("ranks", [4, 8])
def test_ranks_stay_more_level_than_under_br0(ranks: int) -> None:
    spreads = {}
    for make in (Br0Policy, LevelPolicy):
        found = []
        for seed in range(3):
            loop = ClosedLoop(make(s_greedy=0), conversation, ranks, 16, 8 * ranks, seed)
            loop.run(700, 100)
            found.append(np.mean(loop.spreads))
        spreads[make] = float(np.mean(found))
    assert spreads[LevelPolicy] < 0.85 * spreads[Br0Policy], spreads
