"""Routers over the same stand-in workers: whichever is told, the requests of all of them move."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import post
from tests.unit.router.test_drains import all_said, begin
from tests.unit.router.test_moves import begun, migrate
from tests.unit.router.test_notices import both, keyed, signal_all
from tests.unit.router.test_shared_drains import LONG, named, run_at

CONFIG = {"decode_policy": "round_robin"}


async def missing(at: Cluster, rid: str, **options: Any) -> str:
    """Why a request is not found."""
    status, raw = await post(at, "/admin/migrate", {"rid": rid}, **{"admin": True, **options})
    assert status == 404, raw
    return str(json.loads(raw)["error"]["message"])


@pytest.mark.parametrize("relays", [1, 2])
async def test_a_request_moves_whichever_router_is_told(relays: int) -> None:
    config = {**CONFIG, "relays": relays}
    async with (
        named("a", config=config) as one,
        named("b", beside=one, config=config) as other,
    ):
        await both(one, other)
        tasks = begin(other, 1, LONG, rid="theirs")
        await begun(other)
        told = await migrate(one, rid="theirs")
        assert [move["outcome"] for move in told["moves"]] == ["moved"] and told["moved"] == 1
        assert told["routers"] == ["a", "b"] and "unanswered" not in told
        assert "no request" in await missing(one, "nobody's")
        await all_said(tasks, LONG)


async def test_as_many_move_as_were_asked_for_of_all_together() -> None:
    async with (
        named("a", config=CONFIG) as one,
        named("b", beside=one, config=CONFIG) as other,
    ):
        await both(one, other)
        tasks = begin(one, 2, LONG) + begin(other, 6, LONG)
        for each, count in ((one, 1), (other, 3)):
            await run_at(each, "decode-0", count)
        told = await migrate(one, **{"from": "decode-0", "to": "decode-1", "count": 3})
        assert (told["moved"], len(told["moves"])) == (3, 3)
        await run_at(one, "decode-0", 0)
        await run_at(other, "decode-0", 1)
        await all_said(tasks, LONG)


async def test_a_router_that_does_not_answer_is_named() -> None:
    config = {**CONFIG, "silent_s": 30, "hung_s": 60}
    async with named("a", config=config) as one, named("b", beside=one, config=config) as other:
        await both(one, other)
        signal_all(other, signal.SIGSTOP)
        try:
            since = time.monotonic()
            assert "router b does not answer" in await missing(one, "r")
            assert time.monotonic() - since < 3
        finally:
            signal_all(other, signal.SIGCONT)


async def test_another_admins_order_moves_nothing(tmp_path: Path) -> None:
    config = {**CONFIG, **keyed(tmp_path, "alice")}
    async with (
        named("a", config=config, env={"TK_ADMIN": "key-of-admin"}) as one,
        named("b", beside=one, config=config, env={"TK_ADMIN": "another"}) as other,
    ):
        await both(one, other)
        one.admin_port, other.admin_port = one.port, other.port
        headers = {"Authorization": "Bearer another"}
        assert "router a: the admin key" in await missing(other, "r", headers=headers)
