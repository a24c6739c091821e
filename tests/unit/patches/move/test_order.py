"""Orders about requests that move: what is none is refused with the reason."""

from typing import Any

import msgspec
import pytest

from toolkit.contract.move_orders import End, Ids, Send, decode_order, encode_order
from toolkit.contract.ticket import MAX_LATE

GOOD = {"do": "send", "rid": "a", "room": 7, "known": 40, "late": 16}


@pytest.mark.parametrize(
    "order", [Send("a", 7, 40, 16, 0.25), End("a", 7), Ids("a", 40, [1, 2, 2**31 - 1])]
)
def test_a_right_one_is_read(order: Any) -> None:
    assert decode_order(encode_order(order)) == order
    assert decode_order(msgspec.json.encode(GOOD)) == Send("a", 7, 40, 16)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (None, "no order"),
        ({}, "do"),
        (GOOD | {"do": "fly"}, "fly"),
        (GOOD | {"more": 1}, "more"),
        (GOOD | {"rid": ""}, "rid"),
        (GOOD | {"rid": 3}, "rid"),
        (GOOD | {"room": "7"}, "room"),
        (GOOD | {"known": True}, "known"),
        (GOOD | {"late": 1.5}, "late"),
        (GOOD | {"room": 0}, "room"),
        (GOOD | {"room": 2**63}, "room"),
        (GOOD | {"known": -1}, "known"),
        (GOOD | {"late": 0}, "late"),
        (GOOD | {"late": MAX_LATE + 1}, "late"),
        (GOOD | {"replay_s": -1}, "replay_s"),
        ({"do": "ids", "rid": "a", "at": 3, "ids": [2**31]}, "ids"),
        ({"do": "ids", "rid": "a", "at": 3, "ids": []}, "ids"),
        ({"do": "end", "rid": "a"}, "room"),
    ],
)
def test_another_one_is_refused(wrong: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        decode_order(msgspec.json.encode(wrong))


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[" * 100_000])
def test_no_json_is_no_order(raw: bytes) -> None:
    with pytest.raises(ValueError, match="no order to move a request"):
        decode_order(raw)
