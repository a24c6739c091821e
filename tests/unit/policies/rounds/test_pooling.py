"""The pool is a word before a policy's name, and nothing else of the policy changes."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.policies.pools import fleets, pools
from toolkit.bench.compare import Arm
from toolkit.plan import policy_text
from toolkit.policies import (
    POLICIES,
    PUBLISHED,
    Load,
    RequestView,
    WorkerView,
    check_policy,
    follows_experts,
    make_policy,
    policy_names,
)
from toolkit.policies.dp_method import check_method
from toolkit.policies.rounds.assign import Assigner
from toolkit.policies.rounds.pooling import PooledPolicy, bare
from toolkit.policies.support.given_out import readable, with_sent
from toolkit.policies.support.readings import kv_tokens, read_ranks
from toolkit.settings.deployment import Deployment
from toolkit.settings.router.config import RouterConfig, why_not
from toolkit.simulate.fleet import RouterFleet

OWN = [*policy_names("decode"), *PUBLISHED]
WITH = [name for name in OWN if make_policy(name).needs.pool]
WITHOUT = [name for name in OWN if name not in WITH]
NAMES = [f"pooled@{name}" for name in WITHOUT] + [f"unpooled@{name}" for name in WITH]
CARRYING = [
    "pooled@eldr@0.05",
    "pooled@eldr@paper:0.2",
    "unpooled@br0@0",
    "pooled@gimbal@0.5:0.1:9",
]
CARRYING += ["unpooled@brh@learned:0:gamma=0.9", "unpooled@composed@filter+eldr+br0@0"]


def test_both_words_have_policies() -> None:
    assert {"br0", "brh", "level", "composed", "br0@paper", "brh@paper"} <= set(WITH)
    assert {"shortest_queue", "least_tokens", "eldr", "kv_shortest_queue"} <= set(WITHOUT)


@pytest.mark.parametrize("name", [*NAMES, *CARRYING])
def test_it_stands_wherever_a_policy_does(name: str) -> None:
    made = make_policy(name, 3, "decode")
    assert made.name == name
    pooled = name.startswith("pooled")
    assert isinstance(made, Assigner) == made.needs.pool == pooled
    inner = make_policy(bare(name), 3, "decode")
    assert follows_experts(name) == follows_experts(bare(name)) == (inner.locality is not None)
    assert RouterFleet(decode_policy=name).decode_policy == name
    router = {"decode_policy": name, "profile": "/p"}
    assert Deployment.model_validate({"name": "x", "router": router}).router.decode_policy == name
    assert Arm.parse(f"late:round_robin+{name}").body["decode"] == name
    assert Arm.parse(name).body == {"decode": name}
    assert policy_text.part(name, *POLICIES) is None, "the planner leaves it as it is"


@pytest.mark.parametrize("name", ["pooled@eldr", "unpooled@composed"])
def test_tau_and_what_is_followed_reach_the_policy(name: str) -> None:
    made, own = make_policy(name, tau=0.4), make_policy(bare(name), tau=0.4)
    assert made.locality is not None and made.locality.tau == 0.4
    assert made.needs.following == own.needs.following
    assert (made.inflight is None) == (own.inflight is None)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("pooled@br0", "br0 has the pool already: write br0 alone"),
        ("pooled@composed", "has the pool already"),
        ("unpooled@shortest_queue", "shortest_queue has no pool to leave out"),
        ("pooled", "needs a policy: pooled@POLICY"),
        ("pooled@", "needs a policy: pooled@POLICY"),
        ("pooled@unpooled@br0", "unknown decode policy 'unpooled@br0'"),
        ("pooled@shortest_quue", "unknown decode policy 'shortest_quue'"),
        ("pooled@prefix_affinity", "unknown decode policy"),
        ("unpooled@br0@x", "s_greedy = x must be a number"),
    ],
)
def test_wrong_names_say_why(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_policy(name, "decode")


def test_prefill_has_no_pool_and_lists_say_the_words() -> None:
    with pytest.raises(ValueError, match="only decode policies have a pool; write shortest_queue"):
        check_policy("pooled@shortest_queue", "prefill")
    with pytest.raises(ValueError, match="pooled@POLICY, unpooled@POLICY"):
        check_policy("shortest", "decode")
    with pytest.raises(ValueError) as caught:
        check_policy("shortest", "prefill")
    assert "POLICY" not in str(caught.value)


def test_where_there_is_no_pool_the_word_is_refused() -> None:
    name = "pooled@shortest_queue"
    file = {"name": "x", "router": {"decode_policy": name}}
    with pytest.raises(ValidationError, match="plain workers have no finished prefills"):
        Deployment.model_validate(file | {"mode": "plain"})
    file["router"] = {"decode_policy": name, "dispatch": "concurrent"}
    with pytest.raises(ValidationError, match="is done: set dispatch to late, or write sho"):
        Deployment.model_validate(file)
    with pytest.raises(ValidationError, match="binds before the prefill is done"):
        RouterFleet(decode_policy=name, dispatch="concurrent")
    worker = {"name": "w", "url": "http://127.0.0.1:1", "role": "plain"}
    with pytest.raises(ValidationError, match="plain workers have no finished prefills"):
        RouterConfig.model_validate({"workers": [worker], "decode_policy": name})
    both = [worker | {"role": "prefill", "bootstrap_port": 2}, worker | {"role": "decode"}]
    both[1] |= {"name": "d", "url": "http://127.0.0.1:3"}  # type: ignore[operator]
    config = RouterConfig.model_validate({"workers": both, "decode_policy": name})
    assert why_not(name, config, "late") is None
    assert "or shortest_queue" in str(why_not(name, config, "concurrent"))
    with pytest.raises(ValueError, match="has no pool; write shortest_queue"):
        check_method(name)
    with pytest.raises(ValueError, match="has no pool; write br0"):
        check_method("unpooled@br0", "decode")


@settings(deadline=None)
@given(st.sampled_from(WITH), st.lists(st.tuples(fleets(), st.integers(0, 2500)), max_size=5))
def test_unpooled_it_chooses_as_it_does_alone(name: str, steps: list[Any]) -> None:
    alone, unpooled = make_policy(name, 5), make_policy(f"unpooled@{name}", 5)
    for workers, tokens in steps:
        request = RequestView(prompt_tokens=tokens, user="u")
        assert unpooled.choose(workers, request) == alone.choose(workers, request)


def by_hand(
    name: str, workers: Sequence[WorkerView], waiting: Sequence[RequestView]
) -> list[tuple[int, int]]:
    """One after the other over who has room, all read anew after each."""
    policy = make_policy(name, 5)
    now, made = [readable(worker) for worker in workers], []
    biggest = read_ranks(now).pool
    for at, request in enumerate(waiting):
        ranks, size = read_ranks(now), kv_tokens(request)
        open_ = [
            (index, ranks.silent[g])
            for g, index in enumerate(ranks.index)
            if ranks.slots[g] >= 1 and (ranks.room[g] >= size or size > biggest)
        ]
        who = [index for index, silent in open_ if not silent] or [index for index, _ in open_]
        decision = policy.choose([now[index] for index in who], request) if who else None
        if decision is not None:
            index = who[decision.index]
            made.append((at, index))
            now[index] = with_sent(now[index], size, biggest)
    return made


@settings(deadline=None)
@given(st.sampled_from(["shortest_queue", "least_tokens", "round_robin"]), fleets(), pools)
def test_pooled_it_is_asked_of_open_ranks_in_order_of_arrival(
    name: str, workers: Any, waiting: Any
) -> None:
    pooled = make_policy(f"pooled@{name}", 5)
    assert isinstance(pooled, Assigner)
    made = pooled.assign(workers, waiting)
    assert [(each.request, each.worker) for each in made] == by_hand(name, workers, waiting)


def test_who_has_waited_too_long_goes_as_the_policy_alone_would_send_him() -> None:
    full = [WorkerView(f"w{i}", inflight=8 + i, slots=8) for i in range(3)]
    pooled = PooledPolicy(make_policy("shortest_queue"))
    assert pooled.assign(full, [RequestView(prompt_tokens=3)]) == []
    decision = pooled.choose(full, RequestView(prompt_tokens=3))
    assert decision is not None and decision.index == 0


def test_it_is_followed_as_the_policy_that_it_wraps_and_full_ranks_get_nothing() -> None:
    pooled = make_policy("pooled@shortest_queue")
    assert isinstance(pooled, Assigner)
    assert not pooled.follow().lengths and make_policy("unpooled@brh@survival").follow().lengths
    full = WorkerView("a", inflight=4, load=Load(4, 0, 0, 1000, 0), slots=4)
    assert pooled.assign([full], [RequestView(prompt_tokens=1)]) == []
