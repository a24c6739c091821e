"""Placements that follow the traffic: no move without cause, and a quick one with it."""

from typing import Any

import numpy as np
import pytest

from tests.synthetic_routing import Recipe, token_ids
from toolkit.placement import Topology, judge, place
from toolkit.placement.online import PAPER, Cost, Online, RelocationSettings
from toolkit.placement.traffic import count

TOPOLOGY = Topology(8, 4)
COST = Cost(expert_bytes=1e6, bytes_per_s=1e9, order_s=0.001, slots=8)
SETTINGS = RelocationSettings(tokens=4096, most_tokens=16384)
LENGTH, STEP_S = 64, 0.02
RECIPE = Recipe(layers=2, experts=32, top_k=4, families=4, document=LENGTH)


def stream(seed: int, requests: int) -> list[np.ndarray]:
    return list(token_ids(requests * LENGTH, RECIPE, seed).reshape(requests, LENGTH, 2, 4))


def run(online: Online, current: Any, requests: Any, steps_each: int = 10) -> Any:
    """Decisions and the map after all requests, `steps_each` decode steps a request."""
    decided = []
    for first in range(0, len(requests), 8):
        online.observe(requests[first : first + 8], 8 * steps_each)
        cause = online.due(current)
        if cause is not None:
            decision = online.decide(current, STEP_S, COST, cause)
            decided.append(decision)
            if decision.move:
                current = decision.target
    return decided, current


def fresh(requests: Any) -> Any:
    return place("joint", count(np.concatenate(requests), 32), TOPOLOGY, 8)


@pytest.mark.slow
def test_stationary_traffic_moves_nothing_in_ten_thousand_steps() -> None:
    requests = stream(1, 1800)
    online = Online(TOPOLOGY, SETTINGS)
    decided, current = run(online, fresh(requests[:600]), requests[600:], steps_each=10)
    assert len(decided) >= 3
    assert [each.move for each in decided] == [False] * len(decided)
    del current


@pytest.mark.slow
def test_other_traffic_gets_other_places_after_two_maps_at_most() -> None:
    old, new = stream(1, 900), stream(2, 900)
    online = Online(TOPOLOGY, SETTINGS)
    _, current = run(online, fresh(old[:600]), old[600:])
    before = judge(current, TOPOLOGY, np.concatenate(new)).balance.mean()
    decided, after = run(online, current, new[:450])
    assert 1 <= sum(each.move for each in decided) <= 2
    assert decided[0].cause == "drift"
    unseen = np.concatenate(new[450:])
    best = judge(fresh(new[:450]), TOPOLOGY, unseen).balance.mean()
    now = judge(after, TOPOLOGY, unseen).balance.mean()
    assert now < before and now <= 1.05 * best


@pytest.mark.slow
def test_a_move_that_costs_more_than_it_saves_is_left() -> None:
    old, new = stream(1, 300), stream(2, 300)
    dear = Cost(expert_bytes=1e9, bytes_per_s=1e6, order_s=1.0, slots=2)
    online = Online(TOPOLOGY, SETTINGS)
    online.observe(new, 3000)
    decision = online.decide(fresh(old), STEP_S, dear, "asked")
    assert not decision.move and "do not exceed" in decision.why
    assert decision.gain > 0 and decision.balance[1] < decision.balance[0]


def test_the_published_loop_moves_every_tau_steps_whatever_it_costs() -> None:
    requests = stream(1, 900)
    online = Online(TOPOLOGY, RelocationSettings(kind=PAPER, tokens=4096, most_tokens=16384))
    start = place("gimbal", count(np.concatenate(requests[:300]), 32), TOPOLOGY)
    decided, _ = run(online, start, requests[300:], steps_each=10)
    assert [each.cause for each in decided] == ["steps"] * len(decided)
    assert decided and all(each.move or not each.written for each in decided)


def test_too_few_requests_and_odd_settings_are_said() -> None:
    online = Online(TOPOLOGY, SETTINGS)
    online.observe(stream(1, 4), 10)
    with pytest.raises(ValueError, match="4 requests are too few"):
        online.decide(fresh(stream(1, 40)), STEP_S, COST, "asked")
    with pytest.raises(ValueError, match="at least one step"):
        RelocationSettings(every=0)
    with pytest.raises(ValueError, match="expert_share"):
        RelocationSettings(expert_share=0)


@pytest.mark.slow
def test_a_few_long_requests_are_no_drift() -> None:
    """Of one part nothing can be said of how far parts differ."""
    old, new = stream(1, 600), stream(2, 128)
    online = Online(TOPOLOGY, SETTINGS)
    current = fresh(old[:300])
    online.observe(old[300:], 3000)
    online.decide(current, STEP_S, COST, "steps")
    online.observe([np.concatenate(new)], 1)
    assert online.tokens >= SETTINGS.tokens and online.due(current) is None
