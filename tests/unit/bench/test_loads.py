"""What decode workers held over time."""

import pytest

from patches.steps.step_log import FIELDS
from tests.unit.bench.steps import decode, rank, step
from toolkit.bench.loads import PIECES, over_time


def test_a_worker_holds_what_its_steps_say_and_nothing_between_them() -> None:
    """One is full for the first half, the other for the second."""
    early = rank(
        "early", [step(4, kv_tokens=1000, end=0.05 * (n + 1), seconds=0.05) for n in range(100)], []
    )
    late = rank(
        "late",
        [step(2, kv_tokens=300, end=5.0 + 0.05 * (n + 1), seconds=0.05) for n in range(100)],
        [],
    )
    found = over_time(decode(early, late, rank("idle", [], [])))
    assert found is not None
    assert len(found["seconds"]) == PIECES
    assert 0 < found["seconds"][0] < 0.1 and found["seconds"][-1] == pytest.approx(10, abs=0.1)
    held = {name: each["requests"] for name, each in found["workers"].items()}
    half = PIECES // 2
    assert held["early"][: half - 1] == [4.0] * (half - 1)
    assert held["early"][half + 1 :] == [0.0] * (half - 1)
    assert held["late"][half + 1 :] == [2.0] * (half - 1)
    assert held["idle"] == [0.0] * PIECES
    tokens = found["workers"]["early"]["kv_tokens"]
    assert sum(tokens) / PIECES == pytest.approx(500, rel=0.02)


def test_without_steps_there_is_nothing() -> None:
    assert "kv_tokens" in FIELDS
    assert over_time(decode(rank("idle", [], []))) is None
