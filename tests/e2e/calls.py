"""Calls that the end-to-end tests share: greedy /generate requests, many at a time."""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp

from tests.worker_sessions import client_middleware

WAIT_LIMIT_S = 240.0  # a hang fails a test by this, on however slow a machine
VOCABULARY = range(300, 4000)  # ordinary tokens of the embedded model


@dataclass
class Answer:
    """What one request gave: `error` is empty when it came to its proper end."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    chunks: int = 0
    error: str = ""
    retry_after: str | None = None


def session() -> aiohttp.ClientSession:
    """A client session that waits long, but not for ever."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=WAIT_LIMIT_S),
        middlewares=(client_middleware(),),  # what goes to a worker carries its run's key
    )


async def switch(url: str, **policies: str) -> None:
    """Change a router's policies at its admin port."""
    async with session() as http:
        async with http.get(url + "/workers") as answer:
            at = (await answer.json())["admin"]
        async with http.post(at + "/admin/policy", json=policies) as answer:
            assert answer.status == 200, await answer.text()


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine; a test that hangs fails after PATIENCE_S."""
    return asyncio.run(asyncio.wait_for(main, WAIT_LIMIT_S))


def prompt(seed: object, length: int) -> list[int]:
    """`length` token ids that depend on the seed alone."""
    return random.Random(f"prompt-{seed}").choices(VOCABULARY, k=length)


def greedy(ids: Sequence[int], tokens: int, stream: bool) -> dict[str, Any]:
    """A /generate body; the output has exactly `tokens` tokens."""
    sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
    return {"input_ids": list(ids), "sampling_params": sampling, "stream": stream}


async def generate(
    http: aiohttp.ClientSession,
    url: str,
    body: dict[str, Any],
    on_tokens: Callable[[int], None] = lambda count: None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """POST /generate. Never raises for what the server does: see `Answer.error`."""
    answer = Answer()
    try:
        async with http.post(url + "/generate", json=body, headers=headers) as response:
            if response.status != 200:
                answer.error = f"HTTP {response.status}: {await response.text()}"
                answer.retry_after = response.headers.get("Retry-After")
            elif body.get("stream"):
                await _read_stream(response, answer, on_tokens)
            else:
                _take(answer, await response.json())
    except (aiohttp.ClientError, TimeoutError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    return answer


async def _read_stream(
    response: aiohttp.ClientResponse, answer: Answer, on_tokens: Callable[[int], None]
) -> None:
    ended = False
    async for line in response.content:
        data = line.strip()
        if not data:
            continue
        if not data.startswith(b"data: "):
            answer.error = f"not an event: {data[:80]!r}"
            return
        if data == b"data: [DONE]":
            ended = True
            continue
        _take(answer, json.loads(data[6:]))
        answer.chunks += 1
        on_tokens(len(answer.ids))
    if not ended and not answer.error:
        answer.error = f"the stream broke off after {len(answer.ids)} tokens"


def _take(answer: Answer, data: dict[str, Any]) -> None:
    """Take in one (cumulative) answer, and check that it goes on from the one before."""
    if "error" in data:
        answer.error = str(data["error"])
        return
    reason = data["meta_info"].get("finish_reason")
    if reason and reason["type"] == "abort":
        answer.error = f"aborted: {reason}"
    ids = data["output_ids"]
    if ids[: len(answer.ids)] != answer.ids:
        answer.error = f"tokens changed: {answer.ids} became {ids}"
    answer.ids, answer.text = ids, data["text"]


async def all_of(
    url: str,
    bodies: Sequence[dict[str, Any]],
    concurrency: int,
    on_tokens: Callable[[int, int], None] = lambda index, count: None,
    headers: Sequence[Mapping[str, str]] = (),
) -> list[Answer]:
    """Send all bodies, `concurrency` at a time; answers in the order of the bodies. `headers`: of
    each, or of none.

    `on_tokens` is told which body got how many tokens by now.

    Like any well-behaved client (the `openai` one too), a request that was turned away with 503
    and Retry-After, before a byte of its answer, is sent again after that time.
    """
    gate = asyncio.Semaphore(concurrency)
    async with session() as http:

        async def one(index: int, body: dict[str, Any]) -> Answer:
            async with gate:
                said = headers[index] if headers else None
                while True:
                    answer = await generate(http, url, body, partial(on_tokens, index), said)
                    if not (answer.error.startswith("HTTP 503") and answer.retry_after):
                        return answer
                    await asyncio.sleep(float(answer.retry_after))

        return list(await asyncio.gather(*(one(n, body) for n, body in enumerate(bodies))))


async def until(condition: Callable[[], Coroutine[Any, Any, bool]], what: str) -> None:
    """Wait for a condition to hold; fails after half of PATIENCE_S."""
    for _ in range(int(WAIT_LIMIT_S / 2 / 0.2)):
        if await condition():
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"this never came true: {what}")
