"""Orders to drain and to move that cannot be followed: refused, with what to write."""

import asyncio
import json
from typing import Any

import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import post

DRAINS: list[tuple[Any, int, str]] = [
    ({"worker": "decode-9"}, 400, "one of prefill-0, decode-0, decode-1"),
    ({"worker": ""}, 400, "one of"),
    ({"worker": "decode-0", "on": True}, 400, "the body must be"),
    ({"worker": "decode-0", "undo": 1}, 400, '"undo" must be'),
    ({"worker": "decode-0", "undo": True, "deadline_s": 1}, 400, "goes alone"),
    ({"worker": "decode-0", "deadline_s": -1}, 400, '"deadline_s" must be'),
    ({"worker": "decode-0", "deadline_s": True}, 400, '"deadline_s" must be'),
    ({"worker": "prefill-0"}, 409, "the last prefill worker"),
    ({"of": "decode-0"}, 400, "the body must be"),
]
MOVES: list[tuple[Any, int, str]] = [
    ([], 400, "the body must be"),
    ({}, 400, '"rid" or "from"'),
    ({"rid": "r", "from": "decode-0"}, 400, '"rid" or "from"'),
    ({"rid": 7}, 400, '"rid" must be'),
    ({"rid": "r", "count": 2}, 400, '"count" goes with "from"'),
    ({"from": "decode-0", "count": 0}, 400, "whole number"),
    ({"from": "decode-0", "count": True}, 400, "whole number"),
    ({"from": "decode-9"}, 400, "one of decode-0, decode-1"),
    ({"from": "prefill-0"}, 400, "one of decode-0, decode-1"),
    ({"from": "decode-0:1"}, 400, "one of decode-0, decode-1"),
    ({"from": "decode-0", "to": "decode-0"}, 400, "the same"),
    ({"rid": "r", "to": 1}, 400, '"to" must name'),
    ({"rid": "r", "with": 1}, 400, "the body must be"),
    ({"rid": "unknown"}, 404, "no request"),
]


@pytest.fixture(scope="module")
def lone() -> Any:
    """Asks one router after the other's answer; nothing runs there."""
    loop = asyncio.new_event_loop()
    router = Cluster(worker_args=["--resume", "--token-ms", "4"])
    loop.run_until_complete(router.__aenter__())
    yield lambda path, body: loop.run_until_complete(post(router, path, body, admin=True))
    loop.run_until_complete(router.__aexit__())
    loop.close()


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        *(("/admin/drain", *order) for order in DRAINS),
        *(("/admin/migrate", *order) for order in MOVES),
    ],
)
def test_wrong_orders_are_refused_with_what_to_write(
    lone: Any, path: str, body: Any, status: int, says: str
) -> None:
    answered, raw = lone(path, body)
    assert answered == status
    assert says in json.loads(raw)["error"]["message"]
