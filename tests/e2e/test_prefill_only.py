"""Requests for one token on real workers: answered by prefill alone, as a plain server answers."""

import asyncio
import re
from importlib.metadata import version
from typing import Any

import aiohttp
import pytest

from tests.e2e import calls
from tests.e2e.workers import settled, state
from tests.mixed_kinds import CHAT, NATIVE, ask, kinds, requests, same
from toolkit.launch.running import Running

pytestmark = pytest.mark.e2e

CONCURRENCY = 4


async def counted(http: aiohttp.ClientSession, url: str) -> int:
    """Requests so far that no decode worker heard of."""
    async with http.get(url + "/metrics") as answer:
        text = await answer.text()
    found = re.search(r"^toolkit_router_prefill_only_total (\S+)$", text, re.MULTILINE)
    return int(float(found[1])) if found else 0


def asked() -> list[tuple[str, dict[str, Any]]]:
    """One of each kind, of one token each. Not several of one prompt: of these a plain server gives
    each choice an id of its own."""
    found = []
    for path, body in requests(len(kinds()))[: len(kinds())]:
        body = {**body}
        if "token_ids_logprob" in body and version("sglang") == "0.5.20":
            continue  # beside others it ends the plain server there
        if path == NATIVE:
            one = {"max_new_tokens": 1, "min_new_tokens": 0, "n": 1}
            body["sampling_params"] = {**body["sampling_params"], **one}
        else:
            body.pop("max_completion_tokens", None)
            body |= {"max_tokens": 1, "n": 1}
        found.append((path, body))
    return found


async def whole(http: aiohttp.ClientSession, url: str, path: str, body: dict[str, Any]) -> Any:
    """An answer that does not stream, without what differs from run to run."""
    body = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
    async with http.post(url + path, json=body) as response:
        said = await response.json()
    for one in said if isinstance(said, list) else [said]:
        for name in ("id", "created", "metadata"):
            one.pop(name, None)
        meta = one.get("meta_info", {})
        kept = ("finish_reason", "prompt_tokens", "completion_tokens", "input_token_logprobs",
                "output_token_logprobs", "output_top_logprobs")  # fmt: skip
        if meta:
            one["meta_info"] = {name: meta.get(name) for name in kept}
        if one.get("usage"):
            one["usage"].pop("prompt_tokens_details", None)
    return said


async def test_one_token_of_every_kind_is_a_plain_servers(
    deployment: Running, plain_server: str
) -> None:
    url = deployment.router_url
    gate = asyncio.Semaphore(CONCURRENCY)
    async with calls.session() as http:

        async def one(path: str, body: dict[str, Any]) -> list[Any]:
            async with gate:
                return [
                    await put(http, to, path, body)
                    for put in (ask, whole)
                    for to in (plain_server, url)
                ]

        before, decoded = await counted(http, url), await _decoded(url)
        answers = await asyncio.gather(*(one(path, body) for path, body in asked()))
        wrong = [
            (path, body, found)
            for (path, body), found in zip(asked(), answers, strict=True)
            if not same(found[0], found[1]) or not same(found[2], found[3])
        ]
        assert wrong == []
        alone = await counted(http, url) - before
        assert alone > 2 * len(answers) * 0.8
        assert await _decoded(url) - decoded < 0.2 * alone
    await settled(deployment)


async def _decoded(url: str) -> int:
    """Requests that decode workers have completed."""
    rows = (await state(url))["workers"]
    return sum(row["completed"] for row in rows if row["role"] == "decode")


@pytest.mark.parametrize("tokens", [40, 1300], ids=["one chunk", "three chunks"])
async def test_its_prompt_is_found_again(deployment: Running, tokens: int) -> None:
    url = deployment.router_url
    body = {
        "input_ids": calls.prompt(f"alone-{tokens}", tokens),
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
    }
    async with calls.session() as http:
        cached = []
        for _ in range(2):
            async with http.post(url + NATIVE, json=body) as response:
                said = await response.json()
            assert said["meta_info"]["finish_reason"] == {"type": "length", "length": 1}
            cached.append(said["meta_info"]["cached_tokens"])
        assert cached[0] == 0
        assert cached[1] >= tokens - 2


def test_many_that_go_away_leave_nothing_behind(deployment: Running) -> None:
    url = deployment.router_url

    async def gone(http: aiohttp.ClientSession, number: int) -> None:
        body = {"messages": [{"role": "user", "content": f"{number} " * 300}], "max_tokens": 1}
        post = http.post(url + CHAT, json={"model": "embedded", **body, "stream": number % 2 == 0})
        try:
            async with asyncio.timeout(0.02 * (number % 7)), post as response:
                await response.read()
        except TimeoutError:
            pass

    async def main() -> None:
        async with calls.session() as http:
            await asyncio.gather(*(gone(http, number) for number in range(40)))
        await settled(deployment)

    calls.run(main())
