"""DP ranks of one wide-EP server, told apart by where its experts lie."""

import io
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.present import present
from toolkit.decide.record import recorded
from toolkit.decide.replay import replay
from toolkit.policies import Load, RequestView, WorkerView, make_policy
from toolkit.policies.composed.policy import ComposedPolicy
from toolkit.policies.eldr import SHARED, EldrPolicy
from toolkit.policies.shortest_queue import ShortestQueuePolicy
from toolkit.policies.support.expert_locality import Centroids
from toolkit.policies.support.expert_map import ExpertMap

# Four ranks on two nodes; rank r holds experts 2r and 2r + 1 of 8.
MAP = ExpertMap(np.arange(8).reshape(4, 2), np.ones((4, 2)), np.ones((4, 2)), np.ones(8), nodes=2)


def uses(*experts: int) -> RequestView:
    signature = np.zeros(8, np.float32)
    signature[list(experts)] = 1 / math.sqrt(len(experts))
    return RequestView(signature=signature)


def ranks(*queues: int, name: str = "wide") -> list[WorkerView]:
    return [
        WorkerView(name, dp_rank=rank, inflight=queue, shares_experts=True)
        for rank, queue in enumerate(queues)
    ]


def mapped(tau: float = 0.1, **options: Any) -> EldrPolicy:
    policy = EldrPolicy(0, tau, **options)
    policy.maps = {"wide": MAP}
    return policy


def test_a_request_goes_where_its_experts_lie() -> None:
    policy = mapped()
    assert present(policy.choose(ranks(3, 3, 3, 3), uses(4, 5))).index == 2
    # On either rank of the node: the one that holds them, of equal queues.
    assert present(policy.choose(ranks(0, 0, 0, 0), uses(6))).index == 3
    assert policy.counters.mapped == 2
    assert not policy.counters.fallbacks


def test_inside_the_band_the_queue_decides() -> None:
    # All of the node's ranks are within OWN of each other.
    decision = mapped(0.3).choose(ranks(0, 0, 4, 3), uses(4, 5))
    assert present(decision).index in (0, 1)  # crowded: 4 and 3 of a mean of 1.75
    decision = mapped(0.3).choose(ranks(3, 3, 4, 3), uses(4, 5))
    assert present(decision).index == 3
    assert "near ranks" in present(decision).reason


def test_tau_0_is_locality_only() -> None:
    assert present(mapped(0.0).choose(ranks(0, 0, 99, 0), uses(4, 5))).index == 2


def test_a_flood_of_one_kind_ends_up_level() -> None:
    policy, queues = mapped(), [0, 0, 0, 0]
    for _ in range(400):
        queues[present(policy.choose(ranks(*queues), uses(4, 5))).index] += 1
    assert max(queues) < 1.5 * 100
    assert queues[2] == max(queues)


@given(st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=1, max_size=8))
def test_tau_1_takes_one_of_the_shortest_queues(steps: list[list[int]]) -> None:
    policy = mapped(1.0, overload=math.inf)
    for queues in steps:
        assert queues[present(policy.choose(ranks(*queues), uses(0))).index] == min(queues)


@pytest.mark.parametrize(
    ("signature", "known", "reason"),
    [
        ("cached", MAP, "cached"),
        (None, MAP, "no signature"),
        (np.ones(7, np.float32), MAP, "signature of another length"),
        (np.zeros(8, np.float32), MAP, "empty signature"),
        (np.ones(8, np.float32), replace(MAP, **{
            name: getattr(MAP, name)[:2] for name in ("slots", "own", "near")
        }), "map of another size"),
    ],
)  # fmt: skip
def test_degraded_it_is_the_shortest_queue_and_counted(
    signature: Any, known: Any, reason: str
) -> None:
    policy, plain = mapped(), ShortestQueuePolicy()
    policy.maps = {"wide": known}
    for queues in ((3, 1, 2, 1), (0, 0, 0, 0), (5, 4, 4, 9)):
        request = RequestView(signature=signature)
        assert present(policy.choose(ranks(*queues), request)).index == (
            present(plain.choose(ranks(*queues), request)).index
        )
    assert policy.counters.fallbacks == {reason: 3}
    assert policy.counters.unmapped == {reason: 3}
    assert policy.counters.mapped == 0


