"""DP attention behind our router: both ranks of a worker serve, and the other side finds them.

A prefill rank takes only bootstrap rooms of its own (`toolkit.router.request.new_room`), and a
decode worker must fetch the KV from the rank that has it. And what is lost between a worker's DP
controller and a rank runs again.
"""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from tests.e2e import calls
from tests.e2e.deployments import deployed
from tests.e2e.reference import Reference
from tests.e2e.workers import state
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.touched("dp-policies")]

TOKENS = 12
CONCURRENCY = 6
LOST_S = 8.0
ONE_RANK: dict[str, Any] = {"kv_tokens": 8192, "max_running": 8}
TWO_RANKS = ONE_RANK | {"tp": 2, "dp": 2, "dp_attention": True}


@pytest.fixture(scope="module", params=["prefill", "decode"])
def up(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """One prefill and one decode worker, of which this one has two ranks; late dispatch."""
    folder: Path = tmp_path_factory.mktemp("dp")
    roles = {"prefill": ONE_RANK, "decode": ONE_RANK} | {request.param: TWO_RANKS}
    router = {"prefill_policy": "round_robin", "decode_policy": "round_robin", "lost_s": LOST_S}
    recipe = {"name": "dp", "device": "cpu", "model": "embedded", **roles, "router": router}
    with deployed(recipe, folder) as deployment:
        yield deployment


def counted(now: dict[str, Any], what: str) -> dict[tuple[str, int], int]:
    """`completed` or `failed`, by worker and DP rank."""
    return {(row["name"], row["dp_rank"]): row[what] for row in now["workers"]}


def prompts() -> list[list[int]]:
    """Short ones, one of several chunks, and some that share a beginning."""
    head = calls.prompt("dp-head", 90)
    own = [calls.prompt(f"dp-{n}", 10 + 35 * n) for n in range(9)]
    shared = [head + calls.prompt(f"dp-tail-{n}", 5 + n) for n in range(6)]
    return [*own, calls.prompt("dp-long", 2100), *shared]


def test_both_ranks_serve_and_tokens_stay(up: Running, reference: Reference) -> None:
    url = up.router_url
    before = calls.run(state(url))
    assert len(before["workers"]) == 3
    asked = prompts()
    bodies = [calls.greedy(ids, TOKENS, stream=n % 2 == 0) for n, ids in enumerate(asked)]
    answers = calls.run(calls.all_of(url, bodies, CONCURRENCY))
    assert [answer.error for answer in answers] == [""] * len(bodies)
    assert [answer.ids for answer in answers] == [reference.greedy(ids, TOKENS) for ids in asked]

    async def off_the_books() -> bool:
        return not any(row["inflight"] for row in (await state(url))["workers"])

    calls.run(calls.until(off_the_books, "every request is off the books"))
    after = calls.run(state(url))
    # The router runs a request again that a worker refused: its client would not notice.
    assert after["retried"] == before["retried"]
    assert counted(after, "failed") == counted(before, "failed")
    first = counted(before, "completed")
    took = {who: count - first[who] for who, count in counted(after, "completed").items()}
    for role in ("prefill", "decode"):
        of_role = [count for (name, _), count in took.items() if name.startswith(role)]
        assert sum(of_role) == len(bodies), took
        assert all(of_role), took


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


@pytest.mark.parametrize("up", ["decode"], indirect=True)
def test_who_connects_to_a_ranks_port_by_mistake_takes_nothing(
    up: Running, reference: Reference
) -> None:
    """As a health check would; see `patches.http.message_sockets`."""
    url = up.router_url
    asked = [calls.prompt(f"dp-stranger-{n}", 30 + n) for n in range(8)]
    bodies = [calls.greedy(ids, TOKENS, stream=False) for ids in asked]
    before = calls.run(state(url))
    with socket.create_connection(("127.0.0.1", a_ranks_port(up))) as stranger:
        stranger.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nUser-Agent: %b\r\n\r\n" % (b"x" * 80))
        answers = calls.run(calls.all_of(url, bodies, len(bodies)))
    assert [answer.ids for answer in answers] == [reference.greedy(ids, TOKENS) for ids in asked]
    assert calls.run(state(url))["retried"] == before["retried"]


@pytest.mark.parametrize("up", ["decode"], indirect=True)
def test_what_is_lost_on_the_way_to_a_rank_runs_again(up: Running, reference: Reference) -> None:
    """A stranger takes every second message that is for one of the ranks, for a while."""
    url = up.router_url
    asked = [calls.prompt(f"dp-lost-{n}", 30 + n) for n in range(8)]
    bodies = [calls.greedy(ids, TOKENS, stream=n % 4 < 2) for n, ids in enumerate(asked)]

    async def scenario() -> list[calls.Answer]:
        with zmq.Context() as context, context.socket(zmq.PULL) as stranger:
            stranger.connect(f"tcp://127.0.0.1:{a_ranks_port(up)}")
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
    assert [answer.ids for answer in answers] == [reference.greedy(ids, TOKENS) for ids in asked]
    assert again() > before
    assert f"no request at all for {LOST_S:g} s" in (up.run_dir / "router.log").read_text()
