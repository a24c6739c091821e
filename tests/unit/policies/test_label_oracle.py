"""The label oracle: every label has a home."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.present import present
from toolkit.policies import RequestView, WorkerView
from toolkit.policies.label_oracle import LabelOraclePolicy


def fleet(*inflight: int, down: frozenset[int] = frozenset()) -> list[WorkerView]:
    return [WorkerView(f"w{i}", inflight=n, healthy=i not in down) for i, n in enumerate(inflight)]


def ask(policy: LabelOraclePolicy, workers: list[WorkerView], label: str | None) -> int:
    return present(policy.choose(workers, RequestView(label=label))).index


def test_each_label_gets_its_own_worker_in_order_whatever_the_queues() -> None:
    policy = LabelOraclePolicy()
    busy = fleet(50, 9, 1, 0)
    assert [ask(policy, busy, label) for label in ("law", "code", "math", "art")] == [0, 1, 2, 3]
    assert ask(policy, busy, "fifth") == 0
    assert [ask(policy, busy, "law") for _ in range(5)] == [0] * 5


@given(st.lists(st.integers(0, 40), min_size=20, max_size=60), st.integers(1, 5))
def test_labels_stay_and_are_spread_evenly(labels: list[int], workers: int) -> None:
    policy, homes = LabelOraclePolicy(), {}  # type: ignore[var-annotated]
    for label in labels:
        chosen = ask(policy, fleet(*[0] * workers), str(label))
        assert homes.setdefault(label, chosen) == chosen
    counts = [Counter(homes.values())[i] for i in range(workers)]
    assert max(counts) - min(counts) <= 1


def test_a_label_comes_back_to_its_worker() -> None:
    policy = LabelOraclePolicy()
    assert ask(policy, fleet(0, 0, 0), "law") == 0
    decision = policy.choose(fleet(0, 4, 2, down=frozenset({0})), RequestView(label="law"))
    assert present(decision).index == 2 and "down" in present(decision).reason
    assert ask(policy, fleet(0, 4, 2)[1:], "law") == 1, "a worker that is not listed is not there"
    assert ask(policy, fleet(99, 0, 0), "law") == 0


def test_a_new_label_does_not_settle_on_a_worker_that_is_down() -> None:
    policy = LabelOraclePolicy()
    assert ask(policy, fleet(0, 0, down=frozenset({0})), "law") == 1
    assert ask(policy, fleet(0, 0), "law") == 1
    assert ask(policy, fleet(0, 0), "code") == 0


def test_without_a_label_the_shortest_queue() -> None:
    policy = LabelOraclePolicy()
    assert ask(policy, fleet(3, 1), None) == 1
    assert ask(policy, fleet(3, 1), "") == 1
    assert len(policy) == 0


def test_nobody_is_healthy() -> None:
    policy = LabelOraclePolicy()
    assert policy.choose(fleet(0, down=frozenset({0})), RequestView(label="law")) is None
    assert len(policy) == 0


@given(st.lists(st.integers(0, 30), max_size=200))
def test_memory_is_bounded_and_forgotten_labels_weigh_nothing(labels: list[int]) -> None:
    policy = LabelOraclePolicy(capacity=4)
    for label in labels:
        ask(policy, fleet(0, 0), str(label))
        assert len(policy) <= 4
        assert sum(policy._labels.values()) == len(policy)


def test_a_flood_of_labels_does_not_move_one_that_is_in_use() -> None:
    policy = LabelOraclePolicy(capacity=8)
    ask(policy, fleet(0, 0, 0), "first")
    assert ask(policy, fleet(0, 0, 0), "law") == 1
    for number in range(1000):
        ask(policy, fleet(0, 0, 0), f"noise-{number}")
        assert ask(policy, fleet(0, 0, 0), "law") == 1


def test_ranks_that_share_their_experts_are_one_home_with_the_shortest_queue_inside() -> None:
    policy = LabelOraclePolicy()
    queues = {"a": (4, 1), "b": (0, 0)}
    workers = [
        WorkerView(name, dp_rank=rank, inflight=n, shares_experts=True)
        for name, ranks in queues.items()
        for rank, n in enumerate(ranks)
    ]
    assert [ask(policy, workers, label) for label in ("law", "code", "math")] == [1, 2, 1]
    assert ask(policy, workers, "code") == 3, "in turn, where queues are equal"
    assert ask(policy, [replace(w, healthy=w.name == "b") for w in workers], "law") in (2, 3)
