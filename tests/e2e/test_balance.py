"""BR-0, BR-H, level, Gimbal on real workers: the same tokens as ever, nothing lost in the pool.

And a decode worker of two DP ranks: both serve, and what is lost between its DP controller and a
rank runs again.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from tests.e2e import calls
from tests.e2e.deployments import deployed as started
from tests.e2e.reference import Reference
from tests.e2e.test_dp_prefill import both_ranks_serve
from tests.e2e.workers import state
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.touched("dp-policies")]

TOKENS = 16
CONCURRENCY = 12
LOST_S = 8.0
PREFILL: dict[str, Any] = {"kv_tokens": 16384, "max_running": 24}
DECODES: dict[str, dict[str, Any]] = {
    "dp attention": {"kv_tokens": 8192, "max_running": 4, "tp": 2, "dp": 2, "dp_attention": True},
    "dp": {"kv_tokens": 8192, "max_running": 4, "dp": 2},
    "servers": {"kv_tokens": 8192, "max_running": 2, "replicas": 2},
}
"""Two ranks with two slots each, in all cases."""


@contextmanager
def deployed(decode: dict[str, Any], folder: Path, **more: Any) -> Iterator[Running]:
    router = {"dispatch": "late", "decode_policy": "br0", "parked_per_prefill": 24, **more}
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
    folder = tmp_path_factory.mktemp("balance")
    with deployed(DECODES[request.param], folder, lost_s=LOST_S) as up:
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
    said = [answer.ids for answer in answers]
    assert said == reference.greedy_each(asked, TOKENS, said)
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


ATTENTION = pytest.mark.parametrize("two_ranks", ["dp attention"], indirect=True)


def in_turn(two_ranks: Running) -> str:
    """The router's URL, its requests given out to one rank after the other."""
    url = two_ranks.router_url
    calls.run(calls.switch(url, decode="round_robin", prefill="round_robin"))
    return url


@ATTENTION
def test_the_prefill_worker_s_kv_comes_to_the_rank_that_asks(
    two_ranks: Running, reference: Reference
) -> None:
    both_ranks_serve(in_turn(two_ranks), reference)


def a_ranks_port(up: Running) -> int:
    """Where the decode worker's DP controller listens for one of its ranks, which gets its requests
    from there."""
    worker = up.worker("decode-0")
    assert worker.pid is not None
    family = psutil.Process(worker.pid).children(recursive=True)
    rank = next(p for p in family if "scheduler" in " ".join(p.cmdline()))
    controller = next(p for p in family if "data_parallel_controller" in " ".join(p.cmdline()))
    listens = {c.laddr.port for c in controller.net_connections("tcp") if not c.raddr}
    mine = {c.raddr.port for c in rank.net_connections("tcp") if c.raddr}
    (port,) = listens & mine
    return int(port)


@ATTENTION
def test_who_connects_to_a_ranks_port_by_mistake_takes_nothing(
    two_ranks: Running, reference: Reference
) -> None:
    """As a health check would; see `patches.http.message_sockets`."""
    url = in_turn(two_ranks)
    asked = [calls.prompt(f"dp-stranger-{n}", 30 + n) for n in range(8)]
    bodies = [calls.greedy(ids, TOKENS, stream=False) for ids in asked]
    before = calls.run(state(url))
    with socket.create_connection(("127.0.0.1", a_ranks_port(two_ranks))) as stranger:
        stranger.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nUser-Agent: %b\r\n\r\n" % (b"x" * 80))
        answers = calls.run(calls.all_of(url, bodies, len(bodies)))
    said = [answer.ids for answer in answers]
    assert said == reference.greedy_each(asked, TOKENS, said)
    assert calls.run(state(url))["retried"] == before["retried"]


@ATTENTION
def test_what_is_lost_on_the_way_to_a_rank_runs_again(
    two_ranks: Running, reference: Reference
) -> None:
    """A stranger takes every second message that is for one of the ranks, for a while."""
    url = in_turn(two_ranks)
    asked = [calls.prompt(f"dp-lost-{n}", 30 + n) for n in range(8)]
    bodies = [calls.greedy(ids, TOKENS, stream=n % 4 < 2) for n, ids in enumerate(asked)]

    async def scenario() -> list[calls.Answer]:
        with zmq.Context() as context, context.socket(zmq.PULL) as stranger:
            stranger.connect(f"tcp://127.0.0.1:{a_ranks_port(two_ranks)}")
            answers = asyncio.create_task(calls.all_of(url, bodies, len(bodies)))

            async def stolen() -> bool:
                return bool(stranger.poll(0))

            await calls.until(stolen, "the stranger has got something")
        return await answers

    def again() -> int:
        """Those whose client has the first token, from the prefill worker, are resumed."""
        now = calls.run(state(url))
        return int(now["retried"]) + int(now["resumed"])

    before = again()
    answers = calls.run(scenario())
    assert [answer.error for answer in answers] == [""] * len(bodies)
    said = [answer.ids for answer in answers]
    assert said == reference.greedy_each(asked, TOKENS, said)
    assert again() > before
    assert f"no request at all for {LOST_S:g} s" in (two_ranks.run_dir / "router.log").read_text()


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
    said = [answer.ids for answer in answers]
    assert said == reference.greedy_each(asked, 3 * TOKENS, said)
    assert after["resumed"] + after["retried"] > 0
    assert after["pool"]["bound"] >= len(bodies)
