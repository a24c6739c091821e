"""A router of several processes answers as one: bounds, metrics, questions about any request."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.standin.cluster import Cluster
from tests.standin.relays import RELAYS, clients_of, kill, processes, until_all_accept
from tests.unit.router.cluster_calls import bodies, expected, idle, post, prompt_of, text_of
from toolkit.settings.router.relays import automatic

pytestmark = pytest.mark.touched("router")

PATH = "/v1/completions"
CONFIG: dict[str, Any] = {"relays": RELAYS}
ARGS = ["--token-ms", "10", "--steps"]


async def counted(cluster: Cluster, name: str) -> float:
    """A counter's value over all its labels."""
    async with cluster.session.get(f"{cluster.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    rows = [line.rpartition(" ") for line in lines if line.startswith(name)]
    return sum(float(value) for head, _, value in rows if head.partition("{")[0] == name)


async def counts(cluster: Cluster, name: str, wanted: float, least: float = 0) -> None:
    """A counter comes to a value, from `least` on: a page may be a moment old, and a request is
    counted after its client has its last event."""
    values = [least, await counted(cluster, name)]
    async with asyncio.timeout(10):
        while values[-1] != wanted:
            await asyncio.sleep(0.02)
            values.append(await counted(cluster, name))
    assert values == sorted(values), "it went back"


async def both_serve(cluster: Cluster, count: int) -> None:
    """So many requests, each on a connection of its own."""

    async def one() -> None:
        body = bodies(20)[PATH]
        async with (
            aiohttp.ClientSession() as http,
            http.post(cluster.url + PATH, json=body) as answer,
        ):
            assert text_of(PATH, await answer.read()) == expected(prompt_of(PATH), 20)

    await until_all_accept(cluster)
    calls = [asyncio.create_task(one()) for _ in range(count)]
    shares = [0] * RELAYS
    while not (all(shares) or all(call.done() for call in calls)):
        await asyncio.sleep(0.01)
        now = [len(clients_of(cluster, f"tk-relay-{relay + 1}")) for relay in range(RELAYS)]
        shares = [max(pair) for pair in zip(shares, now, strict=True)]
    assert all(shares), shares
    await asyncio.gather(*calls)


async def test_counters_are_of_all_processes_and_never_go_back() -> None:
    async with Cluster(decodes=2, worker_args=ARGS, config=CONFIG) as cluster:
        await both_serve(cluster, 20)
        name = "toolkit_router_requests_total"
        await counts(cluster, name, 20)
        await counts(cluster, "toolkit_router_tokens_total", 400)
        await counts(cluster, "toolkit_router_ttft_seconds_count", 20)
        await kill(cluster, "tk-relay-1")
        assert await counted(cluster, name) == 20
        await both_serve(cluster, 10)
        await counts(cluster, name, 30, least=20)
        async with asyncio.timeout(10):  # a gauge
            while await counted(cluster, "toolkit_router_running"):
                await asyncio.sleep(0.02)


async def test_a_request_is_found_and_aborted_at_any_relay() -> None:
    async with Cluster(decodes=2, worker_args=ARGS, config=CONFIG) as cluster:
        names = [f"mine-{number}" for number in range(8)]
        calls = [
            asyncio.create_task(post(cluster, PATH, bodies(2000, rid=name)[PATH])) for name in names
        ]
        await cluster.until(lambda state: state["running"] == 8)
        for name in names:
            async with cluster.session.get(f"{cluster.admin}/requests/{name}") as answer:
                (found,) = (await answer.json())["requests"]
                assert (found["rid"], found["state"]) == (name, "running")
            assert (await post(cluster, "/abort_request", {"rid": name}))[0] == 200
        for _, raw in await asyncio.gather(*calls):
            assert b"aborted" in raw
        await cluster.until(idle)
        async with cluster.session.get(f"{cluster.admin}/requests/mine-0") as answer:
            assert (await answer.json())["requests"][0]["state"] == "aborted"


async def test_relays_share_their_places() -> None:
    """Whoever waits at one relay gets the slot that another one frees."""
    config = CONFIG | {"max_inflight": 4, "max_queue": 60}
    async with Cluster(decodes=2, worker_args=ARGS, config=config) as cluster:
        calls = [asyncio.create_task(post(cluster, PATH, bodies(20)[PATH])) for _ in range(40)]
        peak = 0
        while not all(call.done() for call in calls):
            peak = max(peak, (await cluster.state())["running"])
            await asyncio.sleep(0.005)
        assert [status for status, _ in await asyncio.gather(*calls)] == [200] * 40
        # Two relays may take the last slot in the same moment.
        assert 4 <= peak <= 4 + RELAYS - 1
        await cluster.until(idle)


async def test_too_many_requests_are_refused_whoever_has_them() -> None:
    config = CONFIG | {"max_inflight": 4, "max_queue": 8}
    async with Cluster(decodes=2, worker_args=ARGS, config=config) as cluster:
        calls = [post(cluster, PATH, bodies(60)[PATH]) for _ in range(40)]
        told = [status for status, _ in await asyncio.gather(*calls)]
        assert 12 <= told.count(200) <= 12 + 2 * RELAYS and told.count(429) == 40 - told.count(200)
        await cluster.until(idle)


async def test_one_file_records_what_all_relays_serve(tmp_path: Path) -> None:
    config = CONFIG | {"record": str(tmp_path / "traffic.jsonl")}
    async with Cluster(decodes=2, worker_args=ARGS, config=config) as cluster:
        await both_serve(cluster, 20)
        await cluster.until(idle)
    rows = [json.loads(line) for line in (tmp_path / "traffic.jsonl").read_text().splitlines()]
    assert len(rows) == 20
    assert [row["timestamp"] for row in rows] == sorted(row["timestamp"] for row in rows)
    assert {row["output_length"] for row in rows} == {20}
    assert len({tuple(row["hash_ids"]) for row in rows}) == 1, "equal prompts have equal names"


async def test_the_admin_s_port_and_the_clients_say_the_same() -> None:
    env = {"ADMIN": "secret"}
    async with Cluster(decodes=2, config=CONFIG | {"admin_key_env": "ADMIN"}, env=env) as cluster:
        headers = {"Authorization": "Bearer secret"}
        for url in (cluster.url, cluster.admin):
            async with cluster.session.get(f"{url}/workers", headers=headers) as answer:
                assert len((await answer.json())["workers"]) == 3
            order = {"moves": "replay"}
            async with cluster.session.post(f"{url}/admin/policy", json=order) as answer:
                assert answer.status == 401
        status, _ = await post(cluster, "/admin/policy", {"moves": "replay"}, headers=headers)
        assert status == 200
        async with cluster.session.get(f"{cluster.url}/v1/models") as answer:
            assert answer.status in (200, 404, 502, 503)


@pytest.mark.parametrize("dies", ["tk-decider", "tk-relay-1"])
async def test_a_wrong_configuration_is_said_once(dies: str, tmp_path: Path) -> None:
    """Of the first process that reads it; afterwards it is not read again."""
    async with Cluster(decodes=1, config=CONFIG) as cluster:
        cluster.config_path.write_text("nonsense")
        await kill(cluster, dies)
        await cluster.until_ready()
        assert len(processes(cluster)) == RELAYS + 1


def test_as_many_relays_as_cores_and_streams_ask_for() -> None:
    assert automatic(2, 10_000) == 1
    assert automatic(8, 10_000) == 2
    assert automatic(64, 10_000) == 10
    assert automatic(64, 256) == 1
    assert automatic(64, 0) == 1
    assert [automatic(64, 10_000, routers) for routers in (1, 2, 5, 40)] == [10, 8, 3, 1]
