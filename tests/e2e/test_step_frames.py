"""Streams of real workers in frames: they say what streams without say, and whatever breaks is as
it was."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
from typing import Any

import aiohttp
import pytest

from tests.e2e import calls, worker_key
from tests.e2e.reference import Reference
from tests.e2e.workers import settled, state, victim
from toolkit.contract import step_frames
from toolkit.contract.headers import STEP_FRAMES as HEADER
from toolkit.contract.paths import STEP_FRAMES
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

TOKENS, LONG = 40, 200
DECODES = ("decode-0", "decode-1")
TEXT = "The tenant shall"


async def figures(deployment: Running, name: str) -> list[dict[str, int]]:
    """What a worker says of each relay's frames."""
    url = deployment.worker(name).url + STEP_FRAMES
    async with calls.session() as http, http.get(url) as answer:
        return await answer.json()


async def told(deployment: Running) -> list[dict[str, int]]:
    """Of all decode workers and relays."""
    each = [await figures(deployment, name) for name in DECODES]
    return [one for of_worker in each for one in of_worker]


async def framed(deployment: Running) -> int:
    """Streams that went into frames so far, on the decode workers."""
    return sum([one["framed"] for one in await told(deployment)])


async def in_frames(deployment: Running) -> None:
    """Each decode worker has had a stream of the router's in frames: the first one of each only
    asks for them."""

    async def all_have() -> bool:
        bodies = [calls.greedy(calls.prompt(n, 8), 2, stream=True) for n in range(8)]
        answers = await calls.all_of(deployment.router_url, bodies, 8)
        assert [answer.error for answer in answers] == [""] * len(bodies)
        had = [await figures(deployment, name) for name in DECODES]
        return all(any(one["framed"] for one in relays) for relays in had)

    await calls.until(all_have, "streams come in frames")


class Direct:
    """A relay at a decode worker, past the router: with its prefill, and frames of its own."""

    def __init__(self, deployment: Running, http: aiohttp.ClientSession) -> None:
        self._deployment = deployment
        self._http = http

    async def stream(self, path: str, body: dict[str, Any], named: str = "") -> tuple[bytes, bool]:
        """The body of the decode worker's own answer; and whether it says that it is in frames."""
        prefill, decode = (self._deployment.worker(name) for name in ("prefill-0", "decode-0"))
        port = next(w.bootstrap_port for w in self._deployment.plan.workers if w.role == "prefill")
        room = secrets.randbits(40)
        both = body | {
            "stream": True, "rid": f"frames{room}", "bootstrap_host": "127.0.0.1",
            "bootstrap_port": port, "bootstrap_room": room,
        }  # fmt: skip

        async def ask(url: str, more: dict[str, str]) -> tuple[bytes, bool]:
            async with self._http.post(url + path, json=both, headers=more) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.read(), HEADER in answer.headers

        asked = {"x-toolkit-ids": "1"} | ({HEADER: named} if named else {})
        _, got = await asyncio.gather(ask(prefill.url, {}), ask(decode.url, asked))
        return got


