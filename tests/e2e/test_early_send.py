"""A finished prefill's KV leaves while another prompt is computed, not after it."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import calls
from tests.e2e.deployments import deployed
from tests.e2e.reference import Reference
from tests.e2e.workers import CALL_TOKENS, call_body, events, prefilled, settled
from toolkit.contract.variables import WORKER_KEY_VARIABLE
from toolkit.launch.running import Running

pytestmark = pytest.mark.e2e

LONG = 2000
"""One chunk (2048 tokens here): between two of them SGLang looks by itself."""


@pytest.fixture
def two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """Prefill with two tensor-parallel ranks, each of which hears of the decode worker by itself;
    the scheduler of both must find a request sent in the same round."""
    role: dict[str, Any] = {"kv_tokens": 8192, "max_running": 8}
    roles = {"prefill": role | {"tp": 2}, "decode": role}
    router = {"silent_s": 15, "hung_s": 40}
    recipe = {"name": "tp", "device": "cpu", "model": "embedded", **roles, "router": router}
    with deployed(recipe, tmp_path) as up:
        monkeypatch.setenv(WORKER_KEY_VARIABLE, up.worker_key)
        yield up


def test_kv_does_not_wait_for_the_forward_of_another_prompt(
    deployment: Running, reference: Reference
) -> None:
    calls.run(sent_early(deployment, reference))


@pytest.mark.slow
def test_nor_with_two_tensor_parallel_ranks(two_ranks: Running, reference: Reference) -> None:
    asked = [calls.prompt(f"tp-{n}", 20 + 61 * n) for n in range(16)]
    bodies = [calls.greedy(ids, CALL_TOKENS, stream=n % 2 == 0) for n, ids in enumerate(asked)]
    answers = calls.run(calls.all_of(two_ranks.router_url, bodies, 6))
    assert [answer.error for answer in answers] == [""] * len(asked)
    said = [a.ids for a in answers]
    assert said == reference.greedy_each(asked, CALL_TOKENS, said)
    calls.run(sent_early(two_ranks, reference))


async def sent_early(deployment: Running, reference: Reference) -> None:
    async def one(number: int) -> tuple[float, float]:
        prefill, decode = (
            next(worker for worker in deployment.workers if worker.role == role)
            for role in ("prefill", "decode")
        )
        name = f"early-{number}-{time.monotonic_ns()}"
        short = call_body(deployment, f"{name}-short", 2 * number + 1, 60)
        long = call_body(deployment, f"{name}-long", 2 * number + 2, LONG)
        first: list[float] = []
        async with events(prefill.url) as stream, calls.session() as http:
            assert (await anext(stream))["optimistic_prefill"]

            def send(body: dict[str, Any], url: str, told: Any = lambda count: None) -> Any:
                return asyncio.create_task(calls.generate(http, url, body, told))

            sent = [send(short, prefill.url)]
            await prefilled(stream, short["rid"])
            sent.append(send(long, prefill.url))
            await asyncio.sleep(0.05)  # it computes now
            began = time.monotonic()
            answer = send(short, decode.url, lambda count: first.append(time.monotonic()))
            done = await prefilled(stream, long["rid"])
            sent.append(send(long, decode.url))
            said = (await answer).ids
            assert said == reference.greedy(short["input_ids"], CALL_TOKENS, said)
            assert [(await each).error for each in sent] == [""] * 3
        return first[0] - began, done - began

    await settled(deployment)
    pairs = [await one(number) for number in range(3)]
    # Sent by the scheduler it comes right after the other's end, by this patch long before.
    assert [first < 0.5 * done for first, done in pairs] == [True] * 3, pairs
