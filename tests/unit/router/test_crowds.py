"""Two thousand connections that want too much, and an honest client that notices nothing."""

import asyncio
import contextlib
import json
import resource
import socket
from collections.abc import AsyncIterator, Iterator

import psutil
import pytest

from tests.standin.cluster import Cluster
from tests.unit.router.cluster_calls import bodies, expected, idle, post, text_of
from tests.unit.router.raw import PATH

CROWD = 2000
MIB = 2**20
ADDRESS = "127.0.0.2"
"""Of the crowd; the honest client has another one."""
KEY = {"TEST_ROUTER_KEY": "secret-key"}
KEYED = {"api_key_env": "TEST_ROUTER_KEY", "max_connections": 1500}


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    """As many descriptors as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Member:
    """One of the crowd. What comes back is left in the kernel; the connection is watched."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sock = socket.socket()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
        self._sock.setblocking(False)
        self._sock.bind((ADDRESS, 0))

    async def connect(self) -> None:
        with contextlib.suppress(OSError):  # it has been closed again
            await asyncio.get_running_loop().sock_connect(self._sock, ("127.0.0.1", self._port))

    async def say(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it has been closed
            await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def take(self, most: int) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._sock, most)

    async def sip(self) -> None:
        """Read slowly until no more comes."""
        while await self.take(2000):
            await asyncio.sleep(0.5)

    @property
    def connected(self) -> bool:
        """Whether the connection has not been reset. Nothing is read."""
        return not self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def close(self) -> None:
        self._sock.close()


@contextlib.asynccontextmanager
async def crowd(port: int) -> AsyncIterator[list[Member]]:
    members = [Member(port) for _ in range(CROWD)]
    try:
        await asyncio.gather(*(member.connect() for member in members))
        yield members
    finally:
        for member in members:
            member.close()


class Honest:
    """A client that asks again and again, each time on a connection of its own."""

    def __init__(self, cluster: Cluster, headers: dict[str, str], path: str = PATH) -> None:
        self._cluster = cluster
        self._headers = {"Connection": "close", **headers}
        self._path = path
        self.answers: list[tuple[int, str]] = []

    async def asks(self) -> None:
        while True:
            status, raw = await post(
                self._cluster, self._path, bodies(3)[PATH], headers=self._headers
            )
            text = text_of(PATH, raw) if status == 200 else raw.decode()
            self.answers.append((status, text))
            await asyncio.sleep(0.02)

    @contextlib.asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Asks while this lasts, and then has had nothing but right answers."""
        asking = asyncio.create_task(self.asks())
        yield
        while len(self.answers) < 5 and not asking.done():
            await asyncio.sleep(0.01)
        if asking.done():
            asking.result()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert set(self.answers) == {(200, expected("hello", 3))}


@pytest.mark.slow
async def test_clients_that_do_not_read_are_dropped() -> None:
    """Each is owed more than the kernel holds for it, and takes none of it. One that takes a little
    at a time, and one for which nothing is there to be taken, stay."""
    config = {"write_stall_s": 2.0, "max_inflight": 4096, "max_body_total_mib": 4096,
              "max_connections": 2100}  # fmt: skip
    async with Cluster(
        prefills=0, decodes=0, plains=1, config=config, worker_args=["--token-ms", "2"]
    ) as cluster:
        echo = json.dumps({"input": "x" * 250_000}).encode()
        async with Honest(cluster, {}).beside(), crowd(cluster.port) as members:
            slow, quiet, *others = members
            await quiet.say(request(PATH, json.dumps(bodies(4000, stream=False)[PATH]).encode()))
            await slow.say(request("/v1/embeddings", echo))
            assert (await slow.take(100)).startswith(b"HTTP/1.1 200")
            sips = asyncio.create_task(slow.sip())
            for start in range(0, len(others), 100):
                part = others[start : start + 100]
                asked = request("/v1/embeddings", echo[:200_000] + b'"}')
                await asyncio.gather(*(member.say(asked) for member in part))
            while others := [member for member in others if member.connected]:
                await asyncio.sleep(0.2)
            assert not sips.done(), "slow, but moving"
            sips.cancel()
            assert (await quiet.take(100)).startswith(b"HTTP/1.1 200"), "it had nothing to take"
        assert "took nothing any more" in cluster.log.read_text()
        await cluster.until(idle)
        state = await cluster.state()
        assert (state["held_bytes"], state["retried"]) == (0, 0)


def request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.slow
async def test_clients_that_write_slowly_leave_room_for_those_with_a_key() -> None:
    async with Cluster(env=KEY, config=KEYED) as cluster:
        honest = Honest(cluster, {"Authorization": "Bearer secret-key"})
        async with honest.beside(), crowd(cluster.port) as members:
            for number, member in enumerate(members):
                head = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\n"
                await member.say(head + (b"Content-Length: 9\r\n\r\n" if number % 2 else b"X-"))
            for _ in range(4):
                await asyncio.sleep(1.0)
                await asyncio.gather(*(member.say(b"a") for member in members))
        await cluster.until(idle)


@pytest.mark.slow
async def test_pipelines_that_nobody_reads_are_bounded_and_leave_room_for_those_with_a_key() -> (
    None
):
    async with Cluster(env=KEY, config=KEYED) as cluster:
        assert cluster.router is not None
        process = psutil.Process(cluster.router.pid)
        honest = Honest(cluster, {"Authorization": "Bearer secret-key"})
        await post(cluster, PATH, b"{}")
        before = process.memory_info().rss
        asked = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n" * 200
        async with honest.beside(), crowd(cluster.port) as members:
            for start in range(0, CROWD, 100):
                part = members[start : start + 100]
                await asyncio.gather(*(member.say(asked) for member in part))
            await asyncio.sleep(4.0)
            grown = (process.memory_info().rss - before) / MIB
            assert grown < 100, f"{grown:.0f} MiB, {grown / CROWD * 1024:.0f} KiB each"
        await cluster.until(idle)
