"""Stage filter, then locality band, barrier score and user: each decides inside the one before."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from toolkit.policies import Load, RequestView, WorkerView
from toolkit.policies.composed.parts import Parts
from toolkit.policies.composed.policy import ComposedPolicy
from toolkit.policies.eldr import EldrPolicy
from toolkit.policies.stages.layout import Layout
from toolkit.policies.stages.narrowing import StageFilter
from toolkit.policies.support.expert_locality import Centroids

STAGES = StageFilter(Layout.of([(200, 3), (None, 1)]))
POOL = 10_000


def _ranks(*used: int) -> list[WorkerView]:
    return [
        WorkerView(f"d{at}", slots=16, load=Load(2, 0, used, POOL, 0))
        for at, used in enumerate(used)
    ]


def _unit(at: int) -> np.ndarray:
    vector = np.zeros(4, np.float32)
    vector[at] = 1.0
    return vector


def _policy() -> ComposedPolicy:
    made = ComposedPolicy(0, Parts.parse("filter+eldr+level+user"), tau=0.1)
    assert isinstance(made.locality, EldrPolicy)
    return made


def _choose(policy: ComposedPolicy, ranks: list[WorkerView], request: RequestView) -> str:
    """As the router does it: whoever is not of the stage is down for the policy."""
    usable = STAGES.narrow(request.prompt_tokens, [rank.healthy for rank in ranks])
    seen = [structs.replace(rank, healthy=ok) for rank, ok in zip(ranks, usable, strict=True)]
    decision = policy.choose(seen, request)
    assert decision is not None
    return ranks[decision.index].name


@pytest.fixture
def located() -> ComposedPolicy:
    """d0 and d1 are near experts 0, d2 near 1, d3 near 2."""
    policy = _policy()
    rows = np.stack([_unit(0), _unit(0), _unit(1), _unit(2)])
    assert policy.locality is not None
    policy.locality.centroids = Centroids(rows, {(f"d{at}", 0): at for at in range(4)})
    return policy


def test_the_stage_comes_before_locality(located: ComposedPolicy) -> None:
    """The nearest centroid of all is another stage's."""
    near_d3 = RequestView(prompt_tokens=100, signature=_unit(2))
    assert _choose(located, _ranks(0, 0, 0, 0), near_d3) != "d3"
    long = replace(near_d3, prompt_tokens=500, signature=_unit(1))
    assert _choose(located, _ranks(0, 0, 0, 9000), long) == "d3"


def test_locality_comes_before_the_barrier_and_this_decides_inside_the_band(
    located: ComposedPolicy,
) -> None:
    request = RequestView(prompt_tokens=100, signature=_unit(0))
    assert _choose(located, _ranks(500, 300, 0, 0), request) == "d1"
    assert _choose(located, _ranks(300, 500, 0, 0), request) == "d0"
    other = replace(request, signature=_unit(1))
    assert _choose(located, _ranks(0, 0, 500, 0), other) == "d2"


def test_the_users_last_rank_counts_only_inside_the_stage(located: ComposedPolicy) -> None:
    ranks = _ranks(0, 0, 0, 0)
    first = RequestView(prompt_tokens=100, signature=_unit(0), user="ada")
    home = _choose(located, ranks, first)
    assert _choose(located, ranks, first) == home
    assert _choose(located, ranks, replace(first, prompt_tokens=500)) == "d3"
