"""File descriptors: raised at start, and a shortage that is never blamed on workers."""

import asyncio
import json
import os
import resource
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import psutil

from tests.standin.cluster import Cluster, of_one_process
from tests.unit.router.cluster_calls import bodies, idle, post
from tests.unit.router.raw import PATH, Raw
from toolkit.router.descriptors import SPARE, client_share, raise_limit
from toolkit.router.events import OURS, fetch
from toolkit.router.known_workers import KnownWorkers
from toolkit.settings.router.config import RouterConfig


@of_one_process
async def test_without_descriptors_clients_get_503_and_no_worker_is_blamed() -> None:
    config = {"max_retries": 0}
    async with Cluster(worker_args=["--token-ms", "10"], config=config) as cluster:
        assert cluster.router is not None
        pid = cluster.router.pid
        for _ in range(5):
            await post(cluster, PATH, bodies(1)[PATH])
        await cluster.session.close()
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 36, hard))
        body = json.dumps(bodies(50)[PATH]).encode()
        statuses = []
        async with AsyncExitStack() as stack:

            async def one(client: Raw) -> None:
                await client.head(len(body))
                await client.send(body)
                first = await client.reader.readline()
                statuses.append(int(first.split()[1]) if first else 0)
                await client.reader.read()

            opened = [await stack.enter_async_context(Raw(cluster.port)) for _ in range(60)]
            calls = [asyncio.ensure_future(one(client)) for client in opened]
            await asyncio.sleep(1.0)
            process = psutil.Process(pid)
            before = process.cpu_times()
            await asyncio.sleep(1.0)
            after = process.cpu_times()
            spent = after.user + after.system - before.user - before.system
            assert spent < 0.5, "it spins on a socket that it cannot accept from"
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
            await asyncio.sleep(0.5)  # who was not accepted is accepted now
            for client in opened:
                client.writer.write_eof()
            await asyncio.wait(calls, timeout=5)
            for call in calls:
                call.cancel()
        assert statuses.count(503) > 3, statuses
        assert set(statuses) <= {200, 503}, statuses
        log = cluster.log.read_text()
        assert "is down" not in log and "attempt 1 failed" not in log
        assert "file descriptors" in log
        cluster.session = aiohttp.ClientSession()
        await cluster.until(idle)
        assert (await post(cluster, PATH, bodies(1)[PATH]))[0] == 200


def test_clients_leave_descriptors_for_workers() -> None:
    assert client_share(20_000, 4, 256) == 20_000 - SPARE - 8 - 512
    assert client_share(64, 3, 256) == 4
    assert client_share(10, 3, 256) == 1


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        assert raise_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_health_check_that_could_not_be_sent_says_nothing_of_the_worker() -> None:
    worker = {"name": "a", "role": "plain", "url": "http://127.0.0.1:1"}
    config = RouterConfig.model_validate({"workers": [worker], "hung_s": 0.2})
    one = KnownWorkers(config).workers[0]
    one.mark_up()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    held = [os.dup(0) for _ in range(used)]  # no gap below the limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(held), hard))
    try:
        assert (await fetch(one, "/health"))[0] == OURS
        assert one.healthy
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in held:
            os.close(each)
    assert (await fetch(one, "/health"))[0] == 0  # nobody listens there
    assert not one.healthy
