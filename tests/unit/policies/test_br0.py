"""BR-0's score, its two stages, and how far they are from the best there is."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.policies.br0_cases import cases, fleet, prompts
from tests.unit.policies.brute_force import after, imbalance, optimum
from toolkit.policies import make_policy
from toolkit.policies.br0 import Br0Policy, MarginNow
from toolkit.policies.brh import BrHPolicy
from toolkit.policies.published.br0 import PaperBr0Policy
from toolkit.policies.rounds.assign import Assigner
from toolkit.policies.rounds.pooling import PooledPolicy

tokens = st.integers(0, 5000)
rank_loads = st.lists(tokens, min_size=2, max_size=8)


def score(loads: list[int], g: int, size: int) -> float:
    """The formula as the paper has it."""
    return size - len(loads) * max(0, size - (max(loads) - loads[g]))


@settings(deadline=None)
@given(rank_loads, st.data())
def test_f_is_exactly_the_decrease_of_the_imbalance(loads: Any, data: st.DataObject) -> None:
    g = data.draw(st.integers(0, len(loads) - 1))
    sizes = data.draw(st.lists(tokens, min_size=1, max_size=5))
    envelope = MarginNow([float(load) for load in loads])
    before = np.array(loads, float)
    for size, value in zip(sizes, envelope.values(g, sizes), strict=True):
        then = before.copy()
        then[g] += size
        assert value == imbalance(before) - imbalance(then) == score(loads, g, size)
    assert envelope.across(sizes[0])[g] == envelope.values(g, sizes)[0]
    for size in sizes:
        envelope.add(g, size)
    assert envelope.values(g, [0.0]) == [0.0]
    assert envelope.peak(g) == max(0, max(loads) - loads[g] - sum(sizes)), "the margin left"


@settings(deadline=None)
@given(rank_loads, st.lists(tokens, min_size=2, max_size=12), st.data())
def test_stage_1_gives_its_rank_the_best_f_of_all(
    loads: Any, sizes: Any, data: st.DataObject
) -> None:
    """Ours the one with the least load, the paper the one with most free slots."""
    free = data.draw(st.lists(st.integers(1, 9), min_size=len(loads), max_size=len(loads)))
    kind = data.draw(st.sampled_from([Br0Policy, PaperBr0Policy]))
    request, worker, _ = kind(s_greedy=0).assign(fleet(loads, free), prompts(sizes))[0]
    keys = list(zip(loads, (-n for n in free), strict=True))
    if kind is PaperBr0Policy:
        keys = [each[::-1] for each in keys]
    assert keys[worker] == min(keys)
    values = [score(loads, worker, size) for size in sizes]
    assert values[request] == max(values)
    assert request == sizes.index(sizes[request]), "of equal ones the earliest"


@settings(deadline=None)
@given(rank_loads, st.lists(tokens, min_size=2, max_size=12), st.data())
def test_stage_2_takes_the_best_subset_of_the_first_four(
    loads: Any, sizes: Any, data: st.DataObject
) -> None:
    free = data.draw(st.lists(st.integers(1, 9), min_size=len(loads), max_size=len(loads)))
    made = Br0Policy(s_greedy=10**6).assign(fleet(loads, free), prompts(sizes))
    worker, reason = made[0].worker, made[0].reason
    assert free[worker] == max(free)
    count = int(reason.split()[2])
    chosen = [a.request for a in made[:count]]
    values = {
        subset: score(loads, worker, sum(sizes[i] for i in subset))
        for n in range(1, min(4, free[worker], len(sizes)) + 1)
        for subset in combinations(range(min(4, len(sizes))), n)
    }
    if max(values.values()) > 0:
        assert values[tuple(chosen)] == max(values.values())
    else:
        assert len(chosen) == 1
        assert values[tuple(chosen)] == max(v for s, v in values.items() if len(s) == 1)


@settings(deadline=None)
@given(rank_loads, tokens, st.data())
def test_a_request_alone_takes_the_rank_with_the_best_f(
    loads: Any, size: Any, data: st.DataObject
) -> None:
    free = data.draw(st.lists(st.integers(0, 2), min_size=len(loads), max_size=len(loads)))
    made = Br0Policy().assign(fleet(loads, free), prompts([size]))
    open_ = [g for g, n in enumerate(free) if n]
    assert bool(made) == bool(open_)
    if made:
        best = max(score(loads, g, size) for g in open_)
        assert score(loads, made[0].worker, size) == best
        ties = [loads[g] for g in open_ if score(loads, g, size) == best]
        assert loads[made[0].worker] == min(ties)


def test_one_rank_serves_in_order_of_arrival() -> None:
    made = Br0Policy().assign(fleet([700], [3]), prompts([50, 9, 3000, 1, 2]))
    assert [a.request for a in made] == [0, 1, 2]


def gaps(assigner: Assigner, seed: int = 7) -> np.ndarray:
    """For each case, imbalance above the least possible one, as a share of G * M at its best."""
    found = []
    for loads, free, sizes in cases(seed):
        made = assigner.assign(fleet(loads, free), prompts(sizes))
        now = np.array(loads)
        least = optimum(now, sizes, free, [np.inf] * len(loads))
        ours = imbalance(after(now, sizes, made))
        assert ours >= least
        found.append((ours - least) / (least + after(now, sizes, made).sum()))
    return np.array(found)


@pytest.mark.slow
def test_distance_to_the_best_assignment() -> None:
    """`-s` prints the table that the README of the policies quotes."""
    everyone: dict[str, Assigner] = {
        "br0": Br0Policy(),
        "br0, whole pool (s_greedy 0)": Br0Policy(s_greedy=0),
        "brh without predictions": BrHPolicy(),
        **{
            name: PooledPolicy(make_policy(name, 1))
            for name in ("shortest_queue", "power_of_two", "round_robin", "random")
        },
    }
    mean, worst = {}, {}
    for name, assigner in everyone.items():
        found = gaps(assigner)
        mean[name], worst[name] = found.mean(), found.max()
        print(f"{name:30s} mean {mean[name]:.4f} max {worst[name]:.4f}")
    assert mean["br0"] == pytest.approx(0.0, abs=0.05)
    for name in ("shortest_queue", "power_of_two", "round_robin", "random"):
        assert mean["br0"] < 0.5 * mean[name]
