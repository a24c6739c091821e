"""Requests of every kind that move between real decode workers, and workers that are drained,
stopped and restarted under load: every stream says what it says undisturbed."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.e2e import calls
from tests.e2e.commands import ordered
from tests.e2e.moving import Load
from tests.e2e.workers import state
from toolkit.embedded import load_prompts
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

TOKENS = 160
TEXTS = [prompt.text for prompt in load_prompts()[::17]][:8]
LOAD_TOKENS = 150
MOVES = 2


def generate(text: str, **sampling: Any) -> tuple[str, dict[str, Any]]:
    ignore = "regex" not in sampling
    own = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": ignore, **sampling}
    return "/generate", {"text": text, "sampling_params": own}


def openai(path: str, text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    prompt: dict[str, Any] = {"prompt": text}
    if path == "/v1/chat/completions":
        prompt = {"messages": [{"role": "user", "content": text}]}
    own = {"model": "any", "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
    return path, {**prompt, **own, "stream_options": {"include_usage": True}, **more}


PENALTIES = {"frequency_penalty": 0.7, "presence_penalty": 0.4}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
KINDS = {
    "generate": generate(TEXTS[0]),
    "penalties": generate(TEXTS[1], **PENALTIES),
    "repetition": generate(TEXTS[2], repetition_penalty=1.2),
    "grammar": generate(TEXTS[3], regex="(ab|cd|ef){60,80}"),
    "completions": openai(COMPLETIONS, TEXTS[4]),
    "chat": openai(CHAT, TEXTS[5]),
    "two completions": openai(COMPLETIONS, TEXTS[6], n=2),
    "two chats": openai(CHAT, TEXTS[7], n=2),
}


class Streams:
    """Sends requests to a deployment and moves them."""

    def __init__(self, deployment: Running, http: aiohttp.ClientSession) -> None:
        self.url, self.admin = deployment.router_url, deployment.admin_url
        self.http = http

    async def said(self, kind: tuple[str, dict[str, Any]], rid: str) -> dict[str, Any]:
        """What a stream says: texts by choice, reasons, and usage."""
        path, body = kind
        said: dict[str, Any] = {}
        async with self.http.post(
            self.url + path, json={**body, "stream": True, "rid": rid}
        ) as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    _take(said, json.loads(line[6:]))
        return said

    async def move(self, **body: Any) -> dict[str, Any]:
        async with self.http.post(self.admin + "/admin/migrate", json=body) as response:
            told = await response.json()
            assert response.status in (200, 404), told
            return told if response.status == 200 else {"moves": []}

    async def moved(
        self, kind: tuple[str, dict[str, Any]], rid: str, most: int = MOVES
    ) -> tuple[dict[str, Any], int]:
        """What it says while it moves to and fro, and how often it did."""
        stream = asyncio.ensure_future(self.said(kind, rid))
        count = 0
        while not stream.done() and count < most * kind[1].get("n", 1):
            told = await self.move(rid=rid)
            assert not any(each["outcome"] == "lost" for each in told["moves"]), told
            count += sum(each["outcome"] == "moved" for each in told["moves"])
            await asyncio.sleep(0.05)
        return await stream, count


@asynccontextmanager
async def moving(deployment: Running, by: str) -> AsyncIterator[None]:
    """While requests move in this way."""
    await calls.switch(deployment.router_url, moves=by)
    try:
        yield
    finally:
        await calls.switch(deployment.router_url, moves="auto")


def _take(said: dict[str, Any], event: dict[str, Any]) -> None:
    assert "error" not in event, event
    if "meta_info" in event:
        meta = event["meta_info"]
        said["ids"], said["text"] = event["output_ids"], event["text"]
        said["reason"] = meta["finish_reason"]
        said["counts"] = meta["prompt_tokens"], meta["completion_tokens"]
    for choice in event.get("choices") or ():
        index = choice["index"]
        text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        said[f"text {index}"] = said.get(f"text {index}", "") + text
        if choice["finish_reason"]:
            said[f"reason {index}"] = choice["finish_reason"], choice.get("matched_stop")
    if event.get("usage"):
        usage = event["usage"]
        said["usage"] = usage["prompt_tokens"], usage["completion_tokens"]


def stop_kind(whole: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """One that ends with a string that it says late: penalties keep it from saying all twice."""
    text = whole["text"]
    late = [at for at in range(len(text) - 3) if text.find(text[at : at + 3]) == at]
    stop = text[late[-1] : late[-1] + 3]
    return generate(TEXTS[1], **PENALTIES, stop=[stop])


# For a change streams move by "replay" under bitwise equality (test_deterministic.py), and every
# kind is resumed, which takes the same way (test_kill_features.py).
@pytest.mark.parametrize("by", ["auto", pytest.param("replay", marks=pytest.mark.full)])
async def test_streams_of_every_kind_move_and_say_the_same(deployment: Running, by: str) -> None:
    restarts = [worker.restarts for worker in deployment.workers]
    async with moving(deployment, by), calls.session() as http:
        streams = Streams(deployment, http)
        first = await state(streams.url)
        kinds = dict(KINDS)
        names = list(kinds)
        calm = await asyncio.gather(*(streams.said(kinds[n], f"calm-{by}-{n}") for n in names))
        alone = dict(zip(names, calm, strict=True))
        kinds["stop"] = stop_kind(alone["penalties"])
        alone["stop"] = await streams.said(kinds["stop"], "calm-stop")
        assert alone["stop"]["reason"]["type"] == "stop"
        got = await asyncio.gather(*(streams.moved(kinds[n], f"moved-{by}-{n}") for n in kinds))
        moves = {name: count for name, (_, count) in zip(kinds, got, strict=True)}
        print("moves:", moves)
        for name, (said, _) in zip(kinds, got, strict=True):
            assert said == alone[name], name
        assert all(moves.values()), moves
        now = await state(streams.url)
        print("moves:", now["moves"])
        assert (now["resumed"], now["retried"]) == (first["resumed"], first["retried"])
    assert [worker.restarts for worker in deployment.workers] == restarts


async def test_sampled_streams_move_and_none_is_lost(deployment: Running) -> None:
    async with calls.session() as http:
        streams = Streams(deployment, http)
        kinds = [generate(TEXTS[0], temperature=0.8), openai(CHAT, TEXTS[1], temperature=0.8)]
        got = await asyncio.gather(
            *(streams.moved(kind, f"sampled-{n}") for n, kind in enumerate(kinds))
        )
        (one, ones), (two, twos) = got
        assert ones and twos
        assert one["counts"][1] == two["usage"][1] == TOKENS


async def test_what_cannot_move_stays_and_says_why(deployment: Running) -> None:
    async with calls.session() as http:
        streams = Streams(deployment, http)
        kinds = {
            "logprobs": openai(COMPLETIONS, TEXTS[0], logprobs=1),
            "random state": openai(COMPLETIONS, TEXTS[1], seed=3, temperature=0.8),
        }
        for name, kind in kinds.items():
            stream = asyncio.ensure_future(streams.said(kind, name))
            reason = ""
            while not stream.done() and name not in reason:
                told = await streams.move(rid=name)
                reason = told["moves"][0].get("reason", "") if told["moves"] else ""
                await asyncio.sleep(0.02)
            assert name in reason
            assert (await stream)["usage"][1] == TOKENS


@pytest.mark.touched("moving")
async def test_workers_are_restarted_stopped_and_started_under_load(deployment: Running) -> None:
    """`toolkit restart --rolling`, then `toolkit drain --stop` and `--undo`: nothing is lost or
    changed, and no stream is run again for it."""
    before = {worker.name: worker.restarts for worker in deployment.workers}
    first = await state(deployment.router_url)
    prompts = [calls.prompt(f"load-{n}", 60) for n in range(8)]
    load = Load(deployment, [calls.greedy(ids, LOAD_TOKENS, stream=True) for ids in prompts])
    await load.learn()
    running = asyncio.ensure_future(load.run())
    await asyncio.sleep(0.5)
    status, said = await asyncio.to_thread(ordered, deployment, "restart", "--rolling")
    assert status == 0, said
    assert said.count("gets requests again") == 2, said
    rolled = load.streams
    status, said = await asyncio.to_thread(ordered, deployment, "drain", "decode-1", "--stop")
    assert status == 0 and "stopped" in said, said
    assert deployment.worker("decode-1").status == "stopped"
    rows = {row["name"]: row for row in (await state(deployment.router_url))["workers"]}
    assert rows["decode-1"]["held"] and not rows["decode-1"]["inflight"]
    status, said = await asyncio.to_thread(ordered, deployment, "drain", "decode-1", "--undo")
    assert status == 0, said
    await asyncio.sleep(1.0)
    load.over = True
    await running
    now = await state(deployment.router_url)
    print(f"{rolled} + {load.streams - rolled} streams, longest gap {load.gap_s:.2f} s")
    print(now["moves"])
    assert (load.lost, load.changed) == ([], [])
    assert load.streams > 8
    assert (now["resumed"], now["retried"]) == (first["resumed"], first["retried"])
    moved = [o for o in now["moves"]["outcomes"] if (o["why"], o["outcome"]) == ("drain", "moved")]
    assert sum(each["count"] for each in moved) >= 4
    for name, restarts in before.items():
        ends = {"decode-0": 1, "decode-1": 2}.get(name, 0)
        assert deployment.worker(name).restarts == restarts + ends, name


def test_wrong_orders_say_what_to_do(deployment: Running) -> None:
    for words, says in [
        (("drain", "decode-9"), "one of prefill-0, decode-0, decode-1"),
        (("drain", "prefill-0"), "the last prefill worker"),
        (("drain", "decode-0", "--undo", "--stop"), "goes alone"),
        (("restart",), "--rolling"),
        (("migrate", "nobody"), "no request"),
        (("migrate", "--from", "decode-0", "--to", "decode-0"), "the same"),
    ]:
        status, said = ordered(deployment, *words)
        assert status != 0 and says in said, (words, said)
