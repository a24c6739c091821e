"""A finished prefill's KV leaves while another prompt is computed, not after it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.e2e import calls
from tests.e2e.reference import Reference
from tests.e2e.workers import LEG_TOKENS, events, leg, prefilled, settled
from toolkit.launch.running import Running

pytestmark = pytest.mark.e2e

LONG = 2000
"""One chunk (2048 tokens here): between two of them SGLang looks by itself."""


def test_kv_does_not_wait_for_the_forward_of_another_prompt(
    deployment: Running, reference: Reference
) -> None:
    async def one(number: int) -> tuple[float, float]:
        prefill, decode = (
            next(worker for worker in deployment.workers if worker.role == role)
            for role in ("prefill", "decode")
        )
        name = f"early-{number}-{time.monotonic_ns()}"
        short = leg(deployment, f"{name}-short", 2 * number + 1, 60)
        long = leg(deployment, f"{name}-long", 2 * number + 2, LONG)
        first: list[float] = []
        async with events(prefill.url) as stream, calls.session() as http:
            assert (await anext(stream))["optimistic_prefill"]

            def send(body: dict[str, Any], url: str, told: Any = lambda count: None) -> Any:
                return asyncio.create_task(calls.generate(http, url, body, told))

            legs = [send(short, prefill.url)]
            await prefilled(stream, short["rid"])
            legs.append(send(long, prefill.url))
            await asyncio.sleep(0.05)  # it computes now
            began = time.monotonic()
            answer = send(short, decode.url, lambda count: first.append(time.monotonic()))
            done = await prefilled(stream, long["rid"])
            legs.append(send(long, decode.url))
            assert (await answer).ids == reference.greedy(short["input_ids"], LEG_TOKENS)
            assert [(await each).error for each in legs] == [""] * 3
        return first[0] - began, done - began

    async def main() -> None:
        await settled(deployment)
        pairs = [await one(number) for number in range(3)]
        # Sent by the scheduler it comes right after the other's end, by this patch long before.
        assert [first < 0.5 * done for first, done in pairs] == [True] * 3, pairs

    calls.run(main())
