"""BR-0 as published, worked out by hand; and nobody goes for having waited, in BR-H neither."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.policies.br0_cases import fleet, prompts
from tests.unit.policies.pools import fleets, pools
from toolkit.policies import make_policy
from toolkit.policies.br0 import Br0Policy
from toolkit.policies.rounds.assign import Assigner
from toolkit.policies.rounds.balance_route import BalanceRoute


def assigner(name: str) -> Assigner:
    policy = make_policy(name, side="decode")
    assert isinstance(policy, Assigner)
    return policy


@pytest.mark.parametrize(
    ("name", "loads", "free", "sizes", "expected"),
    [
        # F_g = d - 3 max(0, d - m_g) with m = (0, 1000, 1500).
        # Alone: 1200 - 3 * 1200 = -2400, 1200 - 3 * 200 = 600, 1200: w2.
        ("br0@paper", [4000, 3000, 2500], [1, 1, 1], [1200], [(0, 2)]),
        # Alone, and above every margin: 2000 - 6000 = -4000, 2000 - 3000 = -1000,
        # 2000 - 1500 = 500: w2 still makes less idle than there was.
        ("br0@paper", [4000, 3000, 2500], [1, 1, 1], [2000], [(0, 2)]),
        # Stage 1 (more than 0 slots free). w2 has most slots: 1200, 1400, 1600 - 300 = 1300, so
        # request 1. Loads 4000, 3000, 3900, slots 1, 2, 2: w1 has more margin (1000) than w2 (100);
        # 1200 - 3 * 200 = 600, 1600 - 3 * 600 = -200, so request 0. Loads 4000, 4200, 3900, slots
        # 1, 1, 2: w2, and request 2 is all that is left (1600 - 3 * 1300 < 0: placed all the same).
        ("br0@paper:0", [4000, 3000, 2500], [1, 2, 3], [1200, 1400, 1600],
         [(1, 2), (0, 1), (2, 2)]),
        # Stage 2 (never more than 99 slots). Only w1 has slots, m = 1500. Of the first four, sums
        # below the margin: 1350, 1400, 1450 (600 + 850); above: 1550 - 150 = 1400 (750 + 800),
        # 1600 - 300 = 1300, 1650 - 450 = 1200, and three are 2150 and more. So 600 + 850; the fifth
        # (F = 1500) is not looked at. m = 50: 750 - 2100 = -1350, 800 - 2250 = -1450,
        # 1500 - 4350 = -2850, pairs below: the best single one goes, request 1. No slot is left.
        ("br0@paper:99", [4000, 2500, 4000], [0, 3, 0], [600, 750, 800, 850, 1500],
         [(0, 1), (3, 1), (1, 1)]),
        # No slot, no placement.
        ("br0@paper", [4000, 2500], [0, 0], [600, 700], []),
    ],
)  # fmt: skip
def test_by_hand(name: str, loads: Any, free: Any, sizes: Any, expected: Any) -> None:
    made = assigner(name).assign(fleet(loads, free), prompts(sizes))
    assert [(each.request, each.worker) for each in made] == expected


@pytest.mark.parametrize(
    ("name", "ours"), [("br0@paper:0", "br0@0"), ("brh@paper:survival:0", "brh@survival:0")]
)
def test_nobody_goes_for_having_waited(name: str, ours: str) -> None:
    """m = (0, 1000) and one slot, on w1: 1000 - 0 against 3000 - 2 * 2000 = -1000 (and with BR-H's
    weights less). So the small one goes, in every round; ours gives the 65th slot to the large one,
    which stood at the head while 64 others went."""
    workers, waiting = fleet([5000, 4000], [0, 1]), prompts([3000, 1000])
    took = {
        each: [policy.assign(workers, waiting)[0].request for _ in range(65)]
        for each, policy in ((name, assigner(name)), (ours, assigner(ours)))
    }
    assert took[name] == [1] * 65
    assert took[ours] == [1] * 64 + [0]


@settings(deadline=None)
@given(st.lists(st.tuples(fleets(), pools), max_size=4), st.sampled_from(["", ":0", ":99"]))
def test_without_patience_it_is_ours(rounds: Any, knob: str) -> None:
    """Nothing else was added but the first stage's order: with rounds too few for patience, and
    that order taken back, the two decide alike."""
    ours = make_policy("br0" + knob.replace(":", "@"))
    theirs = assigner("br0@paper" + knob)
    assert isinstance(ours, Br0Policy)
    ours._stages.by_slots = True
    for workers, waiting in rounds:
        assert theirs.assign(workers, waiting) == ours.assign(workers, waiting)


@pytest.mark.parametrize("name", ["br0@paper:3", "brh@paper:oracle:3"])
def test_s_greedy_in_the_name(name: str) -> None:
    policy = make_policy(name)
    assert isinstance(policy, BalanceRoute) and policy._stages.s_greedy == 3
