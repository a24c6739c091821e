"""BR-0, BR-H, level, Gimbal on real workers: the same tokens as ever, nothing lost in the pool."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import calls
from tests.e2e.deployments import deployed as started
from tests.e2e.reference import Reference
from tests.e2e.workers import state
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.touched("dp-policies")]

TOKENS = 16
CONCURRENCY = 12
PREFILL: dict[str, Any] = {"kv_tokens": 16384, "max_running": 24}
DECODES: dict[str, dict[str, Any]] = {
    "dp attention": {"kv_tokens": 8192, "max_running": 4, "tp": 2, "dp": 2, "dp_attention": True},
    "dp": {"kv_tokens": 8192, "max_running": 4, "dp": 2},
    "servers": {"kv_tokens": 8192, "max_running": 2, "replicas": 2},
}
"""Two ranks with two slots each, in all cases."""


@contextmanager
def deployed(decode: dict[str, Any], folder: Path) -> Iterator[Running]:
    router = {"dispatch": "late", "decode_policy": "br0", "parked_per_prefill": 24}
    recipe = {
        "name": "balance",
        "device": "cpu",
        "model": "embedded",
        "prefill": PREFILL,
        "decode": decode,
        "router": router,
    }
    with started(recipe, folder) as up:
        yield up


# Ranks without a barrier of their steps are told apart by the same fields of the same events.
@pytest.fixture(scope="module", params=["dp attention", pytest.param("dp", marks=pytest.mark.full)])
def two_ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    with deployed(DECODES[request.param], tmp_path_factory.mktemp("balance")) as up:
        yield up


def prompts(name: str, count: int = 16) -> list[list[int]]:
    """Of 10 to 310 tokens, a quarter with the same beginning."""
    head = calls.prompt("balance-head", 60)
    return [
        (head if n % 4 == 0 else []) + calls.prompt(f"{name}-{n}", 10 + 20 * n)
        for n in range(count)
    ]


async def watched(url: str, bodies: list[dict[str, Any]]) -> tuple[list[calls.Answer], int]:
    """The answers, and the most requests that were seen in the pool."""
    sending = asyncio.create_task(calls.all_of(url, bodies, CONCURRENCY))
    most = 0
    while not sending.done():
        most = max(most, (await state(url))["pool"]["waiting"])
        await asyncio.sleep(0.05)
    return await sending, most


@pytest.mark.parametrize("policy", ["br0", "brh@learned", "brh@survival", "level", "gimbal"])
async def test_tokens_stay_and_both_ranks_serve(
    two_ranks: Running, reference: Reference, policy: str
) -> None:
    url = two_ranks.router_url
    asked = prompts(policy)
    bodies = [
        calls.greedy(ids, TOKENS, stream=n % 3 > 0) | {"routing_key": f"user-{n % 5}"}
        for n, ids in enumerate(asked)
    ]
    await calls.switch(url, decode=policy, prefill="gimbal")
    before = await state(url)
    answers, most = await watched(url, bodies)

    async def off_the_books() -> bool:
        return not any(row["inflight"] for row in (await state(url))["workers"])

    await calls.until(off_the_books, "every request is off the books")
    after = await state(url)
    assert [answer.error for answer in answers] == [""] * len(bodies)
    assert [answer.ids for answer in answers] == [reference.greedy(ids, TOKENS) for ids in asked]
    assert after["retried"] == before["retried"]
    ranks = [row for row in after["workers"] if row["role"] == "decode"]
    first = [row["completed"] for row in before["workers"] if row["role"] == "decode"]
    took = [row["completed"] - old for row, old in zip(ranks, first, strict=True)]
    assert sum(took) == len(bodies)
    assert len(took) == 2
    assert min(took) > 0, took
    bound = after["pool"]["bound"] - before["pool"]["bound"]
    assert after["balance"]["samples"] > 0
    if policy == "gimbal":
        assert (bound, most) == (0, 0)
        assert sum(after["decisions"]["decode"]["decisions"].values()) == len(bodies)
        return
    assert bound == len(bodies)
    assert most > 0, "the pool never held anybody: this run proved nothing"
    assert after["decisions"]["decode"]["placed"] == len(bodies)
    assert after["pool"]["expired"] == before["pool"]["expired"]
    for row in ranks:
        assert row["load"]["total_tokens"] == 8192
    if policy.startswith("brh"):
        assert after["decisions"]["decode"]["prediction"]["judged"] == len(bodies) // 4


def test_a_killed_decode_worker_loses_nobody_who_waits(
    tmp_path: Path, reference: Reference
) -> None:
    asked = prompts("killed", 20)
    bodies = [calls.greedy(ids, 3 * TOKENS, stream=True) for ids in asked]

    async def main(up: Running) -> tuple[list[calls.Answer], dict[str, Any]]:
        url = up.router_url
        await calls.switch(url, decode="brh@learned")
        sending = asyncio.create_task(calls.all_of(url, bodies, CONCURRENCY))

        async def crowded() -> bool:
            assert not sending.done(), "the load ended before the kill"
            now = await state(url)
            busy = [row["inflight"] for row in now["workers"] if row["name"] == "decode-0"]
            return bool(now["pool"]["waiting"] >= 3 and busy[0] > 0)

        await calls.until(crowded, "requests wait in the pool")
        pid = up.worker("decode-0").pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return await sending, await state(url)

    with deployed(DECODES["servers"], tmp_path) as up:
        answers, after = calls.run(main(up))
    assert [answer.error for answer in answers] == [""] * len(bodies)
    assert [answer.ids for answer in answers] == [
        reference.greedy(ids, 3 * TOKENS) for ids in asked
    ]
    assert after["resumed"] + after["retried"] > 0
    assert after["pool"]["bound"] >= len(bodies)
