"""Orders to send a request elsewhere: what is none is refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from patches.move.order import MoveOrder, read_order
from toolkit.contract.ticket import MAX_LATE

GOOD = {"rid": "a", "room": 7, "count": 40, "late": 16}


def test_a_right_one_is_read() -> None:
    assert read_order(GOOD) == MoveOrder("a", 7, 40, 16)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (None, "an order is an object"),
        ({}, "an order is an object"),
        (GOOD | {"more": 1}, "an order is an object"),
        (GOOD | {"rid": ""}, "rid"),
        (GOOD | {"rid": 3}, "rid"),
        (GOOD | {"room": "7"}, "whole numbers"),
        (GOOD | {"count": True}, "whole numbers"),
        (GOOD | {"late": 1.0}, "whole numbers"),
        (GOOD | {"room": 0}, "room"),
        (GOOD | {"room": 2**63}, "room"),
        (GOOD | {"late": -1}, "late"),
        (GOOD | {"late": 41}, "late"),
        (GOOD | {"late": MAX_LATE + 1, "count": 500}, "late"),
    ],
)
def test_another_one_is_refused(wrong: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_order(wrong)
