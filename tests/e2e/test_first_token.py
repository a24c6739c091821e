"""The first token from prefill on real workers: the same answers, sooner, each token once."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.e2e import calls
from tests.e2e.workers import settled, state
from tests.mixed_kinds import CHAT, NATIVE, TEXT, ask, kinds, requests, same
from toolkit.bench.target import discover
from toolkit.launch.running import Running

pytestmark = pytest.mark.e2e

COUNT = len(kinds())
CONCURRENCY = 4
FULL = pytest.mark.full


async def early(http: aiohttp.ClientSession, url: str) -> int:
    """Streams so far that began with their prefill's token."""
    async with http.get(url + "/metrics") as answer:
        text = await answer.text()
    found = re.search(r"^toolkit_router_early_total (\S+)$", text, re.MULTILINE)
    return int(float(found[1])) if found else 0


async def test_streams_of_all_kinds_are_the_same_in_both_settings(deployment: Running) -> None:
    url, asked = deployment.router_url, requests(COUNT)

    async def under(setting: str) -> tuple[list[Any], int]:
        await calls.switch(url, first_token=setting)
        gate = asyncio.Semaphore(CONCURRENCY)
        async with calls.session() as http:

            async def one(path: str, body: dict[str, Any]) -> Any:
                async with gate:
                    return await ask(http, url, path, body)

            before = await early(http, url)
            answers = await asyncio.gather(*(one(path, body) for path, body in asked))
            return answers, await early(http, url) - before

    decode, none = await under("decode")
    prefill, some = await under("prefill")
    wrong = [
        (path, body, was, now)
        for (path, body), was, now in zip(asked, decode, prefill, strict=True)
        if not same(was, now)
    ]
    assert wrong == []
    assert none == 0
    assert some > COUNT / 3


HOLDS: list[tuple[str, dict[str, Any], bool]] = [
    ("plain", {}, True),
    ("its own stop token", {"stop_token_ids": "first"}, False),
    ("a stop string with it", {"stop": "text"}, False),
    ("a stop string that it begins", {"stop": "text+"}, False),
    ("a stop token, ignored", {"stop_token_ids": "first", "ignore_eos": True}, True),
    ("the end of the text", {"logit_bias": "end"}, False),
    ("the end of a grammar", {"regex": "a"}, True),
]


@pytest.mark.parametrize(("name", "more", "tells"), HOLDS, ids=[name for name, *_ in HOLDS])
async def test_a_token_that_may_not_stay_is_held_back(
    deployment: Running, name: str, more: dict[str, Any], tells: bool
) -> None:
    url = deployment.router_url
    plain = {"temperature": 0, "max_new_tokens": 6}
    async with calls.session() as http:
        body: dict[str, Any] = {"text": "The sea is", "stream": True, "sampling_params": plain}
        first = (await ask(http, url, NATIVE, body))[0]
        one = {**body, "sampling_params": plain | {"max_new_tokens": 1}}
        text = (await ask(http, url, NATIVE, one))[0]["text"]
        ends = {"first": [first["ids"][0]], "text": text, "text+": text + "zz",
                "end": {str(await end_of_text(http, deployment)): 1000}}  # fmt: skip
        given = {k: ends[v] if k != "regex" and v is not True else v for k, v in more.items()}
        body["sampling_params"] = plain | given
        answers, told = [], []
        for setting in ("decode", "prefill"):
            await calls.switch(url, first_token=setting)
            before = await early(http, url)
            answers.append(await ask(http, url, NATIVE, body))
            told.append(await early(http, url) - before)
        assert answers[0] == answers[1]
        assert told == [0, int(tells)]


async def end_of_text(http: aiohttp.ClientSession, deployment: Running) -> int:
    """The token with which the model ends."""
    import transformers

    path = (await discover(http, deployment.router_url)).model_path
    found = transformers.AutoConfig.from_pretrained(path).eos_token_id
    return int(found[0] if isinstance(found, list) else found)


def body_of(path: str) -> dict[str, Any]:
    """A stream that does not end at once."""
    text, tokens = "The sea is", 20
    if path == NATIVE:
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        return {"text": text, "stream": True, "sampling_params": sampling}
    prompt = {"prompt": text} if path == TEXT else {"messages": [{"role": "user", "content": text}]}
    own = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    return {"model": "embedded", **own, **prompt}


class Stopped:
    """Decode workers that stand still for less than the router would think them dead."""

    def __init__(self, deployment: Running) -> None:
        self.pids = [
            pid
            for worker in deployment.workers
            if worker.name.startswith("decode")
            for pid in _tree(worker.pid)
        ]

    def __enter__(self) -> Stopped:
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)


def _tree(pid: int | None) -> Iterator[int]:
    import psutil

    assert pid is not None
    yield pid
    for child in psutil.Process(pid).children(recursive=True):
        yield child.pid


@pytest.mark.parametrize("path", [TEXT, CHAT, NATIVE])
async def test_it_comes_while_no_decode_worker_answers(deployment: Running, path: str) -> None:
    url = deployment.router_url
    body = body_of(path)
    await calls.switch(url, first_token="decode")
    async with calls.session() as http:
        await ask(http, url, path, body)
        expected = await ask(http, url, path, body)
        await calls.switch(url, first_token="prefill")
        with Stopped(deployment):
            response = await http.post(url + path, json=body)
            async with asyncio.timeout(1.2):
                raw = await response.content.readuntil(b"\n\n")
        raw += await response.read()
        assert same(await ask(_Heard(raw), url, path, body), expected)  # type: ignore[arg-type]


class _Heard:
    """A session whose only answer is known."""

    status = 200

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def post(self, _url: str, json: Any) -> _Heard:
        return self

    async def __aenter__(self) -> _Heard:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def read(self) -> bytes:
        return self._raw


@pytest.mark.parametrize("path", [CHAT, *(pytest.param(p, marks=FULL) for p in (TEXT, NATIVE))])
def test_a_decode_killed_after_the_first_token_gives_each_token_once(
    deployment: Running, path: str
) -> None:
    url = deployment.router_url
    body = body_of(path)

    async def main() -> str:
        await calls.switch(url, first_token="decode", decode="round_robin")
        async with calls.session() as http:
            expected = await ask(http, url, path, body)
            await calls.switch(url, first_token="prefill")
            before = await state(url)
            with Stopped(deployment):
                response = await http.post(url + path, json=body)
                raw = await response.content.readuntil(b"\n\n")
                async with asyncio.timeout(1.0):
                    while not (busy := await _busy(url)):
                        await asyncio.sleep(0.01)
                worker = deployment.worker(busy)
                assert worker.pid is not None
                os.kill(worker.pid, signal.SIGKILL)
            raw += await response.read()
            assert same(await ask(_Heard(raw), url, path, body), expected)  # type: ignore[arg-type]
            after = await state(url)
            assert after["resumed"] == before["resumed"] + 1
            assert after["retried"] == before["retried"]
        return busy

    restarts = {worker.name: worker.restarts for worker in deployment.workers}
    name = calls.run(main())
    deployment.wait_ready(name, restarts[name] + 1)
    calls.run(settled(deployment))


async def _busy(url: str) -> str:
    """The decode worker that has a request of the router's; empty while none has."""
    rows = (await state(url))["workers"]
    return next((r["name"] for r in rows if r["role"] == "decode" and r["inflight"]), "")