def test_a_map_of_another_server_says_nothing() -> None:
    policy = mapped()
    policy.choose(ranks(1, 0, 1, 1, name="other"), uses(4, 5))
    assert policy.counters.fallbacks == {SHARED: 1}
    assert not policy.counters.unmapped


def test_of_several_servers_each_has_its_own() -> None:
    near = np.zeros((2, 8), np.float32)
    near[0, :4], near[1, 4:] = 0.5, 0.5
    policy = EldrPolicy(0, 0.1, Centroids(near, {("wide", None): 1, ("other", None): 0}))
    policy.maps = {"wide": MAP}
    workers = [*ranks(1, 1, 1, 1), *ranks(1, 1, name="other")]
    assert present(policy.choose(workers, uses(4, 5))).index == 2  # by centroid, then by map
    assert present(policy.choose(workers, uses(0, 1))).index in (
        4,
        5,
    )  # a server without a map: by load
    assert policy.counters.located == 2
    assert policy.counters.mapped == 1


def test_a_rank_that_is_down_is_not_chosen() -> None:
    workers = ranks(0, 0, 0, 0)
    workers[2] = structs.replace(workers[2], healthy=False)
    assert present(mapped().choose(workers, uses(4, 5))).index == 3


def loaded(*tokens: int) -> list[WorkerView]:
    return [
        structs.replace(worker, slots=8, load=Load(1, 0, used, 9000, 0))
        for worker, used in zip(ranks(1, 1, 1, 1), tokens, strict=True)
    ]


def test_composed_levels_inside_the_near_ranks() -> None:
    policy = ComposedPolicy()
    present(policy.locality).maps = {"wide": MAP}
    request = replace(uses(0, 1), prompt_tokens=100)
    assert present(policy.choose(loaded(900, 100, 0, 0), request)).index == 0
    both = replace(uses(0, 2), prompt_tokens=100)  # as near to rank 0 as to 1
    assert present(policy.choose(loaded(900, 100, 0, 0), both)).index == 1
    made = policy.assign(
        loaded(0, 0, 0, 0), [replace(uses(2 * r), prompt_tokens=9) for r in (3, 1)]
    )
    assert [each.worker for each in made] == [3, 1]
    assert present(policy.locality).counters.mapped == 4


def test_a_round_of_more_than_there_are_slots_prefers_who_is_near() -> None:
    policy = ComposedPolicy()
    present(policy.locality).maps = {"wide": MAP}
    workers = [structs.replace(worker, slots=2) for worker in loaded(0, 0, 0, 0)]
    waiting = [replace(uses(2 * (n % 4)), prompt_tokens=9) for n in range(8)]
    for request, worker, _ in policy.assign(workers, waiting):
        assert worker // 2 == request % 4 // 2


@pytest.mark.parametrize("name", ["eldr@paper", "eldr@artifact"])
def test_published_rules_look_at_no_map(name: str) -> None:
    policy = make_policy(name)
    present(policy.locality).maps = {"wide": MAP}
    policy.choose(ranks(1, 1, 1, 1), uses(4, 5))
    assert policy.counters.fallbacks == {SHARED: 1}


def test_a_recording_has_the_maps() -> None:
    sink = io.StringIO()
    policy = recorded(make_policy("eldr"), sink)
    present(policy.locality).maps = {"wide": MAP}
    chosen = [policy.choose(ranks(1, 1, 1, 1), uses(e)) for e in (4, 0, 7)]
    present(policy.locality).maps = {}
    chosen.append(policy.choose(ranks(1, 1, 1, 1), uses(4)))
    assert [present(each).index for each in chosen[:3]] == [2, 0, 3]
    played = replay(sink.getvalue().splitlines())
    assert len(played) == 4
    assert not any(each.differs for each in played)
