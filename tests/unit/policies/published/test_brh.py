"""BR-H as published, worked out by hand beside ours with the same weights."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.policies.br0_cases import prompts
from tests.unit.policies.pools import fleets, pools
from toolkit.policies import Load, RequestView, WorkerView, make_policy
from toolkit.policies.brh import BrHPolicy
from toolkit.policies.published.br0 import PaperBr0Policy
from toolkit.policies.published.brh import PaperBrHPolicy
from toolkit.policies.support.readings import read_ranks

STAYS = 900
"""Steps: more than any horizon here."""
Running = list[list[tuple[int, int]]]
"""On each rank: KV tokens, and steps until it ends."""


def policy(name: str, running: Running) -> BrHPolicy:
    made = make_policy(name, side="decode")
    assert isinstance(made, BrHPolicy)
    for g, requests in enumerate(running):
        for number, (tokens, steps) in enumerate(requests):
            view = RequestView(prompt_tokens=tokens, max_new_tokens=steps)
            made.inflight.sent(f"{g}-{number}", (f"w{g}", 0), view)
    return made


def fleet(running: Running, slots: int) -> list[WorkerView]:
    return [
        WorkerView(f"w{g}", load=Load(len(on), 0, sum(n for n, _ in on), 0, 0), slots=slots)
        for g, on in enumerate(running)
    ]


def placed(name: str, running: Running, slots: int, sizes: list[int]) -> list[tuple[int, int, int]]:
    """(request, worker, F)"""
    made = policy(name, running).assign(fleet(running, slots), prompts(sizes))
    return [(each.request, each.worker, int(each.reason.split()[-1])) for each in made]


def test_the_bypass_looks_at_this_step_only() -> None:
    """L = 3000, 3900, 4000; w1 and w2 end in the next step. One request of 900 comes.

    Single-step, m = 1000, 100, 0: 900; 900 - 48 * 800 = -37500; 900 - 48 * 900 = -42300: w0.
    Over H = 2, d = 1, 0.9, 0.81 (2.71 in all), m_0 = 1000, 0, 0; m_1 = 100, 3001, 3002;
    m_2 = 0, 3001, 3002: 2439 - 48 * 900 * 1.71 = -71433; 2439 - 48 * 800 = -35961;
    2439 - 48 * 900 = -40761: ours takes w1.
    """
    running = [[(3000, STAYS)], [(3900, 1)], [(4000, 1)]]
    assert placed("brh@paper:oracle:horizon=2", running, 2, [900]) == [(0, 0, 900)]
    ours = "brh@oracle:horizon=2:gamma=0.9:beta=48"
    assert placed(ours, running, 2, [900]) == [(0, 1, -35961)]
    alone = policy("brh@paper:oracle:horizon=2", running)
    decision = alone.choose(fleet(running, 2), prompts([900])[0])
    assert decision is not None and decision.index == 0, "and where there is no pool"


def test_ranks_come_by_free_slots_and_the_margin_of_this_step() -> None:
    """L = 3000, 3200, 4000, one slot each; w1 ends in the next step. 1100 and 900 wait, H = 2.

    Paper: margins 1000, 800, 0, so w0 is first. m_0 = 1000 at every h: 2.71 * 900 = 2439 against
    2981 - 48 * 2.71 * 100 = -10027, so the 900. Then w1, m_1 = 800, 4001, 4002:
    2981 - 48 * 300 = -11419, placed all the same.
    Ours: discounted loads 3000 + 2701 + 2432 = 8133, 3200 + 0, ..., so w1 is first:
    2439 - 48 * 100 = -2361 against -11419. That makes w1 the heaviest of this step, 4100, and
    m_0 = 1100, 1000, 1000: w0 takes the 1100 with 2981 - 48 * 1.71 * 100 = -5227.
    """
    running = [[(3000, STAYS)], [(3200, 1)], [(4000, STAYS)]]
    paper = placed("brh@paper:oracle:0:horizon=2", running, 2, [1100, 900])
    assert paper == [(1, 0, 2439), (0, 1, -11419)]
    ours = placed("brh@oracle:0:horizon=2:gamma=0.9:beta=48", running, 2, [1100, 900])
    assert ours == [(1, 1, -2361), (0, 0, -5227)]


def test_beta_is_48_with_two_ranks_too() -> None:
    """w0 has 3000 tokens and most slots, w1 has 4000 that stay and 500 that end in 30 steps, so
    m_0 = 1500 + h for h < 30, then 1000. sum d_h = (1 - 0.9^81) / 0.1 = 9.998, of which from 30 on
    0.4219. 1000 fits at every h: 9998. 1500 does not from 30 on: 14997 - beta * 500 * 0.4219, with
    beta 48 that is 4870, with ours (6 * 2 = 12) 12465.
    """
    running = [[(3000, STAYS)], [(4000, STAYS), (500, 30)]]
    assert placed("brh@paper:oracle:0", running, 3, [1000, 1500])[0] == (0, 0, 9998)
    assert placed("brh@oracle:0", running, 3, [1000, 1500])[0] == (1, 0, 12465)
    assert placed("brh@paper:oracle:0:beta=12", running, 3, [1000, 1500])[0] == (1, 0, 12465)


@settings(deadline=None)
@given(st.lists(st.tuples(fleets(), pools), max_size=4), st.sampled_from([None, 0, 10**6]))
def test_without_horizon_it_is_br0_as_published(rounds: Any, s_greedy: Any) -> None:
    """H = 0 and (alpha, beta) = (1, G), as the paper says."""
    br0, brh = PaperBr0Policy(0, s_greedy), PaperBrHPolicy(horizon=0, s_greedy=s_greedy)
    for workers, waiting in rounds:
        brh.beta = float(len(read_ranks(workers).index))
        assert brh.assign(workers, waiting) == br0.assign(workers, waiting)


def test_gamma_does_not_follow_the_traffic() -> None:
    """Answers of 2 tokens, and 4 requests on one rank: 4 / 2 = 2 end a step. Ours then takes
    exp(-2) = 0.135 for each step ahead, the paper 0.9."""
    for name, gamma in (("brh@paper:survival", 0.9), ("brh@survival", 0.135335283237)):
        made = policy(name, [[(100, STAYS)] * 4 + [(100, STAYS)]])
        made.inflight.counted("0-4", 2)
        made.inflight.ended("0-4")
        discounts = made._discounts(read_ranks(fleet([[(500, STAYS)]], 9)))
        assert discounts[:3].tolist() == pytest.approx([1.0, gamma, gamma**2])


def test_what_a_bare_name_means() -> None:
    made = make_policy("brh@paper")
    assert isinstance(made, BrHPolicy) and made.inflight.predictor.name == "survival"
    assert (made.horizon, made.gamma, made.alpha, made.beta) == (80, 0.9, 1.0, 48.0)
    less = make_policy("brh@paper:beta=24:horizon=40")
    assert isinstance(less, BrHPolicy) and less.inflight.predictor.name == "survival"
    assert (less.horizon, less.gamma, less.beta) == (40, 0.9, 24.0)
    assert make_policy("brh@paper:exact_match").needs.hash
