"""Every policy against the same properties, and each one's own formula."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.present import present
from toolkit.contract.request_class import RequestClass
from toolkit.policies import (
    POLICIES,
    PUBLISHED,
    Load,
    RequestView,
    WorkerView,
    check_policy,
    make_policy,
    policy_names,
)
from toolkit.policies.base import group_count, group_of

names = st.sampled_from(sorted(POLICIES | PUBLISHED))
loads = st.none() | st.builds(
    Load,
    running=st.integers(0, 64),
    waiting=st.integers(0, 64),
    used_tokens=st.integers(0, 20_000),
    total_tokens=st.sampled_from([0, 16_384]),
    waiting_tokens=st.integers(0, 50_000),
    sent_requests=st.integers(0, 10),
    sent_tokens=st.integers(0, 10_000),
)


@st.composite
def fleets(draw: st.DrawFn) -> list[WorkerView]:
    count = draw(st.integers(0, 8))
    return [
        WorkerView(
            name=f"w{index}",
            healthy=draw(st.booleans()),
            inflight=draw(st.integers(0, 50)),
            load=draw(loads),
        )
        for index in range(count)
    ]


requests = st.builds(
    RequestView,
    prompt_tokens=st.integers(1, 8192),
    blocks=st.lists(st.integers(0, 5), max_size=6).map(tuple),
    label=st.sampled_from([None, "law", "code", "math"]),
)


@given(names, st.lists(st.tuples(fleets(), requests), max_size=8), st.integers(0, 9))
def test_only_healthy_workers_and_the_same_choices_under_a_seed(
    name: Any, steps: Any, seed: int
) -> None:
    one, two = make_policy(name, seed), make_policy(name, seed)
    for workers, request in steps:
        decision = one.choose(workers, request)
        assert decision == two.choose(workers, request)
        if any(worker.healthy for worker in workers):
            assert decision is not None
            assert workers[decision.index].healthy
        else:
            assert decision is None


@pytest.mark.parametrize("name", sorted(POLICIES | PUBLISHED))
def test_equal_workers_all_get_requests(name: Any) -> None:
    policy = make_policy(name, 3)
    workers = [WorkerView(f"w{index}") for index in range(5)]
    counts = Counter(present(policy.choose(workers, RequestView())).index for _ in range(500))
    assert set(counts) == set(range(5))
    assert workers == [WorkerView(f"w{index}") for index in range(5)], "kept for the next decision"


@given(st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=60))
def test_round_robin_never_leaves_a_present_worker_behind(rounds: Any) -> None:
    """Between two turns of a worker that stays, nobody else gets more than two turns."""
    policy = make_policy("round_robin")
    since: dict[int, Counter[int]] = {}
    for healthy in rounds:
        workers = [WorkerView(f"w{i}", healthy=i in healthy) for i in range(6)]
        chosen = present(policy.choose(workers, RequestView())).index
        since = {i: counter for i, counter in since.items() if i in healthy and i != chosen}
        for i in healthy - {chosen}:
            counter = since.setdefault(i, Counter())
            counter[chosen] += 1
            assert counter[chosen] <= 2


def test_round_robin_is_exact_on_a_fixed_set() -> None:
    policy = make_policy("round_robin")
    workers = [WorkerView(f"w{i}") for i in range(3)]
    assert [present(policy.choose(workers, RequestView())).index for _ in range(6)] == [
        0,
        1,
        2,
        0,
        1,
        2,
    ]


def test_shortest_queue_counts_what_was_sent_since_the_reading() -> None:
    behind = Load(running=1, waiting=0, used_tokens=0, total_tokens=0, waiting_tokens=0,
                  sent_requests=3)  # fmt: skip
    level = Load(running=3, waiting=0, used_tokens=0, total_tokens=0, waiting_tokens=0)
    workers = [WorkerView("a", load=behind), WorkerView("b", load=level)]
    assert present(make_policy("shortest_queue").choose(workers, RequestView())).index == 1


def test_power_of_two_takes_the_shorter_of_its_two() -> None:
    workers = [WorkerView("a", inflight=9), WorkerView("b", inflight=1)]
    policy = make_policy("power_of_two", 1)
    assert {present(policy.choose(workers, RequestView())).index for _ in range(20)} == {1}


def reading(**changes: float) -> Load:
    base: dict[str, Any] = {"running": 0, "waiting": 0, "used_tokens": 0, "total_tokens": 1000,
            "waiting_tokens": 0}  # fmt: skip
    return Load(**{**base, **changes})


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # 2000 tokens at 2000/s = 1 s against 0.15 * 0.9 / 0.1 = 1.35 s of KV pressure
        (reading(waiting_tokens=2000), reading(used_tokens=900), 0),
        (reading(waiting_tokens=3000), reading(used_tokens=900), 1),
        # work sent since counts like work that waits
        (reading(sent_tokens=500), reading(waiting_tokens=400), 1),
        # no reading: 2 in flight * 1024 tokens / 2000 = 1.02 s
        (None, reading(waiting_tokens=2000), 1),
        (None, reading(waiting_tokens=2100), 0),
    ],
)  # fmt: skip
def test_least_tokens_formula(first: Any, second: Any, expected: int) -> None:
    workers = [WorkerView("a", inflight=2, load=first), WorkerView("b", inflight=2, load=second)]
    assert present(make_policy("least_tokens").choose(workers, RequestView())).index == expected


def test_least_tokens_without_any_reading_joins_the_shortest_queue() -> None:
    workers = [WorkerView("a", inflight=4), WorkerView("b", inflight=2)]
    assert present(make_policy("least_tokens").choose(workers, RequestView())).index == 1


def test_prefix_affinity_follows_the_prefix_until_it_is_too_busy() -> None:
    policy = make_policy("prefix_affinity")
    request = RequestView(blocks=(1, 2, 3))
    idle = [WorkerView("a"), WorkerView("b")]
    home = present(policy.choose(idle, request)).index
    assert all(present(policy.choose(idle, request)).index == home for _ in range(5))
    near = [WorkerView(n, inflight=8 if i == home else 0) for i, n in enumerate("ab")]
    assert present(policy.choose(near, request)).index == home
    far = [WorkerView(n, inflight=9 if i == home else 0) for i, n in enumerate("ab")]
    assert present(policy.choose(far, request)).index != home


def test_prefix_affinity_forgets_what_a_worker_held_before_it_was_started_again() -> None:
    policy, request = make_policy("prefix_affinity"), RequestView(blocks=(1, 2, 3))
    ranks = [WorkerView("a"), WorkerView("a", dp_rank=1), WorkerView("b")]
    for busy in range(3):  # all hold it
        views = [WorkerView(r.name, dp_rank=r.dp_rank, inflight=9) for r in ranks]
        views[busy] = ranks[busy]
        policy.choose(views, request)
    policy.replaced("a")
    views = [WorkerView(r.name, dp_rank=r.dp_rank, inflight=4 * (r.name == "b")) for r in ranks]
    assert present(policy.choose(views, request)).index == 2


@given(st.lists(st.lists(st.integers(0, 10_000), max_size=40).map(tuple), max_size=30))
def test_prefix_affinity_memory_is_bounded(prompts: Any) -> None:
    policy = type(make_policy("prefix_affinity"))(capacity=50)  # type: ignore[call-arg]
    for blocks in prompts:
        policy.choose([WorkerView("a"), WorkerView("b")], RequestView(blocks=blocks))
        assert len(policy) <= 50  # type: ignore[arg-type]


def test_registry_names_the_known_policies() -> None:
    assert "prefix_affinity" not in policy_names("decode")
    with pytest.raises(ValueError, match="round_robin"):
        make_policy("rund_robin")
    with pytest.raises(ValueError, match="decode policy"):
        make_policy("prefix_affinity", side="decode")


def test_a_name_may_carry_a_parameter() -> None:
    made = make_policy("eldr@0.05", 3, "decode")
    assert (made.name, made.tau) == ("eldr@0.05", 0.05)  # type: ignore[attr-defined]
    assert make_policy("eldr@0.05", tau=0.3).tau == 0.05, "the name is the closer word"  # type: ignore[attr-defined]
    assert (make_policy("eldr", tau=0.3).name, make_policy("eldr", tau=0.3).tau) == ("eldr", 0.3)  # type: ignore[attr-defined]
    assert make_policy("eldr").tau == 0.1  # type: ignore[attr-defined]
    assert make_policy("round_robin", tau=0.3).name == "round_robin"
    assert [make_policy(name).name for name in POLICIES] == list(POLICIES)
    assert not [name for name in policy_names() if "@" in name]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("nearest", "unknown decode policy 'nearest'"),
        ("nearest@0.1", "unknown decode policy 'nearest@0.1'"),
        ("prefix_affinity", "unknown decode policy"),
        ("", "unknown decode policy ''"),
        ("random@1", "'random' takes no parameter"),
        ("random@", "'random' takes no parameter"),
        ("eldr@", "must be a number"),
        ("eldr@x", "tau = x must be a number"),
        ("eldr@0.1@0.2", "must be a number"),
        ("eldr@-0.1", r"tau = -0.1 must lie in \[0, 1\]"),
        ("eldr@1.01", "must lie in"),
        ("eldr@nan", "must lie in"),
    ],
)
def test_a_name_that_cannot_be_is_refused_with_what_is_known(name: str, wrong: str) -> None:
    for ask in (check_policy, lambda name, side: make_policy(name, 0, side)):
        with pytest.raises(ValueError, match=wrong) as caught:
            ask(name, "decode")
        text = str(caught.value)
        assert "\n" not in text and "round_robin" in text and "eldr[@TAU]" in text


@pytest.mark.parametrize("name", [*policy_names("decode"), "eldr@0", "eldr@1", "eldr@1e-1"])
def test_what_can_be_made_passes_the_check(name: Any) -> None:
    check_policy(name, "decode")
    make_policy(name, 0, "decode")


def test_locality_is_for_the_decode_side() -> None:
    for name in ("eldr", "label_oracle"):
        with pytest.raises(ValueError, match="unknown prefill policy"):
            check_policy(name, "prefill")


def test_a_tau_of_the_configuration_is_checked_too() -> None:
    with pytest.raises(ValueError, match="must lie in"):
        make_policy("eldr", tau=1.5)


@pytest.mark.parametrize("name", sorted(POLICIES | PUBLISHED))
def test_every_policy_documents_itself(name: Any) -> None:
    text = type(make_policy(name)).__doc__ or ""
    for word in ("Degraded", "Knobs"):
        assert word in text


@pytest.mark.parametrize("name", sorted(POLICIES | PUBLISHED))
def test_where_nobody_is_healthy_nobody_is_chosen(name: Any) -> None:
    policy = make_policy(name, 3)
    assert policy.choose([], RequestView()) is None
    assert policy.choose([WorkerView("a", healthy=False)], RequestView()) is None


def test_classes_of_a_request() -> None:
    kinds = {kind: RequestView(request_class=kind) for kind in RequestClass}
    assert [kind for kind, each in kinds.items() if each.best_effort] == [RequestClass.BEST_EFFORT]
    assert [kind for kind, each in kinds.items() if each.urgent] == [RequestClass.LATENCY_SENSITIVE]


def test_dp_attention_ranks_are_one_group() -> None:
    assert (group_count(4, True), group_count(4, False)) == (1, 4)
    assert group_of(("a", 2), True) == ("a", None) and group_of(("a", 2), False) == ("a", 2)
