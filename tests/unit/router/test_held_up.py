"""A router that was held up (a full machine, a burst of large requests) takes its own lateness for
nobody else's: neither for a worker's, nor for a client's."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, expected
from tests.unit.router.raw import PATH, Raw
from toolkit.router.time_limit import TimeLimit
from toolkit.router.upstream import Upstream

LIMIT_S = 0.1
HELD_UP_S = 0.4
LOOPS = (asyncio.new_event_loop, uvloop.new_event_loop)


def run(make: Callable[[], asyncio.AbstractEventLoop], what: Awaitable[None]) -> None:
    async def ends() -> None:
        await asyncio.wait_for(what, 30)

    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(ends())


@pytest.mark.parametrize("make", LOOPS)
def test_a_limit_ends_what_does_not_come(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def waits() -> None:
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            async with TimeLimit(LIMIT_S):
                await asyncio.Event().wait()
        assert time.monotonic() - begin >= LIMIT_S
        async with TimeLimit(0.01):
            pass
        await asyncio.sleep(0.05)  # its timer does nothing any more

    run(make, waits())


@pytest.mark.parametrize("make", LOOPS)
def test_a_connection_that_is_open_is_used(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def connects() -> None:
        server = await asyncio.start_server(answers, "127.0.0.1", 0)
        pool = Upstream("w", "127.0.0.1", server.sockets[0].getsockname()[1], None, LIMIT_S)
        calls = [pool.post("/x", b"{}") for _ in range(20)]
        await asyncio.sleep(0)  # all are connecting
        time.sleep(HELD_UP_S)
        await asyncio.gather(*(call.done for call in calls))
        assert {call.status for call in calls} == {200}
        pool.close_idle()
        server.close()
        await asyncio.sleep(0.02)  # until the server's side is closed, too

    run(make, connects())


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"{}")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    await writer.drain()
    writer.close()


@pytest.mark.parametrize("later", ["head", "body"])
async def test_a_client_is_not_slow_because_the_router_was(later: str) -> None:
    """It says the rest while the router is stopped for longer than a client may take."""
    config: dict[str, Any] = {
        "head_timeout_s": 1.0, "body_window_s": 1.0, "body_pace_kib": 1024, "body_timeout_s": 1.5,
    }  # fmt: skip
    async with Cluster(decodes=1, config=config) as cluster, Raw(cluster.port) as client:
        raw = json.dumps(bodies(3, stream=False)[PATH]).encode() + b" " * 300_000
        if later == "head":
            await client.send(b"POST /v1/completions HTTP/1.1\r\n")
        else:
            await client.head(len(raw))
            await client.send(raw[:1000])
        await asyncio.sleep(0.3)
        assert cluster.router is not None
        os.kill(cluster.router.pid, signal.SIGSTOP)
        try:
            rest = b"Host: h\r\nContent-Length: %d\r\n\r\n%b" % (len(raw), raw)
            await client.send(rest if later == "head" else raw[1000:])
            await asyncio.sleep(2.5)
        finally:
            os.kill(cluster.router.pid, signal.SIGCONT)
        status, _, answer = await client.answer(30)
        assert status == 200, answer
        assert json.loads(answer)["choices"][0]["text"] == expected("hello", 3)
