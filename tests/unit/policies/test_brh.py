"""BR-H: BR-0 at H = 0, the discounted imbalance beyond."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.present import present
from tests.unit.policies.br0_cases import cases, fleet, prompts
from tests.unit.policies.brute_force import after, imbalance, optimum
from tests.unit.policies.pools import fleets, pools, rank
from toolkit.policies import RequestView, make_policy
from toolkit.policies.br0 import Br0Policy
from toolkit.policies.brh import GAMMA, BrHPolicy, MarginAhead
from toolkit.policies.predictors import Oracle
from toolkit.policies.support.inflight_lengths import InflightLengths
from toolkit.policies.support.readings import read_ranks

STEPS = 5
DISCOUNTS = 0.5 ** np.arange(STEPS)  # exact in binary
loads_ahead = st.integers(2, 6).flatmap(
    lambda ranks: st.lists(
        st.lists(st.integers(0, 4000), min_size=STEPS, max_size=STEPS),
        min_size=ranks,
        max_size=ranks,
    )
)


def in_flight(*requests: tuple[str, int, int, int]) -> InflightLengths:
    """(rank's name, KV tokens, length, generated) of requests whose length is known."""
    inflight = InflightLengths(Oracle())
    for number, (name, tokens, length, generated) in enumerate(requests):
        view = RequestView(prompt_tokens=tokens - generated, max_new_tokens=length)
        inflight.sent(f"r{number}", (name, 0), view)
        inflight.counted(f"r{number}", generated)
    return inflight


@settings(deadline=None)
@given(
    st.lists(st.tuples(fleets(), pools), max_size=4),
    st.sampled_from([None, 0, 10**6]),
    st.sampled_from([1, 4]),
)
def test_without_horizon_it_is_br0_decision_by_decision(
    rounds: Any, s_greedy: Any, r_max: int
) -> None:
    inflight = in_flight(*((f"w{g}", 99 * g + 9, 2 + g, 1) for g in range(6)))
    br0 = Br0Policy(0, s_greedy, r_max, 5)
    brh = BrHPolicy(0, 0, 1.0, None, 0.9, inflight, s_greedy, r_max, 5)
    for workers, waiting in rounds:
        brh.beta = float(len(read_ranks(workers).index))
        assert brh.assign(workers, waiting) == br0.assign(workers, waiting)
    assert brh.counters == br0.counters


@settings(deadline=None)
@given(loads_ahead, st.lists(st.integers(0, 5000), min_size=1, max_size=6), st.data())
def test_with_beta_g_f_is_the_decrease_of_the_discounted_imbalance(
    loads: Any, sizes: list[int], data: st.DataObject
) -> None:
    g = data.draw(st.integers(0, len(loads) - 1))
    before = np.array(loads, float)
    envelope = MarginAhead(before.copy(), DISCOUNTS, 1.0, float(len(loads)))
    for size, value in zip(sizes, envelope.values(g, sizes), strict=True):
        then = before.copy()
        then[g] += size
        assert value == imbalance(before, DISCOUNTS) - imbalance(then, DISCOUNTS)
    assert envelope.across(sizes[0])[g] == envelope.values(g, sizes[:1])[0]
    assert envelope.burden(g) == before[g] @ DISCOUNTS
    for size in sizes:
        envelope.add(g, size)
    then = before.copy()
    then[g] += sum(sizes)
    fresh = MarginAhead(then, DISCOUNTS, 1.0, float(len(loads)))
    probe = [0.0, 10.0, 1000.0]
    assert envelope.values(g, probe) == fresh.values(g, probe)
    assert envelope.burden(g) == fresh.burden(g)


@settings(deadline=None)
@given(loads_ahead, st.sampled_from([1.0, 2.5, 6.0, 48.0]), st.data())
def test_no_size_is_better_than_the_peak(loads: Any, beta: float, data: st.DataObject) -> None:
    g = data.draw(st.integers(0, len(loads) - 1))
    envelope = MarginAhead(np.array(loads, float), DISCOUNTS, 1.0, beta)
    peak = envelope.peak(g)
    highest = 20_000.0 if peak == np.inf else peak
    grid = np.arange(0, 20_001, 50.0).tolist()
    assert envelope.values(g, [highest])[0] >= max(envelope.values(g, grid))


def test_loads_ahead_follow_the_requests_and_start_at_the_reading() -> None:
    """Rank 0 has 700 tokens of others'; what is known of w1 ends; nothing is known of w2."""
    inflight = in_flight(("w0", 300, 50, 10), ("w1", 400, 22, 20), ("w1", 100, 99, 9))
    policy = BrHPolicy(horizon=4, inflight=inflight)
    workers = [rank(0, 1000), rank(0, 500), rank(0, 800), rank(0, 0)]
    named = [w.__class__(f"w{at}", load=w.load, slots=8) for at, w in enumerate(workers)]
    silent = named[3].__class__("w3", slots=8)
    ahead = policy._ahead(read_ranks([*named[:3], silent]))
    assert ahead.tolist() == [
        [1000, 1001, 1002, 1003, 1004],
        [500, 502, 102, 103, 104],
        [800] * 5,
        [1000, 1001, 1002, 1003, 1004],  # silent: as loaded as the heaviest, at every step
    ]


def test_it_waits_for_what_will_end() -> None:
    """w0 has the smaller load now and keeps it, w1's largest request is about to end."""
    workers = [rank(0, 3000), rank(0, 3050), rank(0, 4000)]
    named = [w.__class__(f"w{at}", load=w.load, slots=8) for at, w in enumerate(workers)]
    known = [("w0", 3000, 900, 0), ("w1", 2850, 12, 9), ("w1", 200, 900, 0), ("w2", 4000, 900, 0)]
    one = prompts([900])
    assert Br0Policy().assign(named, one)[0].worker == 0
    assert BrHPolicy().assign(named, one)[0].worker == 0
    assert BrHPolicy(inflight=in_flight(*known)).assign(named, one)[0].worker == 1


def test_distance_to_the_best_assignment_over_the_horizon() -> None:
    """Against the best discounted imbalance of small fleets whose requests end; `-s` prints it."""
    discounts = 0.9 ** np.arange(21)
    found: dict[str, list[float]] = {"brh": [], "br0": []}
    for number, (loads, free, sizes) in enumerate(cases(11)):
        rng = np.random.default_rng(number)
        known = []
        for g, load in enumerate(loads):
            cuts = np.sort(rng.integers(1, load, 3))
            for part in np.diff([0, *cuts, load]):
                known.append((f"{g}", max(1, int(part)), int(rng.integers(1, 40)), 0))
        brh = BrHPolicy(horizon=20, beta=len(loads), inflight=in_flight(*known))
        workers = [
            w.__class__(f"{g}", load=w.load, slots=w.slots)
            for g, w in enumerate(fleet(loads, free))
        ]
        now = brh._ahead(read_ranks(workers))
        least = optimum(now, sizes, free, [np.inf] * len(loads), discounts)
        for name, policy in (("brh", brh), ("br0", Br0Policy())):
            then = after(now, sizes, policy.assign(workers, prompts(sizes)))
            ours = imbalance(then, discounts)
            assert ours >= least - 1e-6
            found[name].append((ours - least) / (least + float((then @ discounts).sum())))
    for name, gaps in found.items():
        print(f"{name} mean {np.mean(gaps):.4f} max {np.max(gaps):.4f}")
    assert np.mean(found["brh"]) < 0.05
    assert np.mean(found["brh"]) < np.mean(found["br0"])


@pytest.mark.parametrize("horizon", [0, 1, 80])
def test_what_ended_or_came_meanwhile_is_in_the_next_round(horizon: int) -> None:
    inflight = in_flight(("w0", 500, 90, 0), ("w1", 500, 90, 0))
    policy = BrHPolicy(horizon=horizon, inflight=inflight)
    before = policy._ahead(read_ranks(FLEET)).copy()
    inflight.ended("r1")
    after_end = policy._ahead(read_ranks(FLEET))
    assert (after_end[0] == before[0]).all()
    assert (after_end[1] == before[1, 0]).all(), "nothing known: it stays"
    assert (before[1] == before[1, 0]).all() == (horizon == 0)


FLEET = [
    w.__class__(f"w{at}", load=w.load, slots=8) for at, w in enumerate([rank(0, 9), rank(0, 7)])
]


def test_knobs_in_the_name() -> None:
    policy = make_policy("brh@survival:0:horizon=40:gamma=0.95:alpha=2:beta=24", side="decode")
    assert (policy.horizon, policy.gamma, policy.alpha, policy.beta) == (40, 0.95, 2.0, 24.0)  # type: ignore[attr-defined]
    assert policy._stages.s_greedy == 0 and present(policy.inflight).predictor.name == "survival"  # type: ignore[attr-defined]
    few = make_policy("brh@learned:beta=8")
    assert few.beta == 8 and few._stages.s_greedy is None  # type: ignore[attr-defined]
    assert (few.horizon, few.gamma, few.alpha) == (80, None, 1.0), "the others stay"  # type: ignore[attr-defined]
    inside = make_policy("composed@filter+brh@learned:horizon=7+user")
    assert inside.barrier.horizon == 7  # type: ignore[attr-defined]
    plain = make_policy("brh@learned:3")
    assert plain._stages.s_greedy == 3 and plain.beta is None, "as it was written before"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("learned:horizn=3", "unknown knob 'horizn=3': did you mean horizon=VALUE"),
        ("learned:0:5", "unknown knob '5': write horizon, gamma, alpha, beta =VALUE"),
        ("learned:horizon", "must be a number of slots"),
        ("learned:0:gamma", "unknown knob 'gamma': did you mean gamma=VALUE"),
        ("learned:gamma=1:gamma=1", "gamma stands twice"),
        ("learned:horizon=1.5", "horizon = 1.5 must be a whole number of steps"),
        ("learned:horizon=-1", r"must lie in 0\.\.10000 steps"),
        ("learned:horizon=1000000000", r"must lie in 0\.\.10000 steps"),
        ("learned:gamma=1.1", r"gamma = 1.1 must lie in \(0, 1\]"),
        ("learned:gamma=0", "gamma = 0 must be above 0"),
        ("learned:beta=nan", "beta = nan must be above 0"),
        ("learned:alpha=inf", "alpha = inf must be above 0"),
        ("learned:beta=much", "beta = much must be a number"),
    ],
)
def test_wrong_knobs_in_the_name_say_how_to_mend_them(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make_policy(f"brh@{text}", side="decode")


def test_where_drafts_are_accepted_requests_end_so_many_times_as_soon() -> None:
    inflight = in_flight(*((f"w{g}", 900, 400, 1) for g in range(8)))
    for number in range(200):  # answers of 20 tokens
        rid = f"e{number}"
        inflight.sent(rid, ("w0", 0), RequestView(prompt_tokens=9, max_new_tokens=400))
        inflight.counted(rid, 20)
        inflight.ended(rid)
    policy = BrHPolicy(inflight=inflight)
    ranks = read_ranks([rank(g, 500) for g in range(2)])
    ranks.paces[:] = [1.0, 1.0]
    once = policy._discounts(ranks)[1]
    ranks.paces[:] = [2.0, 3.0]
    assert 0 < once < GAMMA
    assert policy._discounts(ranks)[1] == pytest.approx(once**2.5)
