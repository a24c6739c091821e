"""The processes that parse for a router: its own, without its sockets, gone when it is."""

from __future__ import annotations

import asyncio

import psutil

from tests.processes import lives
from tests.standin.cluster import Cluster, of_one_process
from tests.unit.router.cluster_calls import bodies, expected, post, run, text_of
from tests.unit.router.raw import PATH


@of_one_process
def test_they_have_none_of_the_router_s_sockets_and_end_with_it() -> None:
    async def check() -> None:
        async with Cluster() as cluster:
            assert cluster.router is not None
            router = psutil.Process(cluster.router.pid)
            body = {**bodies(3)[PATH], "regex": "a+"}
            for _ in range(3):
                status, raw = await post(cluster, PATH, body)
                assert (status, text_of(PATH, raw)) == (200, expected("hello", 3))
            (server,) = router.children()
            (process,) = server.children()
            assert server.net_connections("inet") == process.net_connections("inet") == []
            assert router.net_connections("inet") != []
            cluster.router.kill()
            cluster.router.wait()
            for each in (server, process):
                while lives(each):
                    await asyncio.sleep(0.005)

    run(check())