def said(raw: bytes) -> tuple[list[bytes], str, bytes]:
    """The ids of a stream, its text, and its last event but for what is its own each time: its id,
    and when things happened. How many tokens an event has is the machine's to say."""
    ids: list[bytes] = []
    text = ""
    events = raw.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    for event in events[:-2]:
        comment, _, data = event.rpartition(b"\n")
        assert data.startswith(b"data: {")
        ids += comment[1:].split()
        parsed = json.loads(data[6:])
        assert "error" not in parsed, parsed
        for choice in parsed.get("choices", ()):
            text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        text = parsed.get("text", text)
    own = rb'"(id|created|[a-z_0-9]*(time|latency|_ts|throughput)[a-z_0-9]*)":("[^"]*"|[\d.e+-]+)'
    return ids, text, re.sub(own, b"", events[-3].rpartition(b"\n")[2])


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
async def test_a_stream_in_frames_says_what_one_without_says(
    deployment: Running, path: str
) -> None:
    asked: dict[str, Any] = {
        "/generate": calls.greedy(calls.prompt("frames", 12), TOKENS, stream=True),
        "/v1/completions": {"prompt": TEXT},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}]},
    }[path]
    if path != "/generate":
        asked |= {"model": "any", "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
        asked |= {"stream_options": {"include_usage": True}}
    url = deployment.worker("decode-0").url
    async with calls.session() as http:
        direct = Direct(deployment, http)
        await direct.stream(path, asked)  # the prompt is in the prefix cache from now on
        without, is_framed = await direct.stream(path, asked)
        assert not is_framed
        assert len(said(without)[0]) == TOKENS
        async with http.get(url + STEP_FRAMES, params={"relay": "test"}) as frames:
            assert frames.status == 200
            names = [f"test {number}" for number in (5, 6, 7)]
            own = await asyncio.gather(*(direct.stream(path, asked, name) for name in names))
            assert own == [(b"", True)] * 3, "nothing of it is left on its own connection"
            pieces = step_frames.Pieces()
            read: list[tuple[int, bytes | int]] = []
            while sum(piece == step_frames.ENDED for number, piece in read if number) < 3:
                read += pieces.read(await frames.content.readany())
    for number in (5, 6, 7):
        mine = [piece for of, piece in read if of == number]
        assert mine[-1] == step_frames.ENDED
        whole = b"".join(piece for piece in mine[:-1] if isinstance(piece, bytes))
        assert said(whole) == said(without)


async def test_a_client_that_goes_has_its_request_aborted(deployment: Running) -> None:
    await in_frames(deployment)
    before = await framed(deployment)
    body = calls.greedy(calls.prompt("gone", 10), 2_000, stream=True)
    url = deployment.router_url + "/generate"

    async def in_one() -> bool:
        return sum(one["streams"] for one in await told(deployment)) == 1

    async with calls.session() as http, http.post(url, json=body) as answer:
        await answer.content.readuntil(b"\n\n")  # maybe of the prefill worker
        await calls.until(in_one, "its stream is in a frame")
        answer.close()
    assert await framed(deployment) == before + 1

    async def empty() -> bool:
        left = sum(one["streams"] for one in await told(deployment))
        rows = (await state(deployment.router_url))["workers"]
        loads = [row["load"] for row in rows if row["role"] == "decode"]
        return not left and all(load is not None and not load["running"] for load in loads)

    await calls.until(empty, "the worker has dropped it")
    await settled(deployment)


@pytest.mark.parametrize("process", ["server", "scheduler"])
async def test_a_killed_worker_costs_no_stream_in_frames(
    deployment: Running, reference: Reference, process: str
) -> None:
    await in_frames(deployment)
    before = await framed(deployment)
    asked = [calls.prompt(f"framed-{process}-{n}", 10 + n) for n in range(8)]
    bodies = [calls.greedy(ids, LONG, stream=True) for ids in asked]
    begun: set[int] = set()

    def mark(number: int, count: int) -> None:
        if count > 3:
            begun.add(number)

    sending = asyncio.create_task(calls.all_of(deployment.router_url, bodies, 8, mark))

    async def all_run() -> bool:
        return len(begun) == len(bodies)

    await calls.until(all_run, "all of them have begun")
    assert await framed(deployment) == before + len(bodies), "all are in frames"
    os.kill(victim(deployment, "decode-0", process), signal.SIGKILL)
    answers = await sending
    assert [answer.error for answer in answers] == [""] * len(bodies)
    expected = reference.greedy_each(asked, LONG, [answer.ids for answer in answers])
    assert [answer.ids for answer in answers] == expected
    await settled(deployment)
    await in_frames(deployment)


def test_nobody_without_the_key_has_a_relays_frames(deployment: Running) -> None:
    async def scenario() -> list[int]:
        url = deployment.worker("decode-0").url + STEP_FRAMES
        key = worker_key.headers(deployment)
        statuses = []
        async with aiohttp.ClientSession() as http:
            for headers in ({}, key):
                async with http.get(url, headers=headers) as answer:
                    statuses.append(answer.status)
                async with http.post(url, data=b"x 1", headers=headers) as answer:
                    statuses.append(answer.status)
        return statuses

    assert calls.run(scenario()) == [401, 401, 200, 200]
