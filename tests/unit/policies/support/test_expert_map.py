"""Maps whose parts do not belong together."""

from typing import Any

import numpy as np
import pytest

from toolkit.policies.support.expert_map import ExpertMap

GOOD: dict[str, Any] = {
    "slots": np.array([[0, 1], [2, 3]]),
    "own": np.ones((2, 2)),
    "near": np.ones((2, 2)),
    "pairs": np.ones(4),
    "nodes": 2,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"own": np.ones((2, 3))}, "all three must be"),
        ({"slots": np.zeros(4, int)}, "all three must be"),
        ({"nodes": 3}, "do not lie on 3 nodes"),
        ({"nodes": 0}, "do not lie on 0 nodes"),
        ({"pairs": np.ones((4, 1))}, "pairs have shape"),
        ({"slots": np.array([[0, 1], [2, 4]])}, "outside 0..3"),
        ({"near": -np.ones((2, 2))}, "near must be finite"),
        ({"pairs": np.full(4, np.inf)}, "pairs must be finite"),
    ],
)
def test_is_refused(change: Any, message: str) -> None:
    assert ExpertMap(**GOOD).ranks == 2
    with pytest.raises(ValueError, match=message):
        ExpertMap(**(GOOD | change))


def test_a_signature_in_which_nothing_counts_has_no_shares() -> None:
    assert ExpertMap(**GOOD).shares(np.zeros(4, dtype=np.float32)) is None
    found = ExpertMap(**GOOD).shares(np.array([1, 0, 0, 0], dtype=np.float32))
    assert found is not None and found.argmax() == 0
