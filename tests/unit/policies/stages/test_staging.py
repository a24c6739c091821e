"""When stages do not pay."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from toolkit.policies.stages.staging import LEAST_GAIN, against


@pytest.mark.parametrize(
    ("minds", "stages", "gain", "error", "said"),
    [
        (False, 2, 0.5, 0.0, "stages win nothing"),
        (True, 1, 0.5, 0.0, "one stage is best"),
        (True, 2, LEAST_GAIN / 2, 0.0, "stages would win 2.5%"),
        (True, 2, 0.1, 0.2, "less than the 20.0%"),
        (True, 2, 0.1, 0.05, ""),
    ],
)
def test_why_not(minds: bool, stages: int, gain: float, error: float, said: str) -> None:
    found: Any = SimpleNamespace(layout=SimpleNamespace(stages=range(stages)), gain=gain)
    qoe: Any = SimpleNamespace(minds_lengths=minds)
    reason = against(found, qoe, error)
    assert said in reason and bool(reason) is bool(said)
