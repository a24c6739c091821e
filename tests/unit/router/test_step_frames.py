"""A router whose workers put their streams into frames: what clients get is the same, whatever
breaks; and who is slow to read holds up nobody."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
from typing import Any

import pytest

from tests.standin.cluster import FRAMES, Cluster
from tests.unit.router.cluster_calls import bodies, expected, idle, post, prompt_of, text_of
from toolkit.router import step_frames

CHAT, GENERATE = "/v1/chat/completions", "/generate"
PACED = ["--frames", "--token-ms", "10"]


async def framed(cluster: Cluster) -> int:
    """Streams that went into frames so far, on all workers."""
    return sum([(await cluster.stats(worker.name))["framed"] for worker in cluster.workers])


async def in_frames(cluster: Cluster) -> None:
    """Every decode worker has a relay's frames: the first stream of each only asks for them."""
    names = [worker.name for worker in cluster.workers if worker.role == "decode"]
    while not all([(await cluster.stats(name))["framed"] for name in names]):
        await asyncio.gather(*(post(cluster, CHAT, bodies(2)[CHAT]) for _ in range(8)))


def nameless(raw: bytes) -> bytes:
    """A stream without what is its own each time."""
    return re.sub(rb'"(id|created)":("[^"]*"|\d+)', b"", raw)


@pytest.mark.parametrize("relays", [1, 2])
async def test_a_stream_in_frames_has_the_bytes_of_one_without(relays: int) -> None:
    config = {"relays": relays}
    answers: list[list[bytes]] = []
    for args in ([], ["--frames"]):
        async with Cluster(worker_args=args, config=config) as cluster:
            if args:
                await in_frames(cluster)
            before = await framed(cluster)
            asked = [*bodies(12).items(), (CHAT, bodies(12, n=3)[CHAT])]
            got = await asyncio.gather(*(post(cluster, path, body) for path, body in asked))
            assert [status for status, _ in got] == [200] * len(asked)
            for (path, body), (_, raw) in zip(asked[:3], got[:3], strict=True):
                assert text_of(path, raw) == expected(prompt_of(path), 12), body
            # The choices of one request come in any order.
            answers.append([b"".join(sorted(nameless(raw).split(b"\n\n"))) for _, raw in got])
            if args:
                assert await framed(cluster) > before
            await cluster.until(idle)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("path", [CHAT, GENERATE])
async def test_streams_go_on_elsewhere_when_their_worker_dies(path: str) -> None:
    async with Cluster(worker_args=PACED, config={"rerun_wait_s": 20}) as cluster:
        await in_frames(cluster)
        sending = [asyncio.create_task(post(cluster, path, bodies(60)[path])) for _ in range(12)]
        await asyncio.sleep(0.25)
        os.kill(cluster.worker("decode-0").pid, signal.SIGKILL)
        for status, raw in await asyncio.gather(*sending):
            assert status == 200
            assert text_of(path, raw) == expected(prompt_of(path), 60)
        await cluster.until(lambda s: s["running"] == s["queued"] == 0)


async def test_frames_that_break_cost_no_stream() -> None:
    """Streams go on, by new attempts, and later ones are in frames again."""
    async with Cluster(worker_args=[*PACED, "--resume"], config={"rerun_wait_s": 20}) as cluster:
        await in_frames(cluster)
        sending = [asyncio.create_task(post(cluster, CHAT, bodies(60)[CHAT])) for _ in range(12)]
        await asyncio.sleep(0.2)
        await cluster.make("decode-0", "reset")
        for status, raw in await asyncio.gather(*sending):
            assert status == 200
            assert text_of(CHAT, raw) == expected(prompt_of(CHAT), 60)
        before = (await cluster.stats("decode-0"))["framed"]
        while (await cluster.stats("decode-0"))["framed"] == before:
            await asyncio.gather(*(post(cluster, CHAT, bodies(2)[CHAT]) for _ in range(8)))
        await cluster.until(idle)


class Reader:
    """A client that reads when it wants to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def ask(cls, port: int, path: str, body: dict[str, Any]) -> Reader:
        """With little room for what it does not read."""
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        own.connect(("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=own)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode())
        writer.write(data)
        return cls(reader, writer)

    async def rest(self) -> bytes:
        """All of the body."""
        head, _, raw = (await self.reader.read(-1)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        body, at = [], 0
        while size := int(raw[at : (end := raw.index(b"\r\n", at))], 16):
            body.append(raw[end + 2 : end + 2 + size])
            at = end + size + 4
        return b"".join(body)


async def test_a_client_that_does_not_read_leaves_the_frames() -> None:
    """Its worker stops for it alone. When it reads again it has all of its answer."""
    tokens = 1_400
    # One relay: another one's first stream would not be in frames.
    async with Cluster(decodes=1, worker_args=["--frames"], config={"relays": 1}) as cluster:
        await in_frames(cluster)
        slow = await Reader.ask(cluster.port, GENERATE, bodies(tokens)[GENERATE])
        await cluster.until_stats(lambda stats: stats["decode-0"]["sent_away"] == 1)
        status, raw = await post(cluster, CHAT, bodies(200)[CHAT])
        assert status == 200
        assert text_of(CHAT, raw) == expected(prompt_of(CHAT), 200)
        state = await cluster.state()
        assert state["running"] == 1, "the slow one still runs"
        raw = await slow.rest()
        assert text_of(GENERATE, raw) == expected(prompt_of(GENERATE), tokens)
        await cluster.until(idle)
        slow.writer.close()


async def test_a_client_that_goes_has_its_request_aborted() -> None:
    async with Cluster(decodes=1, worker_args=PACED) as cluster:
        await in_frames(cluster)
        gone = await Reader.ask(cluster.port, CHAT, bodies(5_000)[CHAT])
        stays = asyncio.create_task(post(cluster, CHAT, bodies(60)[CHAT]))
        await gone.reader.readuntil(b"data: ")
        gone.writer.transport.abort()
        await cluster.until_stats(lambda stats: len(stats["decode-0"]["aborted"]) == 1)
        status, raw = await stays
        assert status == 200
        assert text_of(CHAT, raw) == expected(prompt_of(CHAT), 60)
        await cluster.until(idle)


@pytest.mark.skipif(FRAMES, reason="all stand-ins have frames")
async def test_workers_that_have_no_frames_are_asked_for_none() -> None:
    async with Cluster(worker_args=["--record"]) as cluster:
        for _ in range(4):
            await post(cluster, CHAT, bodies(2)[CHAT])
        heads = [head for w in cluster.workers for head in (await cluster.stats(w.name))["heads"]]
        assert heads
        assert not any("x-toolkit-step-frames" in head for head in heads)


def test_the_bound_on_what_a_slow_client_may_still_get_is_small() -> None:
    assert step_frames.OVER_MAX <= 2**20
