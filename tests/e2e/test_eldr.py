"""ELDR on real workers: requests go where their experts are, tokens stay, workers come and go."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import calls
from tests.e2e.workers import state
from toolkit.embedded import load_prompts, model_path
from toolkit.launch.running import Running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.touched("eldr")]

TOKENS = 16
NOTICED_S = 2.0


async def switch(url: str, decode: str) -> None:
    await calls.switch(url, decode=decode)


async def whole(url: str) -> None:
    """Until every worker is up and has a centroid."""

    async def there() -> bool:
        now = await state(url)
        up = all(row["healthy"] and not row["inflight"] for row in now["workers"])
        return up and now["eldr"]["centroids"] == 2

    await calls.until(there, "both decode workers are up and have centroids")


@pytest.fixture
def url(deployment: Running) -> Iterator[str]:
    """The router of 1 prefill and 2 decode workers with the policy eldr, put back afterwards."""
    router = deployment.router_url
    calls.run(whole(router))
    calls.run(switch(router, "eldr"))
    yield router
    calls.run(switch(router, "shortest_queue"))


def bodies(rounds: int = 1) -> list[tuple[str, dict[str, Any]]]:
    """(language, streaming request) of forty prompts in four languages, mixed."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    prompts = [prompt for prompt in load_prompts() if prompt.domain != "general"][::6][:40]
    found = []
    for _ in range(rounds):
        for prompt in sorted(prompts, key=lambda p: p.id[::-1]):
            ids = tokenizer.encode(prompt.text).ids[:200]
            found.append((prompt.language, calls.greedy(ids, TOKENS, stream=True)))
    return found


async def sent(url: str, rounds: int = 1) -> list[list[int]]:
    answers = await calls.all_of(url, [body for _, body in bodies(rounds)], 8)
    assert [answer.error for answer in answers if answer.error] == []
    return [answer.ids for answer in answers]


@pytest.fixture(scope="module")
def expected(deployment: Running) -> list[list[int]]:
    """What the requests give without ELDR."""
    calls.run(whole(deployment.router_url))
    return calls.run(sent(deployment.router_url))


def test_tokens_stay_and_every_request_is_routed_by_its_signature(
    url: str, expected: list[list[int]]
) -> None:
    before = calls.run(state(url))["eldr"]
    assert calls.run(sent(url)) == expected
    after = calls.run(state(url))["eldr"]
    assert after["located"] - before["located"] == len(expected)
    assert after["fallbacks"] == before["fallbacks"]
    assert after["problems"] == {}


def test_requests_of_one_language_go_to_one_worker(url: str) -> None:
    """The embedded profile's two clusters are pairs of languages."""

    async def one(body: dict[str, Any]) -> str:
        """The decode worker of a request that runs alone."""
        before = {row["name"]: row["completed"] for row in (await state(url))["workers"]}
        [answer] = await calls.all_of(url, [body], 1)
        assert not answer.error

        async def counted() -> bool:
            rows = (await state(url))["workers"]
            return all(not row["inflight"] for row in rows)

        await calls.until(counted, "the request is off the books")
        rows = (await state(url))["workers"]
        [name] = [
            row["name"]
            for row in rows
            if row["role"] == "decode" and row["completed"] > before[row["name"]]
        ]
        return str(name)

    async def main() -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = {}
        for language, body in bodies()[:24]:
            found.setdefault(language, Counter())[await one(body)] += 1
        return found

    found = calls.run(main())
    homes = {language: workers.most_common(1)[0] for language, workers in found.items()}
    assert len(homes) == 4
    assert len({name for name, _ in homes.values()}) == 2, found
    share = sum(count for _, count in homes.values()) / 24
    assert share >= 0.9, found


def test_a_killed_decode_worker_leaves_k_minus_one_centroids(
    deployment: Running, url: str, expected: list[list[int]]
) -> None:
    worker = deployment.worker("decode-1")
    restarts, pid = worker.restarts, worker.pid
    assert pid is not None

    async def main() -> tuple[list[list[int]], float]:
        sending = asyncio.create_task(sent(url, rounds=3))

        async def busy() -> bool:
            rows = (await state(url))["workers"]
            return any(row["name"] == "decode-1" and row["inflight"] >= 2 for row in rows)

        await calls.until(busy, "the victim has work in its hands")
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()

        async def refitted() -> bool:
            return bool((await state(url))["eldr"]["centroids"] == 1)

        await calls.until(refitted, "one centroid is left")
        took = time.monotonic() - killed
        return await sending, took

    answers, took = calls.run(main())
    assert answers == expected * 3, "no request is lost and no token changes"
    assert took < NOTICED_S, f"{took:.1f} s"

    deployment.wait_ready("decode-1", restarts + 1)
    calls.run(whole(url))
    assert calls.run(sent(url)) == expected
    owners = calls.run(state(url))["eldr"]["owners"]
    assert len(set(owners.values())) == 2
