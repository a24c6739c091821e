"""Algorithm 1 of QLLM, by a table and by what follows from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.policies.preemption.batches import PhaseBatch, Queues, next_batch

CASES = [
    (Queues(), None),
    (Queues(urgent_decode=4, urgent_prefill=9), PhaseBatch("decode", 4, 0)),
    (Queues(urgent_decode=9, urgent_prefill=9, best_effort_decode=9), PhaseBatch("decode", 4, 0)),
    (Queues(urgent_decode=3, urgent_prefill=1, best_effort_decode=5), PhaseBatch("prefill", 1, 0)),
    (Queues(urgent_prefill=1, best_effort_prefill=7), PhaseBatch("prefill", 1, 3)),
    (Queues(urgent_prefill=5, best_effort_prefill=7), PhaseBatch("prefill", 4, 0)),
    (
        Queues(urgent_decode=3, best_effort_decode=7, best_effort_prefill=2),
        PhaseBatch("decode", 3, 1),
    ),
    (Queues(urgent_decode=3, best_effort_prefill=2), PhaseBatch("decode", 3, 0)),
    (Queues(best_effort_decode=2, best_effort_prefill=9), PhaseBatch("decode", 0, 2)),
    (Queues(best_effort_prefill=9), PhaseBatch("prefill", 0, 4)),
]
"""With a batch size of 4."""
COUNTS = st.integers(0, 12)


@pytest.mark.parametrize(("queues", "expected"), CASES)
def test_the_table(queues: Queues, expected: PhaseBatch | None) -> None:
    assert next_batch(queues, 4) == expected


@given(st.builds(Queues, COUNTS, COUNTS, COUNTS, COUNTS), st.integers(1, 10))
def test_a_batch_is_of_those_who_wait_and_no_slot_is_left_that_they_could_use(
    queues: Queues, size: int
) -> None:
    batch = next_batch(queues, size)
    if batch is None:
        assert not any(queues)
        return
    urgent, best_effort = (
        (queues.urgent_prefill, queues.best_effort_prefill)
        if batch.phase == "prefill"
        else (queues.urgent_decode, queues.best_effort_decode)
    )
    assert batch.urgent == min(urgent, size)
    assert batch.urgent + batch.best_effort == min(size, urgent + best_effort)
    if queues.urgent_prefill or queues.urgent_decode:
        assert batch.urgent


@pytest.mark.parametrize(("queues", "size"), [(Queues(1), 0), (Queues(-1), 3)])
def test_nonsense_is_an_error(queues: Queues, size: int) -> None:
    with pytest.raises(ValueError, match="no batch"):
        next_batch(queues, size)
