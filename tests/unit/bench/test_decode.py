"""What is made of the decode workers' step logs, on rows whose answers are known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches.steps.step_log import FIELDS
from tests.unit.bench.steps import decode, done, rank, step
from toolkit.bench.decode import DecodeSteps


def test_every_step_counts_once_and_dense_layers_not_at_all() -> None:
    found = decode(
        rank("a", [step(8, 0, 20, 24), step(4, 0, 10, 14)], [done(12, 0.3, 0.1)]),
        rank("b", [step(1, 0, 4, 4, seconds=0.05)], [done(4, 0.1, 0.06), done(2, 0.0, 0.0)]),
    )
    metrics = found.metrics()
    assert metrics["decode_steps"] == 3
    assert metrics["mean_batch"] == pytest.approx(13 / 3)
    assert metrics["mean_kv_tokens"] == pytest.approx(50 * 13 / 3)
    assert metrics["distinct_experts"] == pytest.approx((22 + 12 + 4) / 3)
    # Two requests have a TPOT: 10 tokens in 0.1 s and 2 in 0.06 s on a core of their own.
    assert metrics["median_worker_tpot_ms"] == pytest.approx((10 + 30) / 2)
    assert metrics["median_worker_tpot_wall_ms"] == pytest.approx((30 + 50) / 2)
    assert metrics["p90_step_ms"] == pytest.approx(8)
    assert metrics["mean_step_wall_ms"] == pytest.approx(30)
    workers = found.by_worker()
    assert workers["a"]["distinct_experts"] == pytest.approx(17)
    assert (workers["b"]["finished"], workers["b"]["decode_steps"]) == (2, 1)
    by_batch = found.by_batch()
    assert list(by_batch) == [1, 4, 8]
    assert by_batch[8] == {"steps": 1, "step_ms": pytest.approx(8), "distinct_experts": 22.0}


def test_on_an_accelerator_the_wall_is_its_own_clock() -> None:
    found = decode(rank("a", [step(8, 20)], [done(12, 0.3, 0.0)]), clock="wall").metrics()
    assert found["median_worker_tpot_ms"] == found["median_worker_tpot_wall_ms"]
    assert found["median_step_ms"] == pytest.approx(20)


def test_what_was_not_measured_has_no_key() -> None:
    nothing = decode(rank("a", [], []), rank("b", [], [])).metrics()
    assert nothing == {"worker_clock": "cpu", "decode_steps": 0}
    never = DecodeSteps((rank("a", [], []),), (), (), "cpu")
    assert never.metrics()["decode_steps"] == 0
    assert never.between(0, 1).by_batch() == {}
    without = decode(rank("a", [step(8)], [done(2, 0.0, 0.0)])).metrics()
    assert "distinct_experts" not in without
    assert "median_worker_tpot_ms" not in without
    assert without["mean_batch"] == 8


def test_a_worker_without_captured_experts_does_not_drag_the_mean() -> None:
    found = decode(rank("a", [step(8, 20, 24)], []), rank("b", [step(8)], [])).metrics()
    assert found["distinct_experts"] == pytest.approx(22)
    assert found["decode_steps"] == 2


@pytest.mark.slow
@given(st.lists(st.lists(st.tuples(st.integers(1, 16), st.integers(1, 40)), max_size=9)))
def test_all_workers_are_the_sum_of_each(rows: list[list[tuple[int, int]]]) -> None:
    ranks = [
        rank(str(i), [step(batch, distinct, 0) for batch, distinct in each], [])
        for i, each in enumerate(rows)
    ]
    found = decode(*ranks)
    each = list(found.by_worker().values())
    count = sum(worker["decode_steps"] for worker in each)
    assert found.metrics()["decode_steps"] == count
    assert sum(entry["steps"] for entry in found.by_batch().values()) == count
    if count:
        pooled = sum(w["decode_steps"] * w.get("distinct_experts", 0) for w in each) / count
        assert found.metrics()["distinct_experts"] == pytest.approx(pooled)


def test_a_window_takes_what_ended_in_it() -> None:
    steps = [step(n + 1, 5, end=float(n)) for n in range(10)]
    found = decode(rank("a", steps, [done(5, 0.1, 0.1, end=float(n)) for n in range(10)]))
    part = found.between(3.0, 6.0)
    assert part.ranks[0].steps[:, FIELDS.index("requests")].tolist() == [4, 5, 6]
    assert part.ranks[0].finished[:, 0].tolist() == [3, 4, 5]
    assert part.metrics()["window_throughput"] == (4 + 5 + 6) / 3.0
    assert "window_throughput" not in found.metrics()


def test_with_a_draft_a_step_gives_more_than_a_token() -> None:
    steps = [step(2, 5, new_tokens=made, end=float(n)) for n, made in enumerate((3, 8, 2, 7))]
    found = decode(rank("a", steps, []))
    assert found.metrics()["step_tokens"] == 20 / 8
    assert found.between(0.0, 2.0).metrics()["window_throughput"] == 11 / 2.0
