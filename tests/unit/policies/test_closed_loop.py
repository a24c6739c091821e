"""What assigners do to ranks that decode in step and are kept full from a pool."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit.policies.closed_loop import ClosedLoop, conversation, unlimited
from toolkit.policies import RequestView, make_policy
from toolkit.policies.br0 import Br0Policy
from toolkit.policies.brh import BrHPolicy
from toolkit.policies.predictors import Learned, Oracle, Survival
from toolkit.policies.rounds.assign import Assigner
from toolkit.policies.rounds.pooling import PooledPolicy
from toolkit.policies.support.inflight_lengths import InflightLengths

BASELINES = ("shortest_queue", "round_robin", "power_of_two")


def spread(assigner: Assigner, inflight: InflightLengths | None = None, delay: int = 0) -> float:
    """Mean of max - min KV tokens over 300 steps of 8 ranks."""
    draw: Callable[..., tuple[RequestView, int]] = conversation
    if inflight is not None and not isinstance(inflight.predictor, Oracle):
        draw = unlimited(conversation)
    loop = ClosedLoop(assigner, draw, inflight=inflight, seed=4)
    loop.run(450, 150)
    assert max(loop.waits) < 200
    return float(np.mean(loop.spreads))


@pytest.fixture(scope="module")
def best_baseline() -> float:
    return min(spread(PooledPolicy(make_policy(name, 1))) for name in BASELINES)


def test_br0_levels_what_queues_do_not_see(best_baseline: float) -> None:
    assert spread(Br0Policy()) < 0.5 * best_baseline


@pytest.mark.parametrize("make", [Survival, Learned, Oracle])
def test_brh_does_so_too_under_every_predictor(best_baseline: float, make: Any) -> None:
    inflight = InflightLengths(make())
    assert spread(BrHPolicy(inflight=inflight), inflight) < 0.5 * best_baseline
    assert inflight.predictor.errors.judged > 50
    assert inflight.predictor.errors.skill > 0.2


def test_what_is_on_its_way_is_missing_from_the_steps() -> None:
    def level(delay: int) -> float:
        loop = ClosedLoop(Br0Policy(s_greedy=0), conversation, 2, 32, 16, delay)
        loop.run(1200, 200)
        return float(np.mean(loop.spreads))

    assert level(3) > 1.5 * level(0)
